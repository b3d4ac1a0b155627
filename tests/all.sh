#!/usr/bin/env bash
# Runs all tests, in three levels (CONTRIBUTING.md):
#
#   tests/all.sh --lint       formatting, lints, documentation: the same as `make lint`
#   tests/all.sh --test       the checks of --lint, unit, documentation and job tests: the same as `make test`
#   tests/all.sh --landing    the other checks that a change must pass
#   tests/all.sh              all checks, including slow ones and those of other builds: `make test-all`
#   tests/all.sh --only TEXT  the checks whose names contain TEXT
#
# Each check prints `ok - NAME` or `not ok - NAME`, with its time in seconds. A check that cannot run fails,
# and names the package to install. At the end, the last lines of each failed check are printed, with the
# command that repeats it. With FAILURES=FILE, they are appended to FILE instead.
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 2

only=
case $#${1-} in
  0) level=all ;;
  1--lint | 1--test | 1--landing) level=${1#--} ;;
  2--only) level=all only=$2 ;;
  *)
    echo "tests/all.sh: choose --lint, --test, --landing, --only TEXT, or no option" >&2
    exit 2
    ;;
esac

failed=0 ran=0 job=
work=$(mktemp -d) || exit 2
trap '[ -z "$job" ] || kill -- "-$job" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
limit=$(cat tests/limit_s)
failures=$(realpath -m "${FAILURES:-$work/failures}")
: >>"$failures" || exit 2

check() { # check NAME COMMAND...; the command may describe its failures in $failures itself
  local name=$1 began=$SECONDS known status
  [[ $name = *"$only"* ]] || return 0
  ran=$((ran + 1))
  shift
  known=$(wc -c <"$failures")
  # A check runs in its own process group and writes into a file, so a process that it leaves behind does not
  # delay the script. Most checks have time limits of their own. The limit here, half an hour times $patience,
  # is for the others. The file is created before `tail` reads it.
  : >"$work/log"
  set -m
  "$@" >"$work/log" 2>&1 </dev/null &
  job=$!
  set +m
  timeout $((15 * limit * ${patience:-1})) tail -n +1 -f --pid=$job "$work/log" ||
    { echo "ended after $((SECONDS - began)) s" | tee -a "$work/log"; kill -KILL -- "-$job"; }
  wait "$job"
  status=$?
  job=
  if [ $status -eq 0 ]; then
    echo "ok - $name, $((SECONDS - began)) s"
    return
  fi
  echo "not ok - $name, $((SECONDS - began)) s"
  failed=1
  [ "$(wc -c <"$failures")" -gt "$known" ] ||
    printf 'not ok - %s\n%s\n  repeat: tests/all.sh --only %q\n' \
      "$name" "$({ grep '^not ok - ' "$work/log"; tail -n 20 "$work/log"; } | sed 's/^/    /')" "$name" >>"$failures"
}

as_root=$([ "$(id -u)" -eq 0 ] && echo --allow-run-as-root)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}
bin=target/release/mpiburn
data=${DATA:-data/digits}

small_data() {
  [ -e "$work/digits" ] || $bin data digits --out "$work/digits" --train 2000 --test 500
}

# Trains shortly on another compute backend. The training must reach a minimum accuracy.
train_on() { # train_on DEVICE BINARY [PRECISION]
  local device=$1 binary=$2 precision=${3:-no} out=$work/$1${3:-}
  small_data && mpirun $as_root -n 2 --bind-to core "$binary" train --data-root "$work/digits" \
    --epochs 2 --lr 2e-3 --log-every 10 --device "$device" --precision "$precision" --out "$out" &&
    grep -q "\"device\": \"$device\"" "$out/run.json" && grep -q "\"precision\": \"$precision\"" "$out/run.json" &&
    awk -F'[:,]' '/^  "test_accuracy"/ { found = 1; if ($2 + 0 < 75) { print "accuracy" $2; low = 1 } }
      END { if (!found) print "no test accuracy"; exit low || !found }' "$out/run.json"
}

# With overlap, gradients are read during backward, bucket by bucket, and the weights must be the same as
# without overlap. Gradients on a GPU take this path; here it is tested with a backend that runs on the CPU.
overlap_on() { # overlap_on DEVICE BINARY
  local device=$1 binary=$2 overlap out
  small_data || return 1
  for overlap in on off; do
    out=$work/overlap-$device-$overlap
    mpirun $as_root -n 2 --bind-to core "$binary" train --data-root "$work/digits" --epochs 1 --train-samples 641 \
      --bucket-mb 0.004 --overlap "$overlap" --device "$device" -v --out "$out" >"$out.log" 2>&1 || { cat "$out.log"; return 1; }
    cat "$out.log"
  done
  grep -q "buckets of .*, overlap active" "$work/overlap-$device-on.log" &&
    [ "$(grep '"weights_sha256"' "$work/overlap-$device-on/run.json")" = \
      "$(grep '"weights_sha256"' "$work/overlap-$device-off/run.json")" ]
}

