#!/usr/bin/env bash
# Checks that need a machine with a GPU: trainings and steps on the GPU. Writes a table and a JSON file.
#
#   tests/gpu/run.sh                     builds with Burn's CUDA backend; needs NVIDIA's driver
#   tests/gpu/run.sh --json gpu.json     writes this file; the default is results/gpu.json
#   tests/gpu/run.sh --python PYTHON     a Python with PyTorch for CUDA; its step of vgg is then measured too
#   tests/gpu/run.sh --device flex       runs on the CPU instead of a GPU, to try the script itself
#
# Exit code 1 if a check fails, 2 if the machine cannot run the checks.
exec python3 "$(dirname "$(readlink -f "$0")")/table.py" "$@"
