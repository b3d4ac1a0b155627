# Defines `check`, which prints `ok - NAME` or `not ok - NAME`. Sourced by the test
# scripts, which have a folder $work and end with `exit $failed`.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/.. source=waiting.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/waiting.sh"

failed=0
note=

# Whether a check is to run: those whose name contains the extended regular expression
# $ONLY do.
chosen() { [[ $1 =~ ${ONLY-} ]]; } # chosen NAME

check() { # check NAME COMMAND...; the command may set $note
  local name=$1
  shift
  chosen "$name" || return 0
  if "$@" >"$work/log" 2>&1; then
    echo "ok - $name${note:+: $note}"
  else
    cat "$work/log"
    echo "not ok - $name${note:+: $note}"
    failed=1
  fi
  note=
}
