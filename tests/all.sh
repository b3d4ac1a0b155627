#!/usr/bin/env bash
# Tests that need other builds or large packages. Each prints `ok - NAME` or
# `not ok - NAME`, with its seconds; one that cannot run has failed, and names the package to
# install.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # check NAME COMMAND...
  local name=$1 began=$SECONDS
  shift
  if "$@" >"$work/log" 2>&1; then
    tail -n 4 "$work/log"
    echo "ok - $name, $((SECONDS - began)) s"
  else
    cat "$work/log"
    echo "not ok - $name, $((SECONDS - began)) s"
    failed=1
  fi
}

as_root=$([ "$(id -u)" -eq 0 ] && echo --allow-run-as-root)
bin=target/release/mpiburn

small_data() {
  [ -e "$work/digits" ] || $bin data digits --out "$work/digits" --train 2000 --test 500
}

# A short training on another compute backend, which must reach a minimum accuracy.
train_on() {
  local device=$1 binary=$2
  small_data && mpirun $as_root -n 2 --bind-to core "$binary" train --data-root "$work/digits" \
    --epochs 2 --lr 2e-3 --log-every 10 --device "$device" --out "$work/$device" &&
    grep -q "\"device\": \"$device\"" "$work/$device/run.json" &&
    awk -F'[:,]' '/^  "test_accuracy"/ { found = 1; if ($2 + 0 < 75) { print "accuracy" $2; low = 1 } }
      END { if (!found) print "no test accuracy"; exit low || !found }' "$work/$device/run.json"
}

# The table of the fused operator has a row for each backend, at 2 and 10 layers.
fused_on_all_backends() {
  small_data && target-ndarray-tch/release/mpiburn bench fused --data-root "$work/digits" \
    --train-samples 640 --csv "$work/fused.csv" &&
    awk -F, 'NR > 1 { if ($6 + 0 > 0 && $7 + 0 > 0 && $8 + 0 > 0) rows[$1]++; else bad = 1 }
      END { exit bad || rows["fused"] * rows["unfused"] * rows["ndarray"] * rows["tch"] != 16 }' "$work/fused.csv"
}

tensorboard_opens() {
  .venv/bin/python tests/pytorch/read_events.py "$work/flex/tensorboard"
}

# The int8 model and the ONNX files of the run on flex, read by numpy and onnxruntime.
int8_and_onnx_files() {
  $bin quantize "$work/flex" && $bin eval --checkpoint "$work/flex" --int8 --logits "$work/int8.npy" &&
    .venv/bin/python tests/pytorch/read_int8.py "$work"/flex/checkpoints/step-*/int8.safetensors "$work/digits" \
      "$work/int8.npy" &&
    .venv/bin/python tests/pytorch/onnx_check.py "$work/flex" "$work/digits"
}

recipes_as_pytorch() {
  scripts/cargo.sh build --release --workspace --example check_recipes && .venv/bin/python tests/pytorch/recipes.py
}

check "packages" scripts/setup.sh --all
check "PyTorch's environment" tests/pytorch/setup.sh
# Counts of instructions do not depend on load: one core runs valgrind while the other compiles.
tests/icount/run.sh >"$work/icount" 2>&1 &
counting=$!
counted() {
  wait "$counting"
  local status=$?
  cat "$work/icount"
  return $status
}
check "a build with ndarray and tch" make --no-print-directory build DEVICES=ndarray,tch
check "training on flex" train_on flex $bin
check "training on ndarray" train_on ndarray target-ndarray-tch/release/mpiburn
check "training on tch" train_on tch target-ndarray-tch/release/mpiburn
check "the fused operator and Burn's on each backend" fused_on_all_backends
check "instructions of a step of each network" counted
check "TensorBoard opens the event files" tensorboard_opens
check "numpy and onnxruntime compute what int8 and ONNX files say" int8_and_onnx_files
check "losses and accuracy equal PyTorch's" .venv/bin/python tests/pytorch/compare.py correct --data "${DATA:-data/digits}"
check "optimizers, schedules and penalties equal PyTorch's" recipes_as_pytorch
check "names, weights and losses of every network equal PyTorch's" .venv/bin/python tests/pytorch/state_dicts.py
check "losses and accuracy of mlp equal PyTorch's" .venv/bin/python tests/pytorch/accuracy.py --only mlp
check "first losses of vgg equal PyTorch's" .venv/bin/python tests/pytorch/accuracy.py --only vgg --seeds 0
check "quantization-aware training equals PyTorch's" .venv/bin/python tests/pytorch/quantized.py --data "${DATA:-data/digits}"
check "a program outside the workspace that depends on burn-mpi alone" tests/outside/run.sh
check "a build for MPICH" make --no-print-directory build MPI=mpich
check "averaged gradients of random modules, over MPICH" env MPI=mpich tests/sync/all.sh 100
check "a rank that fails ends the job, over MPICH" env MPI=mpich tests/sync/failures.sh
check "two nodes of one machine" tests/cluster/check.sh
check "two nodes: trainings with both MPIs, and with a broken link" tests/cluster/train.sh
check "two nodes: deployment over ssh" tests/cluster/deploy.sh
check "two nodes: equal weights over mpi and gloo, on one and two machines" tests/cluster/same_weights.sh
check "Slurm on two nodes" tests/slurm/check.sh
check "40 random faults in training jobs" make --no-print-directory faults N=40 SEED=1
check "time lines of 2 and 3 ranks, over mpi and gloo" tests/trace/check.sh
check "the report in a browser" tests/report/check.sh
check "predicted times on two nodes" tests/report/predict.sh
exit $failed