# Without a GPU, the program prints one line. (PyTorch is installed here without CUDA.)
no_gpu_for_libtorch() {
  small_data || return 1
  mpirun $as_root -n 2 --bind-to core target-ndarray-tch/release/mpiburn train --data-root "$work/digits" \
    --device tch-cuda:0 >"$work/refused" 2>&1 && return 1
  cat "$work/refused"
  [ "$(grep -c '^mpiburn: ' "$work/refused")" -eq 1 ] &&
    grep -q 'rank 0 on .*: --device tch-cuda:0: libtorch sees no GPU, or was built without CUDA; run on' "$work/refused"
}

# The table of `bench fused` must have a row for each backend, at 2 and 10 layers.
fused_on_all_backends() {
  small_data && target-ndarray-tch/release/mpiburn bench fused --data-root "$work/digits" \
    --train-samples 640 --csv "$work/fused.csv" &&
    awk -F, 'NR > 1 { if ($6 + 0 > 0 && $7 + 0 > 0 && $8 + 0 > 0) rows[$1]++; else bad = 1 }
      END { exit bad || rows["fused"] * rows["unfused"] * rows["ndarray"] * rows["tch"] != 16 }' "$work/fused.csv"
}

# The profile must have a row for each layer, in forward and in backward.
operators_of_other_devices() {
  flex_run || return
  python3 tests/profile/devices.py target-ndarray-tch/release/mpiburn "$work/flex" ndarray tch
}

# Makes the run that other checks read, unless it exists.
flex_run() { [ -e "$work/flex/run.json" ] || train_on flex $bin; }

tensorboard_opens() {
  flex_run || return
  .venv/bin/python tests/pytorch/read_events.py "$work/flex/tensorboard"
}

# numpy and onnxruntime read the int8 model and the ONNX files of the run of `flex_run`.
int8_and_onnx_files() {
  flex_run || return
  $bin quantize "$work/flex" && $bin eval --checkpoint "$work/flex" --int8 --logits "$work/int8.npy" &&
    .venv/bin/python tests/pytorch/read_int8.py "$work"/flex/checkpoints/step-*/int8.safetensors "$work/digits" \
      "$work/int8.npy" &&
    .venv/bin/python tests/pytorch/onnx_check.py "$work/flex" "$work/digits"
}

# A failed test must be named with its reason and the command that repeats it, whatever the test printed.
failures_are_described() {
  printf '<testsuites><testsuite><testcase classname="c" name="m::t" time="0.1"><failure message="why" type="signal 6"/><system-err>\xef\xbf\xbe\x07last</system-err></testcase></testsuite></testsuites>' >"$work/junit.xml"
  python3 tests/summary.py "$work/junit.xml" "$work/described" && sed 's/^/    /' "$work/described" &&
    [ "$(grep -cE "^not ok - c m::t$|^    signal 6: why$|last$|^  repeat: .*'test\(=m::t\)'$" "$work/described")" -eq 4 ]
}

unit_and_job_tests() {
  local junit=target/nextest/default/junit.xml
  rm -f "$junit"
  cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest || return
  # Tests of jobs wait for deadlines nearly half of their time.
  scripts/cargo.sh nextest run --release --workspace --test-threads $((($(nproc) * 3 + 1) / 2))
  local status=$?
  [ ! -e "$junit" ] || python3 tests/summary.py "$junit" "$failures"
  return $status
}

with_debug_assertions() {
  scripts/cargo.sh nextest run --cargo-profile bench --workspace --lib
}

first_losses_as_pytorch() {
  .venv/bin/python tests/pytorch/compare.py --first-losses --data "$data" &&
    .venv/bin/python tests/pytorch/accuracy.py --only mlp --seeds 0
}

trains_over_mpich() {
  small_data && mpirun.mpich -n 2 target-mpich/release/mpiburn train --data-root "$work/digits" --epochs 1 \
    --out "$work/mpich" && grep -q '"status": "completed"' "$work/mpich/run.json"
}

recipes_as_pytorch() {
  scripts/cargo.sh build --release --workspace --example check_recipes && .venv/bin/python tests/pytorch/recipes.py
}

# Burn's CUDA backend must compile without a GPU. The build script of a crate that it uses would download
# LLVM. `cargo check` links nothing and does not need LLVM; with DOCS_RS set, the build script skips the
# download.
cuda_compiles() {
  DOCS_RS=1 scripts/cargo.sh check --locked --release --target-dir target-cuda-check --features cuda
}

