# What the report's checks share; sourced from the project's root.
# shellcheck shell=bash disable=SC2034

bin=target/release/mpiburn
as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root
failed=0
note=
# Not in /tmp, which the nodes do not share.
mkdir -p target
work=$(mktemp -d "$PWD/target/report-check.XXXXXX")

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

check() { # check NAME COMMAND...
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
