#!/usr/bin/env bash
# Tests --backend nccl on a machine without a GPU: every error in real jobs, and every operation over
# stand-ins for the CUDA driver and for NCCL. The stand-ins are libraries that check the calls
# (standin/cuda.c). Prints `ok - NAME` or `not ok - NAME` for each check. NCCL on a real GPU is not tested
# here: docs/gpu.md.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The stand-in for NCCL has a file in TMPDIR until all ranks have opened it.
export TMPDIR=$work

target=target-nccl
build() {
  make --no-print-directory build DEVICES=nccl && CARGO_TARGET_DIR=$target scripts/cargo.sh build --quiet --release --workspace \
    --features nccl --example check_collectives --example check_sync
}
check "a build with nccl, without CUDA" build
check "the stand-ins compile" tests/gpu/standin/build.sh "$work/lib"

mpirun=$(mpi_command mpirun)
bin=$target/release/mpiburn
examples=$target/release/examples
many=(--bind-to core:overload-allowed --oversubscribe)
real=${LD_LIBRARY_PATH-}
with() { echo "$work/lib/$1${real:+:$real}"; } # with both|driver: a loader's path

job() { # job RANKS COMMAND...
  timeout "$limit" "$mpirun" "${many[@]}" -n "$@"
}

# Runs a job that must fail with exactly one line of the program, which must match PATTERN.
refused() { # refused PATTERN COMMAND...
  local pattern=$1 lines
  shift
  if "$@" >"$work/out" 2>&1; then
    cat "$work/out"
    echo "it was accepted"
    return 1
  fi
  lines=$(grep -cE '^(mpiburn|check_collectives): ' "$work/out")
  if [ "$lines" != 1 ] || ! grep -qE -e "$pattern" "$work/out" || grep -q panicked "$work/out"; then
    cat "$work/out"
    echo "$lines lines, and not the one: $pattern"
    return 1
  fi
}

bench=("$bin" bench allreduce --backends nccl --sizes 4)
no_driver() {
  if ldconfig -p | grep 'libcuda\.so\.1 ' >/dev/null; then
    echo "this machine has NVIDIA's driver: the refusal without it cannot be tested here"
    return 1
  fi
  refused 'rank 0 on .*: nccl needs NVIDIA.s driver: libcuda.so.1: .*or choose mpi or gloo' job 2 "${bench[@]}"
}
no_library() {
  LD_LIBRARY_PATH=$(with driver) STANDIN_GPUS=2 refused \
    'rank 0 on .*: nccl needs NVIDIA.s NCCL library: libnccl.so.2: .*; install NCCL' job 2 "${bench[@]}"
}
old_library() {
  LD_LIBRARY_PATH=$(with both) STANDIN_GPUS=2 STANDIN_NCCL=2708 refused \
    'libnccl.so.2 is NCCL 2.7.8.*; install NCCL 2.10 or newer' job 2 "${bench[@]}"
}
no_gpu() {
  LD_LIBRARY_PATH=$(with both) STANDIN_GPUS=0 refused \
    'rank 0 on .*: nccl needs a GPU, but this process sees none' job 2 "${bench[@]}"
}
one_gpu() {
  LD_LIBRARY_PATH=$(with both) STANDIN_GPUS=1 refused \
    'rank 1 on .*: its GPU .* rank 0 on .*start at most 1 rank on this machine' job 2 "${bench[@]}"
}
one_rank_without() {
  STANDIN_GPUS=2 refused 'rank 1 on .*: nccl needs NVIDIA.s driver' \
    job 1 env LD_LIBRARY_PATH="$(with both)" "${bench[@]}" : -n 1 "${bench[@]}"
}
other_version() {
  LD_LIBRARY_PATH=$(with both) STANDIN_GPUS=2 refused \
    "NCCL's version differs between ranks: rank 1 on .* has 2.22.3, rank 0 has 2.21.5" \
    job 1 "${bench[@]}" : -n 1 env STANDIN_NCCL=22203 "${bench[@]}"
}
cpu_device() {
  refused '--backend nccl: .*flex.*--backend mpi or gloo' \
    job 2 "$bin" train --backend nccl --out "$work/run" && [ ! -e "$work/run" ]
}

