#!/usr/bin/env bash
# Builds the stand-ins for the CUDA driver and for NCCL: build.sh FOLDER. LD_LIBRARY_PATH can then be
# FOLDER/both, which has both libraries, or FOLDER/driver, which has only the driver.
set -euo pipefail
cd "$(dirname "$0")"
folder=$1
mkdir -p "$folder/both" "$folder/driver"
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared -pthread)
gcc "${flags[@]}" -Wl,-soname,libcuda.so.1 -o "$folder/driver/libcuda.so.1" cuda.c
cp "$folder/driver/libcuda.so.1" "$folder/both/"
# shellcheck disable=SC2016 # the loader replaces $ORIGIN
gcc "${flags[@]}" -Wl,-soname,libnccl.so.2 -Wl,-rpath,'$ORIGIN' -o "$folder/both/libnccl.so.2" nccl.c \
  -L"$folder/both" -l:libcuda.so.1
