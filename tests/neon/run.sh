#!/usr/bin/env bash
# Runs the unit tests of burn-fused on aarch64, where burn-fused uses NEON:
#
#   tests/neon/run.sh              all of them
#   tests/neon/run.sh winograd     those whose name has this part
#
# On another processor, the tests are cross-compiled and run under QEMU's emulation. If the installed compiler
# has the target (rustup target add aarch64-unknown-linux-gnu), it is used. Otherwise, Debian's compiler is
# unpacked into target-neon, but not installed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

target=aarch64-unknown-linux-gnu
export CARGO_TARGET_DIR=target-neon
cargo=(cargo test --locked --release -p burn-fused --lib --target $target -- --test-threads=2 "$@")
[ "$(uname -m)" != aarch64 ] || exec "${cargo[@]}"

die() {
  echo "neon: $*" >&2
  exit 1
}
cross=$target-gcc
cross=${cross/-unknown/}
for command in "$cross" qemu-aarch64-static; do
  command -v "$command" >/dev/null ||
    die "no $command; run apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
done

if [ ! -e "$(rustc --print target-libdir --target $target)" ]; then
  command -v apt-get >/dev/null || die "the Rust compiler has no $target; run rustup target add $target"
  # shellcheck source-path=SCRIPTDIR source=../debian_rust.sh
  . tests/debian_rust.sh
  debian_rust target-neon/debian libstd-rust-web-dev:arm64
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$cross
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/${cross%-gcc}"
exec "${cargo[@]}"
