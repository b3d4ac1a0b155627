#!/usr/bin/env bash
# Builds the release binary into CARGO_TARGET_DIR: build.sh [ndarray] [tch] [cuda] [nccl]
# MPI=mpich builds it for MPICH.
set -euo pipefail
scripts=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$scripts/mpi.sh"

features=("$@")
link=()
for feature in "${features[@]}"; do
  case $feature in
    flex) ;; # in every build
    ndarray | nccl) ;;
    cuda) ;; # a part of LLVM is downloaded by a crate below Burn's CUDA backend
    tch)
      # libtorch is part of PyTorch's wheel; at run time its libraries must be
      # where they were at build time.
      tests/pytorch/setup.sh
      packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
      export PATH="$PWD/.venv/bin:$PATH" LIBTORCH_USE_PYTORCH=1
      # For the program's link alone: in RUSTFLAGS they would compile every crate once more.
      for folder in "$packages"/torch/lib "$packages"/nvidia/*/lib; do
        [ -d "$folder" ] && link+=(-C "link-arg=-Wl,-rpath,$folder")
      done
      ;;
    *)
      echo "build: unknown device $feature in DEVICES: choose from ndarray, tch, cuda and nccl (DEVICES=ndarray,tch)" >&2
      exit 1
      ;;
  esac
done

# Few crates depend on MPI, and half of the build on no compute backend. The first build of a
# variant starts from a copy of a build that is there and compiles only what differs: one minute
# instead of six for another MPI.
target=${CARGO_TARGET_DIR:-target}
for like in "${target/-$MPI/}" target; do
  [ "$like" != "$target" ] && [ ! -e "$target" ] && [ -e "$like/release/mpiburn" ] || continue
  # Renamed only when it is complete.
  rm -rf "$target.part"
  mkdir -p "$target.part/release"
  cp -a --reflink=auto "$like"/release/{.fingerprint,build,deps,mpiburn} "$target.part/release"
  # mpi-sys does not detect another mpicc.
  [ "$MPI" = openmpi ] ||
    cargo clean --quiet --release --target-dir "$target.part" -p mpi -p mpi-sys -p burn-mpi -p mpiburn
  mv "$target.part" "$target"
done

features=("${features[@]/flex/}")
exec "$scripts/cargo.sh" rustc --release --bin mpiburn --features "$(IFS=, ; echo "${features[*]}")" -- "${link[@]}"
