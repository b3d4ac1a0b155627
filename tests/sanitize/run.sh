#!/usr/bin/env bash
# Searches the crates with unsafe code for memory errors and data races:
#
#   tests/sanitize/run.sh             all three parts
#   tests/sanitize/run.sh asan        AddressSanitizer: unit tests of burn-fused and burn-mpi, and two-rank trainings
#                                     over MPI and gloo; needs a nightly Rust toolchain
#   tests/sanitize/run.sh memcheck    valgrind: some of these unit tests (the filters below), because valgrind is slow,
#                                     and a two-rank job of burn-mpi's examples; needs valgrind
#   tests/sanitize/run.sh tsan        ThreadSanitizer: unit tests of burn-mpi, tests in which ranks are threads that
#                                     run at the same time, and two-rank trainings over MPI and gloo; needs a
#                                     nightly Rust toolchain with rust-src, or apt-get
#
# AddressSanitizer and ThreadSanitizer have builds of their own, in target-asan and target-tsan: each compiles
# all of Burn again. AddressSanitizer does not instrument the layers in C and C++; memcheck checks them.
# Programs use malloc, not mimalloc.
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpirun=$(mpi_command mpirun) || exit 1
host=x86_64-unknown-linux-gnu
parts=${*:-asan memcheck tsan}
for part in $parts; do
  case $part in
    asan | memcheck | tsan) ;;
    *)
      echo "sanitize: unknown part $part: choose from asan, memcheck and tsan, or none for all" >&2
      exit 2
      ;;
  esac
done

# Programs are many times slower here, so the limit is ten times the usual one.
two_ranks() { # two_ranks COMMAND...
  local options=()
  [ "$MPI" != openmpi ] || options=(--bind-to core:overload-allowed --oversubscribe)
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout $((10 * limit)) "$mpirun" -n 2 "${options[@]}" "$@"
}

# Prints the path of a crate's unit tests, from the output of cargo in $work/built.
tests_of() { # tests_of CRATE
  sed -nE "s|.*\((.*/deps/${1//-/_}-[0-9a-f]+)\)$|\1|p" "$work/built" | head -n 1
}

built_tests() { # built_tests CRATE
  "$(tests_of "$1")" --test-threads=1 2>&1 | tee "$work/tests"
  local status=${PIPESTATUS[0]}
  note=$(sed -nE 's/^test result: ok. ([0-9]+ passed).*/\1/p' "$work/tests")
  [ "$status" -eq 0 ] && [ -n "$note" ]
}

# ---- AddressSanitizer

asan_build() {
  export RUSTUP_TOOLCHAIN=nightly CARGO_TARGET_DIR=target-asan
  export RUSTFLAGS="-Zsanitizer=address --cfg system_allocator -Cdebuginfo=line-tables-only"
  scripts/cargo.sh test --workspace --release --lib --no-run --target $host >"$work/built" 2>&1 &&
    scripts/cargo.sh build --workspace --release --bins --target $host
  local status=$?
  cat "$work/built"
  unset RUSTUP_TOOLCHAIN CARGO_TARGET_DIR RUSTFLAGS
  # `grep -c` reads to the end. `grep -q` would leave at the first match, and nm would fail.
  [ $status -eq 0 ] && nm target-asan/$host/release/mpiburn | grep -c __asan_report
}

# Memory that an MPI library keeps until the end is not a leak of this program.
export ASAN_OPTIONS=detect_leaks=0

asan_job() { # asan_job BACKEND MODEL
  local program=target-asan/$host/release/mpiburn kind=digits samples=2
  [ "$2" != vgg ] || kind=objects samples=1
  [ -d "$work/$kind" ] || "$program" -q data $kind --train 320 --test 64 --out "$work/$kind" || return
  two_ranks "$program" train --data-root "$work/$kind" --model "$2" --backend "$1" --epochs $samples \
    --train-batch-size 16 --checkpoint-every 7 --shuffle --quantize qat --out "$work/$1-$2" &&
    "$program" eval --checkpoint "$work/$1-$2"
}

asan() {
  local cargo
  if ! cargo=$(RUSTUP_TOOLCHAIN=nightly cargo --version 2>&1) || [[ $cargo != *nightly* ]]; then
    echo "not ok - AddressSanitizer: no nightly Rust toolchain; run rustup toolchain install nightly"
    failed=1
    return
  fi
  check "build for AddressSanitizer" asan_build
  [ $failed -eq 0 ] || return
  for crate in burn-fused burn-mpi; do
    check "AddressSanitizer: unit tests of $crate" built_tests $crate
  done
  check "AddressSanitizer: two ranks train convnet over MPI" asan_job mpi convnet
  check "AddressSanitizer: two ranks train vgg over MPI" asan_job mpi vgg
  check "AddressSanitizer: two ranks train convnet over gloo" asan_job gloo convnet
}

# ---- memcheck

# Each MPI's own list of valgrind's reports about it.
suppressions=()
for file in /usr/share/openmpi/openmpi-valgrind.supp /usr/share/mpich/mpich-valgrind.supp; do
  [ ! -e $file ] || suppressions+=("--suppressions=$file")
