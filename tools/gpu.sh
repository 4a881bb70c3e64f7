#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests and benchmarks of the NVSHMEM backend on a machine with a GPU.
#
#   tools/gpu.sh test [CONFIGURATION ...] [-- PYTEST ARGUMENTS]     configurations: 1, 2-no-mps, 2, 4; default: all
#   tools/gpu.sh bench [CONFIGURATION ...] [-- SUITE ARGUMENTS]    configurations: 1, 2, 4; gpus, gpus2 ... (a PE on each)
#   tools/gpu.sh memcheck [-- PYTEST ARGUMENTS]                     the suite with 1 PE under compute-sanitizer
#   tools/gpu.sh soak [-- ARGUMENTS]                               a million replayed allreduces on 2 PEs (tools/soak.py)
#
# It uses one GPU, the first that CUDA_VISIBLE_DEVICES names; the configuration "gpus" uses all of them. Several PEs share one
# under MPS, which it starts for itself and stops, or without. From the environment:
#
#   PYTHON=python3          the Python to use; it needs Cython, numpy, mpi4py, ml_dtypes, cuda-pathfinder, pytest and NVSHMEM
#   NVSYM_TEST_GPU_LIMIT    seconds for each configuration (default: 600)
#   NVSYM_BENCH_RESULTS     folder of the benchmark's table and pictures (default: benchmarks/results)
#   NVSYM_BENCH_RAW         file for the benchmark's numbers, as JSON (default: none)
set -uo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
PYTHON=${PYTHON:-python3}
LIMIT=${NVSYM_TEST_GPU_LIMIT:-600}

die() {
    echo "tools/gpu.sh: $*" >&2
    exit 2
}

mode=${1:-}
[ $# -gt 0 ] && shift
case $mode in
test | bench | memcheck | soak) ;;
*) sed -n '4,21s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
configurations=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    configurations+=("$1")
    shift
