#!/usr/bin/env bash
# Builds the release binary into CARGO_TARGET_DIR: build.sh [ndarray] [tch]
# MPI=mpich builds it for MPICH.
set -euo pipefail
scripts=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$scripts/mpi.sh"

features=("$@")
for feature in "${features[@]}"; do
  case $feature in
    flex) ;; # in every build
    ndarray) ;;
    tch)
      # libtorch is part of PyTorch's wheel; at run time its libraries must be
      # where they were at build time.
      tests/pytorch/setup.sh
      packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
      export PATH="$PWD/.venv/bin:$PATH" LIBTORCH_USE_PYTORCH=1
      # For build.rs. In RUSTFLAGS it would compile every crate anew.
      MPIBURN_RPATH=$packages/torch/lib
      for folder in "$packages"/nvidia/*/lib; do
        MPIBURN_RPATH+=:$folder
      done
      export MPIBURN_RPATH
      ;;
    *)
      echo "build: unknown device $feature in DEVICES: choose ndarray, tch or both (DEVICES=ndarray,tch)" >&2
      exit 1
      ;;
  esac
done

# Few crates depend on MPI or on the devices. The first build of a variant starts from a copy
# of the default one and compiles only those: for another MPI one minute instead of six.
target=${CARGO_TARGET_DIR:-target}
like=$(dirname "$target")/target
if [ ! -e "$target" ] && [ -e "$like/release/mpiburn" ]; then
  # Renamed only when it is complete.
  rm -rf "$target.part"
  cp -a --reflink=auto "$like" "$target.part"
  # mpi-sys does not detect another mpicc.
  [ "$MPI" = openmpi ] ||
    cargo clean --quiet --release --target-dir "$target.part" -p mpi -p mpi-sys -p burn-mpi -p mpiburn
  mv "$target.part" "$target"
fi

features=("${features[@]/flex/}")
exec "$scripts/cargo.sh" build --release --features "$(IFS=, ; echo "${features[*]}")"
