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
      rpath="-C link-arg=-Wl,-rpath,$packages/torch/lib"
      for folder in "$packages"/nvidia/*/lib; do
        rpath="$rpath -C link-arg=-Wl,-rpath,$folder"
      done
      export RUSTFLAGS="${RUSTFLAGS:-} $rpath"
      ;;
    *)
      echo "build: unknown device $feature in DEVICES: choose ndarray, tch or both (DEVICES=ndarray,tch)" >&2
      exit 1
      ;;
  esac
done

# Few crates depend on MPI. A first build for another MPI starts from a copy of the
# default one and rebuilds only those: one minute instead of six. mpi-sys does not
# detect another mpicc.
target=${CARGO_TARGET_DIR:-target}
like=${target/-$MPI/}
if [ "$like" != "$target" ] && [ ! -e "$target" ] && [ -e "$like/release/mpiburn" ]; then
  # Renamed only when it is complete.
  rm -rf "$target.part"
  cp -a --reflink=auto "$like" "$target.part"
  cargo clean --quiet --release --target-dir "$target.part" -p mpi -p mpi-sys -p burn-mpi -p mpiburn
  mv "$target.part" "$target"
fi

features=("${features[@]/flex/}")
exec "$scripts/cargo.sh" build --release --features "$(IFS=, ; echo "${features[*]}")"