done
[ $# -gt 0 ] && shift
rest=("$@")
if [ ${#configurations[@]} -eq 0 ] && [ "$mode" != bench ]; then
    configurations=(1 2-no-mps 2 4)
fi

# ----------------------------------------------------------------------------------------------------------------------
# What the machine has
# ----------------------------------------------------------------------------------------------------------------------

smi=$(command -v nvidia-smi) || die "no nvidia-smi: this machine has no NVIDIA driver, and the GPU targets need a GPU. Without one: make test, make bench"
gpus=$("$smi" --query-gpu=index,name,driver_version --format=csv,noheader 2>&1) && [ -n "$gpus" ] ||
    die "no GPU was found (nvidia-smi: ${gpus:-empty list}). Without one: make test, make bench"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is not Python 3.11 or later; set PYTHON"
for module in Cython numpy mpi4py ml_dtypes cuda.pathfinder pytest; do
    "$PYTHON" -c "import $module" 2>/dev/null || die "$PYTHON has no module $module: $PYTHON -m pip install it, or set PYTHON"
done
echo "GPU: $(head -1 <<<"$gpus")"

# No program that is started here makes a multicast object: on shared machines one can put the GPUs out of service.
export NVSHMEM_DISABLE_NVLS=1 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
all_gpus=${CUDA_VISIBLE_DEVICES:-$(cut -d, -f1 <<<"$gpus" | paste -sd,)}
n_gpus=$(tr ',' '\n' <<<"$all_gpus" | wc -l)
export CUDA_VISIBLE_DEVICES=${all_gpus%%,*}
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
export NVSYM_HEAP_SIZE=${NVSYM_HEAP_SIZE:-256M}
export NVSYM_TEST_BACKENDS=nvshmem

echo "== building the extensions in place"
"$PYTHON" setup.py -q build_ext --inplace >"${TMPDIR:-/tmp}/nvsym-gpu-build.log" 2>&1 || {
    tail -40 "${TMPDIR:-/tmp}/nvsym-gpu-build.log"
    die "the build failed"
}
"$PYTHON" -c 'from nvsym import _nvshmem; print("NVSHMEM:", _nvshmem.library_info())' || die "no NVSHMEM: $PYTHON -m pip install nvidia-nvshmem-cu13"
if [ -z "${NVSYM_TEST_MPI:-}" ]; then
    for NVSYM_TEST_MPI in openmpi mpich none; do
        "$PYTHON" -m nvsym._launch --mpi "$NVSYM_TEST_MPI" --show 2>/dev/null && break
    done
fi
[ "$NVSYM_TEST_MPI" != none ] || die "no MPI launcher that goes with this mpi4py; $PYTHON -m nvsym._launch --show says why"
export NVSYM_TEST_MPI

# ----------------------------------------------------------------------------------------------------------------------
# MPS
# ----------------------------------------------------------------------------------------------------------------------

mps_folder=
start_mps() { # for a number of PEs
    local control
    control=$(command -v nvidia-cuda-mps-control) || return 1
    mps_folder=$(mktemp -d "${TMPDIR:-/tmp}/nvsym-mps-XXXXXX")
    mkdir "$mps_folder/pipe" "$mps_folder/log"
    export CUDA_MPS_PIPE_DIRECTORY=$mps_folder/pipe CUDA_MPS_LOG_DIRECTORY=$mps_folder/log
    # NVSHMEM counts PEs as sharing a GPU in full where their shares do not add up to more than 100. With shares that leave nothing,
    # blocks of several PEs meet on a processor, and kernels that wait for each other take half as long again.
    export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((90 / $1))
    "$control" -d
}
stop_mps() {
    [ -n "$mps_folder" ] || return 0
    echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
    rm -rf "$mps_folder"
    mps_folder=
}
trap stop_mps EXIT
trap 'exit 130' INT TERM

# ----------------------------------------------------------------------------------------------------------------------
# The runs
# ----------------------------------------------------------------------------------------------------------------------

rows=()
failed=0
run() { # name, PEs, MPS or not, command ...
    local name=$1 pes=$2 mps=$3 began=$SECONDS log status closing
    shift 3
    log=$(mktemp "${TMPDIR:-/tmp}/nvsym-gpu-XXXXXX")
    echo
    echo "== $name"
    export NVSYM_TEST_GPU_PES=$pes
    if [ "$mps" = mps ] && ! start_mps "$pes"; then
        rows+=("$name|failed|no MPS: nvidia-cuda-mps-control is missing or did not start|0")
        failed=1
        stop_mps
        return
    fi
    timeout --kill-after=20 "$LIMIT" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    stop_mps
    closing=$(tail -1 "$log" | sed 's/\x1b\[[0-9;]*m//g; s/^=* *//; s/ *=*$//')
    [ "$status" -ne 124 ] || closing="stopped after $LIMIT s"
    rows+=("$name|$([ "$status" -eq 0 ] && echo ok || echo "status $status")|$closing|$((SECONDS - began))")
    [ "$status" -eq 0 ] || failed=1
    rm -f "$log"
}

pytest_for() { # PEs
    # Where nvsym is not installed, pytest has to be told of its plugin.
    local plugin
    plugin=$("$PYTHON" -c 'from importlib.metadata import entry_points as e
print("" if "nvsym" in e(group="pytest11").names else "-p nvsym.testing")')
    # shellcheck disable=SC2086
    echo "$PYTHON" -m pytest $plugin -q --no-header -k "nvshmem-n$1" tests/gpu
}

if [ ${#configurations[@]} -eq 0 ]; then
    # Collectives are measured for every power of two of GPUs, so that it can be seen how they scale.
    case $n_gpus in
    1) configurations=(1 2 4) ;;
    [23]) configurations=(gpus) ;;
    [4-7]) configurations=(gpus2 gpus) ;;
    *) configurations=(gpus2 gpus4 gpus) ;;
    esac
fi

case $mode in
test)
    # Else the PEs would compile one after the other, in the tests.
    capability=$("$smi" --query-gpu=compute_cap --format=csv,noheader | head -1)
    echo "== compiling the kernels for ${capability}"
    "$PYTHON" tools/precompile.py "${capability//./}" || die "the kernels do not compile"
    for configuration in "${configurations[@]}"; do
        pes=${configuration%%-*}
        case $configuration in
        1) title="1 PE" mps=no ;;
        2-no-mps) title="2 PEs, one GPU, no MPS" mps=no ;;
        [2-9]) title="$pes PEs, one GPU, MPS" mps=mps ;;
        *) die "no configuration $configuration; there are 1, 2-no-mps, 2, 4" ;;
        esac
        read -ra command <<<"$(pytest_for "$pes")"
        run "$title" "$pes" "$mps" "${command[@]}" ${rest[@]+"${rest[@]}"}
    done
    ;;
