# SPDX-License-Identifier: Apache-2.0
# `make run` needs Python 3.11 or later with its headers, gcc and make; `make help` lists the targets.
#
# What is done already is remembered by the stamp files in .make/, so a second run does only what has changed. An existing .venv
# is used as it is.

NP ?= 4
PYTHON ?= python3
MPI ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
TORCH ?= torch==2.13.0+cpu

VENV := .venv
PY := $(VENV)/bin/python
LAUNCH = $(PY) -m nvsym._launch $(if $(MPI),--mpi $(MPI))
SOURCES := $(shell find nvsym include -name '*.pyx' -o -name '*.pxd' -o -name '*.[ch]' -o -name '*.cpp' -o -name '*.cuh')
say = @echo "== $(1)"

# The CUDA of the driver, where there is a GPU, and what nvsym needs for it.
ifneq ($(filter run,$(MAKECMDGOALS)),)
CUDA := $(shell [ -z "$${CUDA_VISIBLE_DEVICES-all}" ] || timeout 20 nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9][0-9]*\).*/\1/p' | head -1)
endif
# GPUs that the user hides, and drivers for CUDA 11, leave host memory.
GPU := $(if $(filter-out 11,$(CUDA)),$(if $(filter 12,$(CUDA)),cu12,cu13))
# A program on NP PEs: on the GPUs, else in host memory.
ON_PES = $(if $(GPU),NVSYM_TEST_MPI=$(MPI) PYTHON=$(PY) bash tools/gpu.sh run $(NP) --,$(LAUNCH) -n $(NP) --)

# Stamps of an environment that is gone say nothing.
ifeq ($(wildcard $(PY)),)
$(shell rm -rf .make)
endif

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help venv build run test test-openmpi test-sanitizer test-gpu bench bench-gpu lint clean distclean dist

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18
	@echo
	@echo "Variables: NP=4 (processes of make run), MPI=mpich or openmpi (default: the first one found),"
	@echo "PYTHON=python3 (for .venv, and for the GPU targets), PYTEST_ARGS, BENCH_ARGS, TORCH=torch==2.13.0+cpu"

# ----------------------------------------------------------------------------------------------------------------------
# The environment
# ----------------------------------------------------------------------------------------------------------------------

.make/venv:
	@command -v gcc >/dev/null || { echo "make: gcc is not on PATH; on Debian and Ubuntu: apt-get install gcc"; exit 1; }
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	    for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11 none; do \
	        $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    done; \
	    if [ $$python = none ]; then \
	        echo "make: $(PYTHON) is not Python 3.11 or later, and no python3.11 to python3.14 is on PATH."; \
	        echo "      Install one, or say where it is: make PYTHON=/path/to/python3"; exit 1; \
	    fi; \
	    echo "== making $(VENV) with $$($$python --version)"; \
	    $$python -m venv --clear $(VENV) || { \
	        echo "make: $$python cannot make environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; \
	fi
	@$(PY) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
	    echo "make: $$($(PY) --version) has no headers (Python.h); on Debian and Ubuntu: apt-get install python3-dev"; exit 1; }
	@mkdir -p .make && touch $@

# What builds nvsym comes first: nvsym is then built without an environment of pip's own, step by step and visibly.
.make/tools: .make/venv pyproject.toml
	$(call say,installing the build tools)
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > $@.txt
	@$(PY) -m pip install --disable-pip-version-check -r $@.txt
	@touch $@

.make/build: .make/tools setup.py $(SOURCES)
	$(call say,building the extensions)
	@$(PY) setup.py -q build_ext --inplace
	@touch $@

# Registers the package in the environment and installs what it depends on. The extensions are in place already.
INSTALL = NVSYM_BUILD_EXTENSIONS=0 $(PY) -m pip install --disable-pip-version-check --no-build-isolation

.make/package: .make/tools pyproject.toml setup.py nvsym/_version.py
	$(call say,installing nvsym and what it needs)
	@$(INSTALL) -e '.[examples]'
	@touch $@

.make/gpu-%: .make/package pyproject.toml
	$(call say,installing NVSHMEM and the compiler of GPU kernels)
	@$(INSTALL) -e '.[$*]'
	@touch $@

.make/dev: .make/package pyproject.toml
	$(call say,installing the tools of the tests and checks)
	@$(INSTALL) -e '.[dev]'
	@touch $@

# What nvsym exchanges memory with, for the tests of that; small enough to install: PyTorch without CUDA. Where one of them cannot
# be had, its tests say so and are skipped.
.make/interop: .make/dev pyproject.toml
	$(call say,installing PyTorch for the CPU and JAX and Numba)
	@$(PY) -c 'import torch' 2>/dev/null || \
	    $(PY) -m pip install --disable-pip-version-check --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu '$(TORCH)' || \
	    echo "== there is no $(TORCH) here: the tests of nvsym.torch will be skipped"
	@$(PY) -m pip install --disable-pip-version-check jax numba || echo "== no JAX or Numba: their tests will be skipped"
	@touch $@

