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
    cuda) ;; # a crate that Burn's CUDA backend uses downloads a part of LLVM
    tch)
      # libtorch is part of PyTorch's wheel. At run time, libtorch must be in the folder where it was at build
      # time.
      tests/pytorch/setup.sh
      packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
      export PATH="$PWD/.venv/bin:$PATH" LIBTORCH_USE_PYTORCH=1
      # The path of libtorch, only for the link of the program. In RUSTFLAGS, it would compile every crate
      # again.
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

# The first build of a variant (another MPI, other features) starts from a copy of an existing build and
# compiles only the crates that differ. Few crates depend on MPI, and half of all crates on no compute backend:
# a build for another MPI takes one minute instead of six.
target=${CARGO_TARGET_DIR:-target}
for like in "${target/-$MPI/}" target; do
  [ "$like" != "$target" ] && [ ! -e "$target" ] && [ -e "$like/release/mpiburn" ] || continue
  # The copy gets its final name only when it is complete.
  rm -rf "$target.part"
  mkdir -p "$target.part/release"
  cp -a --reflink=auto "$like"/release/{.fingerprint,build,deps,mpiburn} "$target.part/release"
  # The build script of mpi-sys does not notice that mpicc is another one, so its result is deleted.
  [ "$MPI" = openmpi ] ||
    cargo clean --quiet --release --target-dir "$target.part" -p mpi -p mpi-sys -p burn-mpi -p mpiburn
  mv "$target.part" "$target"
done

features=("${features[@]/flex/}")
exec "$scripts/cargo.sh" rustc --release --bin mpiburn --features "$(IFS=, ; echo "${features[*]}")" -- "${link[@]}"
