#!/usr/bin/env bash
# Compares the public interfaces of burn-mpi and burn-fused with the lists (api.txt) in their folders. Run it
# after `cargo doc`. With --update, writes the lists, so that a review shows each change of an interface.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
for crate in burn-mpi burn-fused; do
  list=crates/$crate/api.txt
  found=$(python3 tests/api/list.py "${CARGO_TARGET_DIR:-target}/doc/${crate/-/_}")
  if [ "${1-}" = --update ]; then
    printf '%s\n' "$found" >"$list"
  elif ! diff -u "$list" - <<<"$found"; then
    echo "the interface of $crate has changed: if that is intended, tests/api/check.sh --update, and a line in its CHANGELOG.md" >&2
    exit 1
  fi
done
