# What the tests here share; read by them. They start in the project's folder,
# with a folder $work of their own, and take the nodes down when they end.
# shellcheck shell=bash disable=SC2034,SC2154

here=$project/tests/cluster
cd "$project" || exit 1
require_tools
unset RATE DELAY MPIRUN_OPTIONS
failed=0
note=
# Not in /tmp, which the nodes do not share.
mkdir -p target
work=$(mktemp -d "$PWD/target/cluster-test.XXXXXX")
trap '"$here/down.sh"; rm -rf "$work"' EXIT

check() { # check NAME COMMAND...; the command may set $note
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "ok - $name${note:+: $note}"
  else
    cat "$work/log"
    echo "not ok - $name${note:+: $note}"
    failed=1
  fi
  note=
}

on() { timeout 120 "$here/mpirun.sh" "$@"; }

sent_by() { "$here/enter.sh" "$1" cat /sys/class/net/eth0/statistics/tx_bytes; }
