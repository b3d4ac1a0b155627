#!/usr/bin/env bash
# What only a machine with a GPU can show: trainings and steps on it, a table, and a JSON file.
#
#   tests/gpu/run.sh                     builds with Burn's CUDA backend; needs NVIDIA's driver
#   tests/gpu/run.sh --json gpu.json     the file; results/gpu.json otherwise
#   tests/gpu/run.sh --python PYTHON     a Python that has PyTorch for CUDA, for the row beside it
#   tests/gpu/run.sh --device flex       the same on the CPU, to try the script itself
#
# Exit code 1 if a check fails, 2 if the machine cannot make them.
exec python3 "$(dirname "$(readlink -f "$0")")/table.py" "$@"