# run-report, launch and data must build on a machine without MPI: mpicc is not in PATH.
builds_without_mpi() {
  local tools=$work/tools tool run=$work/mpich
  mkdir -p "$tools"
  for tool in cargo rustc cc ld ar; do ln -sf "$(command -v $tool)" "$tools/$tool"; done
  [ -e "$run/run.json" ] || { run=$work/flex && flex_run; } || return
  PATH=$tools cargo build --locked --release --package run-report &&
    PATH=$tools cargo check --locked --release --package launch --package data --all-targets &&
    target/release/run-report --format csv "$run" | grep -q '^1x2,mpi,'
}

# A release is a tag. The lists of interfaces (tests/api) show each change; this check names those that break
# programs, so that the version's second number must change.
changes_since_the_last_release() {
  local tag
  tag=$(git describe --tags --abbrev=0 2>/dev/null) || { echo "there is no tag yet"; return; }
  cargo semver-checks --version >/dev/null 2>&1 || cargo install --locked cargo-semver-checks || return
  # Not with every feature: the build of `cuda` downloads LLVM.
  cargo semver-checks --baseline-rev "$tag" --only-explicit-features --package burn-fused --features mimalloc &&
    cargo semver-checks --baseline-rev "$tag" --only-explicit-features --package burn-mpi --features gloo,train
}

# docs.rs builds with a nightly compiler and without MPI and gloo: mpicc and libclang are not found.
documentation_of_docs_rs() {
  local options
  for options in "burn-fused --features mimalloc" "burn-mpi --features gloo,train" burn-mpi-nccl; do
    # shellcheck disable=SC2086 # several options
    DOCS_RS=1 RUSTC_BOOTSTRAP=1 RUSTFLAGS="--cfg burn_mpi_docs" RUSTDOCFLAGS="--cfg burn_mpi_docs --cfg docsrs -D warnings" MPICC=/no/mpicc \
      LIBCLANG_PATH=/no/libclang cargo doc --locked --no-deps --target-dir target-docs-rs --package $options || return
  done
  grep -q 'fn.run.html' target-docs-rs/doc/burn_mpi/index.html && grep -q 'crate feature' target-docs-rs/doc/burn_mpi/fn.run.html
}

# The workspace's build enables features that a user of one library may leave out.
lints_of_each_library() {
  local options
  for options in burn-fused "burn-mpi --no-default-features" "burn-mpi --features gloo,train" \
    "mpiburn --features examples"; do
    # shellcheck disable=SC2086 # several options
    scripts/cargo.sh clippy --release --all-targets --package $options -- -D warnings || return
  done
}

# Starts without old pages, because pages of items that no longer exist would stay.
documentation() {
  rm -rf "$CARGO_TARGET_DIR/doc"
  RUSTDOCFLAGS="-D warnings" scripts/cargo.sh doc --release --workspace --no-deps && tests/api/check.sh
}

# The programs outside the workspace are built with --locked. If a dependency changes, their lock files must
# change too.
lock_files_are_current() {
  local manifest
  for manifest in Cargo.toml fuzz/Cargo.toml tests/outside/Cargo.toml; do
    cargo update --workspace --locked --manifest-path "$manifest" || return
  done
}

# The first block of README.md must be `make run` and `make test`, and .ci/run must call both commands.
readme_and_ci_agree() {
  local commands command
  commands=$(awk '/^```sh$/ { inside = 1; next } /^```$/ && inside { exit } inside { sub(/ *#.*/, ""); print }' README.md)
  printf '%s\n' "$commands"
  [ "$commands" = $'make run\nmake test' ] || { echo "README.md: the first block is not make run and make test"; return 1; }
  while read -r command; do
    grep -qxF "  run $command" .ci/run || { echo ".ci/run: does not call $command"; return 1; }
  done <<<"$commands"
}

lint_level() {
  check "lock files are current" lock_files_are_current
  check "README's first commands are those that .ci/run calls" readme_and_ci_agree
  check "formatting" cargo fmt --all --check
  check "lints" scripts/cargo.sh clippy --release --workspace --all-targets -- -D warnings
  check "documentation without warnings, of the listed interfaces" documentation
}

test_level() {
  lint_level
  check "failures are described" failures_are_described
  check "unit tests and job tests" unit_and_job_tests
  check "documentation tests" scripts/cargo.sh test --release --workspace --doc
}

