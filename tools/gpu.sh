#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests and benchmarks of the NVSHMEM backend on a machine with a GPU.
#
#   tools/gpu.sh test [CONFIGURATION ...] [-- PYTEST ARGUMENTS]     configurations: 1, 2-no-mps, 2, 4; gpus (2 or 4)
#   tools/gpu.sh bench [CONFIGURATION ...] [-- SUITE ARGUMENTS]    configurations: 1, 2, 4; gpus, gpus2 ... (a PE on each)
#   tools/gpu.sh memcheck [1 | gpus] [-- PYTEST ARGUMENTS]          tests under compute-sanitizer: memory
#   tools/gpu.sh racecheck | synccheck [1 | gpus] [-- ...]         the same: races in shared memory; barriers of blocks
#   tools/gpu.sh run [PES] -- SCRIPT [ARGUMENTS]                    a program on 4 PEs or so many: on a GPU each, or on one
#   tools/gpu.sh soak [-- ARGUMENTS]                               a million replayed allreduces on 2 PEs (tools/soak.py)
#
# It uses one GPU, the first that CUDA_VISIBLE_DEVICES names; the configuration "gpus" uses all of them. Several PEs share one
# under MPS, which it starts for itself and stops, or without.
#
# Under compute-sanitizer there is 1 PE, which launches no kernel of a collective by itself. So memcheck has the interface, its
# misuses, small puts, users' kernels, and the kernels of the collectives in one launch of all members
# (tests/gpu/test_members_in_one_launch.py: all of them but the two levels and multimem); racecheck and synccheck have the kernels
# alone. No kernel of nvsym uses shared memory: what racecheck can see are those that tests give to nvsym. "gpus": two PEs on a GPU
# each, and the tests of the kernels with real peers.
#
# The kernels that `test` compiles first, and memcheck some of, stay in NVSYM_CACHE_DIR (default: ~/.cache/nvsym): a second time it
# takes a second or two. A copy of that folder, which only its user may write to, serves on another machine, too: an entry goes by
# the sources, the architecture and the version of NVRTC, not by the machine.
#
# From the environment:
#
#   PYTHON=python3          the Python to use; it needs Cython, numpy, mpi4py, ml_dtypes, cuda-pathfinder, pytest and NVSHMEM
#   NVSYM_TEST_GPU_LIMIT    seconds for each configuration (default: 600; of compute-sanitizer: 240, and tests that come too late
#                           are skipped)
#   NVSYM_BENCH_RESULTS     folder of the benchmark's table and pictures (default: benchmarks/results)
#   NVSYM_BENCH_RAW         file for the benchmark's numbers, as JSON (default: none)
set -uo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
PYTHON=${PYTHON:-python3}

die() {
    echo "tools/gpu.sh: $*" >&2
    exit 2
}

mode=${1:-}
[ $# -gt 0 ] && shift
case $mode in
test | bench | run | soak) LIMIT=${NVSYM_TEST_GPU_LIMIT:-600} ;;
memcheck | racecheck | synccheck) LIMIT=${NVSYM_TEST_GPU_LIMIT:-240} ;;
*) sed -n '/^# Tests and/,/^#   NVSYM_BENCH_RAW/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
configurations=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    configurations+=("$1")
    shift