done
suppressions+=("--suppressions=$PWD/tests/sanitize/memcheck.supp")
memcheck=(valgrind --quiet --error-exitcode=9 --leak-check=no --fair-sched=yes "${suppressions[@]}")

memcheck_build() {
  scripts/cargo.sh test --workspace --release --lib --no-run >"$work/built" 2>&1 &&
    scripts/cargo.sh build --workspace --release --examples
  local status=$?
  cat "$work/built"
  return $status
}

# Without burn-fused's convolutions and integer models, because one of their tests takes minutes under
# valgrind.
few=(fake_quantize:: half:: linear:: loss:: memory:: norm:: precision:: simd:: words::)

memcheck_tests() { # memcheck_tests CRATE [PART OF A TEST'S NAME]...
  local crate=$1
  shift
  RAYON_NUM_THREADS=2 "${memcheck[@]}" "$(tests_of "$crate")" --test-threads=1 "$@" 2>&1 | tee "$work/tests"
  local status=${PIPESTATUS[0]}
  note=$(sed -nE 's/^test result: ok. ([0-9]+ passed).*/\1/p' "$work/tests")
  [ "$status" -eq 0 ] && [ -n "$note" ]
}

memcheck_job() { # memcheck_job EXAMPLE [ARGUMENT]...
  local example=$1
  shift
  two_ranks "${memcheck[@]}" "${CARGO_TARGET_DIR:-target}/release/examples/$example" "$@"
}

memcheck() {
  if ! command -v valgrind >/dev/null; then
    echo "not ok - memcheck: no valgrind; run scripts/setup.sh --all"
    failed=1
    return
  fi
  check "build for memcheck" memcheck_build
  [ $failed -eq 0 ] || return
  check "memcheck: unit tests of burn-fused" memcheck_tests burn-fused "${few[@]}"
  check "memcheck: unit tests of burn-mpi" memcheck_tests burn-mpi
  check "memcheck: two ranks synchronise modules of every type" memcheck_job check_modules mpi
}

# ---- ThreadSanitizer

# The standard library is compiled for ThreadSanitizer too; otherwise, synchronization inside it would not be
# seen. The C compiler instruments burn-mpi's layers over MPI and gloo. The libraries below these layers are
# not instrumented; ThreadSanitizer knows the names of the synchronizing functions that they call.
tsan_build() {
  if ! tsan_compiler; then
    echo "no standard library to compile: run rustup toolchain install nightly --component rust-src"
    return 1
  fi
  local what
  for what in "test --lib --no-run --features gloo" "build --example own_model --example check_modules --features gloo" \
    "test --test threads --no-run --no-default-features"; do
    # shellcheck disable=SC2086 # words
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target-tsan \
      RUSTFLAGS="-Zsanitizer=thread --cfg system_allocator -Cdebuginfo=line-tables-only" \
      CFLAGS_x86_64_unknown_linux_gnu="-fsanitize=thread -g1" CXXFLAGS_x86_64_unknown_linux_gnu="-fsanitize=thread -g1" \
      scripts/cargo.sh $what --locked --release -p burn-mpi -Zbuild-std --target $host \
      --config 'profile.release.opt-level=1' >>"$work/built" 2>&1 || { cat "$work/built"; return 1; }
  done
  nm "target-tsan/$host/release/examples/own_model" | grep -c __tsan_read
}

# Uses a nightly toolchain with the standard library's sources, or Debian's compiler. Debian's lacks the
# sanitizer's runtime, which is copied from the installed toolchain.
tsan_compiler() {
  local installed
  installed=$(RUSTUP_TOOLCHAIN=nightly rustc --print sysroot 2>&1) &&
    [ -e "$installed/lib/rustlib/src/rust/library/Cargo.lock" ] && export RUSTUP_TOOLCHAIN=nightly && return
  command -v apt-get >/dev/null || return
  installed=$(rustc --print target-libdir)
  # shellcheck source-path=SCRIPTDIR source=../debian_rust.sh
  . tests/debian_rust.sh
  debian_rust target-tsan/debian rust-web-src &&
    cp "$installed"/librustc-stable_rt.tsan.a "$("$RUSTC" --print target-libdir)"
}

tsan_job() { # tsan_job EXAMPLE [ARGUMENT]...
  local example=$1
  shift
  two_ranks "target-tsan/$host/release/examples/$example" "$@"
}

tsan() {
  : >"$work/built"
  check "build for ThreadSanitizer" tsan_build
  [ $failed -eq 0 ] || return
  export TSAN_OPTIONS="exitcode=9 halt_on_error=0 suppressions=$PWD/tests/sanitize/tsan.supp"
  check "ThreadSanitizer: unit tests of burn-mpi" built_tests burn-mpi
  # Without MPI, all code except libc is instrumented.
  TURNS=off check "ThreadSanitizer: ranks that are threads and run at the same time" built_tests threads
  check "ThreadSanitizer: two ranks synchronise modules of every type" tsan_job check_modules mpi
  for backend in mpi gloo; do
    check "ThreadSanitizer: two ranks train over $backend" tsan_job own_model $backend
  done
}

for part in $parts; do
  before=$failed failed=0
  $part
  failed=$((failed | before))
done
exit $failed