check "without a driver, one line says so" no_driver
check "without NCCL" no_library
check "with an NCCL that is too old" old_library
check "without a GPU" no_gpu
check "two ranks on one GPU" one_gpu
check "a driver on one of two ranks" one_rank_without
check "ranks with different versions of NCCL" other_version
check "a CPU device" cpu_device

# Runs bench collectives. The column of nccl must have RESULT in all rows: `correct`, or a reason.
column() { # column RESULT
  job 2 "$bin" bench collectives --iterations 5 --csv "$work/collectives.csv" &&
    awk -F, -v result="$1" '$2 == "nccl" { rows++; if ($6 != result) { print; bad = 1 } }
      END { exit bad || rows != 11 }' "$work/collectives.csv"
}
without_column() {
  column "no driver" && job 2 "$bin" bench allreduce --sizes 4 --iterations 5 >"$work/out" 2>&1 &&
    grep -q 'nccl is left out: .*libcuda' "$work/out" && grep -q ordered "$work/out" && ! grep -q '┆ nccl' "$work/out"
}
timed() {
  job 3 "$bin" bench allreduce --iterations 5 --csv "$work/allreduce.csv" --sizes 4,17408 &&
    [ "$(grep -c ',nccl\|nccl,\|nccl-ordered,' "$work/allreduce.csv")" = 4 ]
}
check "the benchmarks without a GPU leave nccl out, with the reason" without_column

export STANDIN_GPUS=4
over() { LD_LIBRARY_PATH=$(with both) "$@"; }
for ranks in 1 2 3 4; do
  check "every operation, type and length over stand-ins, $ranks ranks" over job $ranks $examples/check_collectives nccl
  check "60 random modules over stand-ins, $ranks ranks" over job $ranks $examples/check_sync --backend nccl --cases 60
done
check "bench collectives: every operation of nccl is correct" over column correct
check "bench allreduce times nccl" over timed

# The message of a broken driver must be printed, before anything is built.
broken_driver() {
  mkdir -p "$work/broken" && printf '#!/bin/sh\necho "Failed to initialize NVML: version mismatch"\nexit 18\n' \
    >"$work/broken/nvidia-smi" && chmod +x "$work/broken/nvidia-smi" || return 1
  PATH=$work/broken:$PATH tests/gpu/run.sh --json "$work/gpu.json" >"$work/out" 2>&1
  local status=$?
  cat "$work/out"
  [ $status -eq 2 ] && grep -q '^run.sh: nvidia-smi ends with 18 .*version mismatch; repair the driver' "$work/out"
}
check "tests/gpu/run.sh passes on why the driver does not work" broken_driver

# The waiting ranks let NCCL abort, and one line names the missing rank.
stopped() {
  refused 'nccl reduce-scatter of bucket 1 exceeded the deadline of 2 s .*missing: .*rank 2 on .*stopped' \
    over job 3 $examples/check_collectives stop reduce-scatter nccl && grep -q 'ncclCommAbort on rank 0' "$work/out"
}
away() {
  refused 'nccl all-gather of bucket 1 exceeded the deadline of 2 s .*missing: .*rank 2 on .*not in this operation' \
    over job 3 $examples/check_collectives stay all-gather nccl && grep -q 'ncclCommAbort on rank 0' "$work/out"
}
left() {
  over job 3 $examples/check_collectives leave reduce-scatter nccl >"$work/out" 2>&1 && return 1
  cat "$work/out"
  grep -q 'rank 2 on .*: the disk is full' "$work/out"
}
# NCCL reports an error on one rank. On the other ranks, the operation would never complete.
failing() {
  over job 1 $examples/check_collectives nccl : -n 1 env STANDIN_FAIL=5 $examples/check_collectives nccl \
    >"$work/out" 2>&1 && return 1
  cat "$work/out"
  grep -qE 'rank 1 on .*: nccl [a-z-]+ of .* failed after .*: an operation in flight: remote' "$work/out" &&
    grep -q 'ncclCommAbort on rank 1' "$work/out"
}
check "an error of NCCL on one rank ends the job with it" failing
check "a rank that is stopped ends the job by the deadline" stopped
check "a rank that stays away ends the job by the deadline" away
check "a rank that leaves ends the job with its reason" left
exit $failed