done
[ $# -gt 0 ] && shift
rest=("$@")
case $mode in
test) [ ${#configurations[@]} -gt 0 ] || configurations=(1 2-no-mps 2 4) ;;
*check) [ ${#configurations[@]} -gt 0 ] || configurations=(1) ;;
esac

# ----------------------------------------------------------------------------------------------------------------------
# What the machine has
# ----------------------------------------------------------------------------------------------------------------------

smi=$(command -v nvidia-smi) || die "no nvidia-smi: this machine has no NVIDIA driver, and the GPU targets need a GPU. Without one: make test, make bench"
gpus=$("$smi" --query-gpu=index,name,driver_version --format=csv,noheader 2>&1) && [ -n "$gpus" ] ||
    die "no GPU was found (nvidia-smi: ${gpus:-empty list}). Without one: make test, make bench"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is not Python 3.11 or later; set PYTHON"
needed="numpy mpi4py ml_dtypes cuda.pathfinder"
[ "$mode" = run ] || needed="$needed Cython pytest"
for module in $needed; do
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

[ "$mode" = run ] || echo "== building the extensions in place"
[ "$mode" = run ] || "$PYTHON" setup.py -q build_ext --inplace >"${TMPDIR:-/tmp}/nvsym-gpu-build.log" 2>&1 || {
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
    # Of what the daemon sees its clients count the GPUs anew: it sees all, and they choose.
    env -u CUDA_VISIBLE_DEVICES "$control" -d
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
    # In the foreground a program that a user runs hears his Ctrl-C.
    timeout ${foreground:+--foreground} --kill-after=20 "$LIMIT" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    stop_mps
    closing=$(tail -1 "$log" | sed 's/\x1b\[[0-9;]*m//g; s/^=* *//; s/ *=*$//')
    [ "$status" -ne 124 ] || closing="stopped after $LIMIT s"
    rows+=("$name|$([ "$status" -eq 0 ] && echo ok || echo "status $status")|$closing|$((SECONDS - began))")
    [ "$status" -eq 0 ] || failed=1
    rm -f "$log"
}

pytest_for() { # pytest, for arguments that may have blanks, into `command`
    # Where nvsym is not installed, pytest has to be told of its plugin.
    command=("$PYTHON" -m pytest -q --no-header)
    "$PYTHON" -c 'import sys; from importlib.metadata import entry_points as e; sys.exit("nvsym" not in e(group="pytest11").names)' ||
        command+=(-p nvsym.testing)
    command+=("$@")
}

precompile() { # element types, with commas; all: none
    local capability
    capability=$("$smi" --query-gpu=compute_cap --format=csv,noheader | head -1)
    echo "== compiling the kernels for $capability"
    "$PYTHON" tools/precompile.py "${capability//./}" "$@" || die "the kernels do not compile"
}

sanitize() { # tool, title, PEs, -k of pytest, tests ...
    local tool=$1 title=$2 pes=$3 keywords=$4 began=$SECONDS work clean unclean
    shift 4
    work=$(mktemp -d "${TMPDIR:-/tmp}/nvsym-sanitizer-XXXXXX")
    pytest_for -o nvsym_timeout=120 -k "$keywords" "$@"
    # Libraries whose many kernels would be instrumented, too, at a minute each.
    export NVSYM_TEST_WITHOUT=torch,jax,numba,triton
    NVSYM_TEST_DEADLINE=$(($(date +%s) + LIMIT * 3 / 4))
    export NVSYM_TEST_DEADLINE
    # pytest starts a PE as a process of its own, so every process that touches the GPU is checked, and has its log. Calls of the
    # driver that fail are no errors: nvsym asks with some, and tests make others fail. For backtraces of the host the sanitizer holds
    # frames of Python, and with them buffers that were dropped.
    run "$title" "$pes" no "$sanitizer" --tool "$tool" --target-processes all --require-cuda-init no --report-api-errors no \
        --show-backtrace device --log-file "$work/%p.log" "${command[@]}" ${rest[@]+"${rest[@]}"}
    clean=$(grep -l 'SUMMARY: 0 \(errors\|hazards\)' "$work"/*.log 2>/dev/null | wc -l)
    unclean=$(grep -L 'SUMMARY: 0 \(errors\|hazards\)' "$work"/*.log 2>/dev/null | xargs -r grep -l 'SUMMARY\|=========' || true)
    # shellcheck disable=SC2086
    [ -z "$unclean" ] || grep -h '=========' $unclean | head -60
    if [ -n "$unclean" ] || [ "$clean" -eq 0 ]; then
        failed=1
        rows+=("$title: findings|errors|$clean processes without an error, $(wc -w <<<"$unclean") with|$((SECONDS - began))")
    else
        rows+=("$title: findings|ok|$clean processes without an error|$((SECONDS - began))")
    fi
    rm -rf "$work"
}

if [ "$mode" = bench ] && [ ${#configurations[@]} -eq 0 ]; then
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
    precompile # else the PEs would compile one after the other, in the tests
    for configuration in "${configurations[@]}"; do
        pes=${configuration%%-*}
        case $configuration in
        1) title="1 PE" mps=no ;;
        2-no-mps) title="2 PEs, one GPU, no MPS" mps=no ;;
        [2-9]) title="$pes PEs, one GPU, MPS" mps=mps ;;
        gpus)
            [ "$n_gpus" -ge 2 ] || die "gpus: there is one GPU"
            pes=$((n_gpus < 4 ? 2 : 4)) mps=no title="a PE on each of $((n_gpus < 4 ? 2 : 4)) GPUs"
            ;;
        *) die "no configuration $configuration; there are 1, 2-no-mps, 2, 4, gpus" ;;
        esac
        pytest_for --durations=12 -k "nvshmem-n$pes" tests/gpu
        [ "$configuration" != gpus ] || CUDA_VISIBLE_DEVICES=$all_gpus
        run "$title" "$pes" "$mps" "${command[@]}" ${rest[@]+"${rest[@]}"}
        CUDA_VISIBLE_DEVICES=${all_gpus%%,*}
    done
    ;;
run)
    pes=${configurations[0]:-4} foreground=yes
    [[ $pes =~ ^[1-9][0-9]*$ ]] || die "run: $pes is no number of PEs"
    [ ${#rest[@]} -gt 0 ] || die "run: a script must follow --"
    if [ "$n_gpus" -ge "$pes" ]; then
        CUDA_VISIBLE_DEVICES=$all_gpus
    elif ! start_mps "$pes"; then # else run() stops it
        stop_mps
        echo "PEs that share a GPU need MPS (nvidia-cuda-mps-control), which does not work here: $n_gpus PEs in place of $pes"
        pes=$n_gpus CUDA_VISIBLE_DEVICES=$all_gpus
    fi
    run "$pes PEs: ${rest[*]}" "$pes" no "$PYTHON" -m nvsym._launch --mpi "$NVSYM_TEST_MPI" -n "$pes" -- "${rest[@]}"
    ;;
soak)
    run "soak, 2 PEs, MPS" 2 mps "$PYTHON" -m nvsym._launch --mpi "$NVSYM_TEST_MPI" -n 2 -- tools/soak.py ${rest[@]+"${rest[@]}"}
    ;;
*check)
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$sanitizer" ] || die "no compute-sanitizer on PATH or in /usr/local/cuda*/bin"
    few=float32,bfloat16,int64,uint64 # of the tests that have every element type
    these="float32 or bfloat16 or int64"
    kernels=(tests/gpu/test_members_in_one_launch.py tests/gpu/test_collective_kernels.py)
    [ "$mode" != memcheck ] || precompile "$few"
    for configuration in "${configurations[@]}"; do
        case $configuration-$mode in
        1-memcheck)
            sanitize memcheck "1 PE, memcheck" 1 "nvshmem-n1 and not 20_times and (not test_reductions or $these)" \
                tests/gpu/test_parity.py "${kernels[@]}" tests/gpu/test_dlpack_gpu.py tests/gpu/test_misuse.py
            ;;
        1-*) sanitize "$mode" "1 PE, $mode" 1 nvshmem-n1 "${kernels[@]}" ;;
        gpus-*)
            [ "$n_gpus" -gt 1 ] || die "$mode gpus: there is 1 GPU, and it takes two"
            CUDA_VISIBLE_DEVICES=$(cut -d, -f1-2 <<<"$all_gpus")
            sanitize "$mode" "2 PEs, a GPU each, $mode" 2 "nvshmem-n2 and (not test_allreduce or $these)" tests/gpu/test_collective_kernels.py
            CUDA_VISIBLE_DEVICES=${all_gpus%%,*}
            ;;
        *) die "no configuration $configuration of $mode; there are 1 and gpus" ;;
        esac
    done
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