# An MPI: the one of the machine, else the wheel.
.make/mpi-$(or $(MPI),any): .make/package .make/build
	$(call say,looking for an MPI)
	@if ! $(LAUNCH) --show; then \
	    [ "$(MPI)" != openmpi ] || exit 1; \
	    echo "== installing the wheel of MPICH"; \
	    $(PY) -m pip install --disable-pip-version-check mpich && $(LAUNCH) --show; \
	fi
	@touch $@

venv: .make/dev ## make .venv with everything for development

build: .make/build ## build the extensions in place

# ----------------------------------------------------------------------------------------------------------------------
# The job
# ----------------------------------------------------------------------------------------------------------------------

run: .make/package .make/build .make/mpi-$(or $(MPI),any) $(if $(GPU),.make/gpu-$(GPU)) ## build, and run the main job on NP processes
	$(call say,examples/allreduce.py on $(NP) PEs)
	@$(ON_PES) examples/allreduce.py
	$(call say,examples/data_parallel_digits.py on $(NP) PEs)
	@$(ON_PES) examples/data_parallel_digits.py

# ----------------------------------------------------------------------------------------------------------------------
# Tests and checks
# ----------------------------------------------------------------------------------------------------------------------

test: .make/interop .make/build ## run the test suite, with MPICH
	$(call say,tests with MPICH)
	@$(PY) -m pytest $(PYTEST_ARGS)

test-openmpi: .make/interop .make/build ## run the test suite with Open MPI
	$(call say,tests with Open MPI)
	@NVSYM_TEST_MPI=openmpi $(PY) -m pytest $(PYTEST_ARGS)

test-sanitizer: .make/dev .make/build ## pools and parity on simulated GPUs, with AddressSanitizer in all C code
	@PYTHON=$(CURDIR)/$(PY) bash tools/sanitize.sh $(PYTEST_ARGS)

lint: .make/dev ## ruff, mypy, cython-lint, codespell; all of them, then the verdict
	@failed=; PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; export PATH; \
	check() { echo "== $$*"; "$$@" || failed="$$failed, $$*"; }; \
	check ruff check; \
	check ruff format --check; \
	check mypy; \
	check cython-lint nvsym tests examples benchmarks; \
	check codespell; \
	[ -z "$$failed" ] || { echo "== failed: $${failed#, }"; exit 1; }

bench: .make/package .make/build .make/mpi-$(or $(MPI),any) ## measure the host backend against mpi4py
	$(call say,benchmarks/host.py)
	@$(PY) benchmarks/host.py $(if $(MPI),--mpi $(MPI)) $(BENCH_ARGS)
	$(call say,benchmarks/cimport_put)
	@$(PY) benchmarks/cimport_put $(if $(MPI),--mpi $(MPI))

# ----------------------------------------------------------------------------------------------------------------------
# On a machine with GPUs, with that machine's own Python: PYTHON=...
# ----------------------------------------------------------------------------------------------------------------------

# tools/gpu.sh says what is missing, builds in place, and starts MPS where several PEs share a GPU.
test-gpu: ## run the tests that need a GPU
	@PYTHON="$(PYTHON)" bash tools/gpu.sh test $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

bench-gpu: ## measure the NVSHMEM backend
	@PYTHON="$(PYTHON)" bash tools/gpu.sh bench $(if $(BENCH_ARGS),-- $(BENCH_ARGS))

# ----------------------------------------------------------------------------------------------------------------------
# Files
# ----------------------------------------------------------------------------------------------------------------------

# The wheel runs where the C library is not older than that of this machine; auditwheel finds out which manylinux that is, and that
# nothing else is needed.
dist: .make/dev ## build the sdist and a manylinux wheel into dist/
	@rm -rf dist
	@$(PY) -m build --no-isolation
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m auditwheel repair --wheel-dir dist dist/*-linux_*.whl
	@rm dist/*-linux_*.whl
	@ls -l dist

# A .c file beside a .pyx is Cython's; the others are ours.
clean: ## remove what was built; .venv stays
	@find nvsym -name '*.pyx' | sed -E 's/pyx$$/c/;p;s/c$$/cpp/' | xargs rm -f
	@find nvsym -name '*.so' -delete
	@rm -rf nvsym/simulator/lib
	@find nvsym tests examples benchmarks tools -name __pycache__ -prune -exec rm -rf {} +
	@rm -rf build dist .make *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## remove .venv as well
	@rm -rf $(VENV)