landing_level() {
  check "packages" scripts/setup.sh --all
  check "PyTorch's environment" tests/pytorch/setup.sh
  check "the default data set" make --no-print-directory data
  check "instructions of a step of each network" tests/icount/run.sh
  check "first losses of convnet and mlp equal PyTorch's" first_losses_as_pytorch
  check "the packed libraries, and programs that depend on them and Burn alone" tests/outside/run.sh
  check "a build for MPICH" make --no-print-directory build MPI=mpich
  check "averaged gradients of random modules, over MPICH" env MPI=mpich tests/sync/all.sh 25
  check "a training over MPICH" trains_over_mpich
  check "two nodes: the weights of a training at 2x2 are those of 1x4" tests/cluster/same_weights.sh mpi
  check "Slurm: a job on two nodes" env ONLY='two idle nodes|2x2 by mpirun' tests/slurm/check.sh
  check "the report in a browser" tests/report/check.sh
  check "the report, the launcher and data sets without MPI" builds_without_mpi
}

# Checks that need other builds or take long.
release_level() {
  check "unit tests with debug assertions" with_debug_assertions
  check "lints of the libraries with few features" lints_of_each_library
  check "documentation as docs.rs builds it" documentation_of_docs_rs
  check "the interfaces since the last release" changes_since_the_last_release
  check "training on flex" flex_run
  check "imports without the readers of some sources" cargo test --locked --release --package data --no-default-features
  check "TensorBoard opens the event files" tensorboard_opens
  check "numpy and onnxruntime compute what int8 and ONNX files say" int8_and_onnx_files
  check "losses and accuracy equal PyTorch's" .venv/bin/python tests/pytorch/compare.py --data "$data"
  check "optimizers, schedules and penalties equal PyTorch's" recipes_as_pytorch
  check "errors of PowerSGD are those of PyTorch's hook" .venv/bin/python tests/pytorch/powersgd.py
  check "pixels of imported pictures equal Pillow's" .venv/bin/python tests/pytorch/pictures.py
  check "names, weights and losses of every network equal PyTorch's" .venv/bin/python tests/pytorch/state_dicts.py
  check "losses and accuracy of mlp equal PyTorch's" .venv/bin/python tests/pytorch/accuracy.py --only mlp
  check "first losses of vgg equal PyTorch's" .venv/bin/python tests/pytorch/accuracy.py --only vgg --seeds 0
  check "quantization-aware training equals PyTorch's" .venv/bin/python tests/pytorch/quantized.py --data "$data"
  check "a build with ndarray and tch" make --no-print-directory build DEVICES=ndarray,tch
  check "training on ndarray" train_on ndarray target-ndarray-tch/release/mpiburn
  check "training on tch" train_on tch target-ndarray-tch/release/mpiburn
  check "training on tch in bf16" train_on tch target-ndarray-tch/release/mpiburn bf16
  check "overlap with backward on ndarray" overlap_on ndarray target-ndarray-tch/release/mpiburn
  check "overlap with backward on tch" overlap_on tch target-ndarray-tch/release/mpiburn
  check "libtorch without a GPU" no_gpu_for_libtorch
  check "operators of ndarray and tch" operators_of_other_devices
  check "the fused operator and Burn's on each backend" fused_on_all_backends
  check "NCCL's refusals, and its calls over stand-ins for the GPU" tests/gpu/check.sh
  patience=4 check "Burn's CUDA backend compiles" cuda_compiles
  check "averaged gradients of 100 random modules, over MPICH" env MPI=mpich tests/sync/all.sh 100
  check "a rank that fails ends the job, over MPICH" env MPI=mpich tests/sync/failures.sh
  check "a killed rank is started again, over MPICH" tests/faults/restart.sh target-mpich/release/mpiburn 1x2
  check "two nodes of one machine" tests/cluster/check.sh
  check "the image of the Dockerfile" tests/container/run.sh
  check "two nodes: trainings with both MPIs, and with a broken link" tests/cluster/train.sh
  check "two nodes: deployment over ssh" tests/cluster/deploy.sh
  check "two nodes: equal weights over mpi and gloo, on one and two machines" tests/cluster/same_weights.sh
  check "Slurm on two nodes" tests/slurm/check.sh
  check "time lines of 2 and 3 ranks, over mpi and gloo" tests/trace/check.sh
  check "40 random faults in training jobs" make --no-print-directory faults N=40 SEED=1
  patience=4 check "sanitizers" make --no-print-directory sanitize
  check "a soak test of 10 minutes" make --no-print-directory soak MINUTES=10
}

case $level in
  lint) lint_level ;;
  test) test_level ;;
  landing) landing_level ;;
  all) test_level; landing_level; release_level ;;
esac
[ $ran -gt 0 ] || { echo "tests/all.sh: no check has \"$only\" in its name" >&2 && exit 2; }
[ -n "${FAILURES-}" ] || [ ! -s "$failures" ] || { echo && cat "$failures"; }
exit $failed
