#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Extensions and simulator with AddressSanitizer, in a copy of their own, and on it the pools' random sequences and the parity
# suite of the NVSHMEM backend, on simulated GPUs. A finding ends the process that has it, and is printed here.
#
#   tools/sanitize.sh [PYTEST ARGUMENTS]
#
# From the environment:
#
#   PYTHON=python3              it needs Cython, numpy, mpi4py, ml_dtypes, cuda-pathfinder, nvidia-ml-py, pytest and hypothesis
#   NVSYM_TEST_SEQUENCES=200    random sequences
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=$(command -v "${PYTHON:-python3}")
copy=$PWD/build/sanitized
runtime=$(realpath "$(gcc -print-file-name=libasan.so)")
[ -f "$runtime" ] || { echo "tools/sanitize.sh: gcc has no libasan.so: install libasan, on Debian with gcc" >&2; exit 2; }

mkdir -p "$copy"
tar -c --exclude='*.so' --exclude=lib --exclude=__pycache__ nvsym include tests examples setup.py pyproject.toml README.md LICENSE |
    tar -x -C "$copy"
cd "$copy"
export PYTHONPATH=$copy:$copy/tests/pool
echo "== building in $copy"
NVSYM_BUILD_DEBUG=1 CFLAGS="-fsanitize=address -fno-omit-frame-pointer" LDFLAGS=-fsanitize=address \
    "$PYTHON" setup.py -q build_ext --inplace

findings=$(mktemp -d)
trap 'rm -rf "$findings"' EXIT
# Python keeps memory to its end: leaks are counted by the simulator, not here.
export LD_PRELOAD=$runtime ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:log_path=$findings/log
status=0
echo "== the pools' random sequences on 3 PEs"
"$PYTHON" -m nvsym simulate --devices 3 -- "$PYTHON" -m nvsym._launch -n 3 -- tests/pool/stress.py "${NVSYM_TEST_SEQUENCES:-200}" ||
    status=1
echo "== the parity suite on 2 PEs"
"$PYTHON" -m pytest -q --no-header -p no:cacheprovider -k simulator-n2 tests/gpu "$@" || status=1
unset LD_PRELOAD
if compgen -G "$findings/log*" >/dev/null; then
    cat "$findings"/log*
    status=1
fi
[ $status -eq 0 ] && echo "== AddressSanitizer found nothing"
exit $status
