# Defines `check`, which prints `ok - NAME` or `not ok - NAME`. Sourced by the test
# scripts, which have a folder $work and end with `exit $failed`.
# shellcheck shell=bash disable=SC2034,SC2154

failed=0
note=

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
