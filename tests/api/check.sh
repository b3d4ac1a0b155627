#!/usr/bin/env bash
# Compares the public interface of the two libraries for Burn with the lists in their folders, after
# `cargo doc`. With --update, writes the lists: a change of the interface is then seen in review.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
for crate in burn-mpi burn-fused; do
  list=crates/$crate/api.txt
  found=$(python3 tests/api/list.py "${CARGO_TARGET_DIR:-target}/doc/${crate/-/_}")
  if [ "${1-}" = --update ]; then
    printf '%s\n' "$found" >"$list"
  elif ! diff -u "$list" - <<<"$found"; then
    echo "the interface of $crate is another: if that is meant, tests/api/check.sh --update, and a line in CHANGELOG.md" >&2
    exit 1
  fi
done