soak)
    run "soak, 2 PEs, MPS" 2 mps "$PYTHON" -m nvsym._launch --mpi "$NVSYM_TEST_MPI" -n 2 -- tools/soak.py ${rest[@]+"${rest[@]}"}
    ;;
memcheck)
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$sanitizer" ] || die "no compute-sanitizer on PATH or in /usr/local/cuda*/bin"
    work=$(mktemp -d "${TMPDIR:-/tmp}/nvsym-memcheck-XXXXXX")
    read -ra command <<<"$(pytest_for 1)"
    # pytest starts the PE as a process of its own, so every process that touches the GPU is checked, and has its log.
    run "1 PE, memcheck" 1 no "$sanitizer" --tool memcheck --target-processes all --log-file "$work/%p.log" \
        "${command[@]}" ${rest[@]+"${rest[@]}"}
    clean=$(grep -l 'ERROR SUMMARY: 0 errors' "$work"/*.log 2>/dev/null | wc -l)
    unclean=$(grep -L 'ERROR SUMMARY: 0 errors' "$work"/*.log 2>/dev/null | xargs -r grep -l 'ERROR SUMMARY\|=========' || true)
    [ -z "$unclean" ] || grep -h '=========' $unclean | head -60
    rows+=("memcheck|$([ -z "$unclean" ] && [ "$clean" -gt 0 ] && echo ok || echo errors)|$clean processes without an error, $(wc -w <<<"$unclean") with|0")
    [ -z "$unclean" ] && [ "$clean" -gt 0 ] || failed=1
    rm -rf "$work"
    ;;
bench)
    results=${NVSYM_BENCH_RESULTS:-benchmarks/results}
    work=$(mktemp -d "${TMPDIR:-/tmp}/nvsym-bench-XXXXXX")
    launch=("$PYTHON" -m nvsym._launch --mpi "$NVSYM_TEST_MPI")
    suite() { # title, PEs, MPS or not, suite, label of its documents
        run "$1" "$2" "$3" "${launch[@]}" -n "$2" -- benchmarks/gpu/suite.py "$4" --label "$5" --work "$work" ${rest[@]+"${rest[@]}"}
    }
    for configuration in "${configurations[@]}"; do
        case $configuration in
        1)
            suite "benchmark, 1 PE" 1 no 1 1
            suite "init, 1 PE, NVSHMEM first" 1 no peer-first 1
            ;;
        2)
            suite "benchmark, 2 PEs, MPS" 2 mps 2-mps 2-mps
            suite "init, 2 PEs, NVSHMEM first" 2 mps peer-first 2-mps
            ;;
        4) suite "benchmark, 4 PEs, MPS" 4 mps 4-mps 4-mps ;;
        gpus | gpus[1-9])
            of=${configuration#gpus}
            of=${of:-$n_gpus}
            [ "$of" -le "$n_gpus" ] || die "$configuration: there are $n_gpus GPUs"
            CUDA_VISIBLE_DEVICES=$(cut -d, -f"1-$of" <<<"$all_gpus")
            suite "benchmark, a PE on each of $of GPUs" "$of" no gpus "gpus$of"
            suite "init, $of GPUs, NVSHMEM first" "$of" no peer-first "gpus$of"
            CUDA_VISIBLE_DEVICES=${all_gpus%%,*}
            ;;
        *) die "no configuration $configuration of bench; there are 1, 2, 4, gpus, gpus2, gpus4 ..." ;;
        esac
    done
    "$PYTHON" benchmarks/gpu/report.py "$work" --results "$results" ${NVSYM_BENCH_RAW:+--raw "$NVSYM_BENCH_RAW"} || failed=1
    rm -rf "$work"
    ;;
esac

echo
printf '%-36s %-10s %6s  %s\n' configuration result seconds "last line"
for row in "${rows[@]}"; do
    IFS='|' read -r name result closing seconds <<<"$row"
    printf '%-36s %-10s %6s  %s\n' "$name" "$result" "$seconds" "$closing"
done
exit $failed
