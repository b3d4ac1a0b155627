#!/usr/bin/env bash
# Builds the release binary into CARGO_TARGET_DIR: build.sh [ndarray] [tch]
set -euo pipefail

features=("$@")
for feature in "${features[@]}"; do
  case $feature in
    flex) ;; # in every build
    ndarray) ;;
    tch)
      # libtorch comes with PyTorch's wheel; its libraries are found at run
      # time where they were found at build time.
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
features=("${features[@]/flex/}")
exec cargo build --release --features "$(IFS=, ; echo "${features[*]}")"
