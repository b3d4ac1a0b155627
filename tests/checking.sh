# Defines `check`, which prints `ok - NAME` or `not ok - NAME`. Test scripts source this file. They have a
# folder $work, and end with `exit $failed`.
# shellcheck shell=bash disable=SC2034,SC2154

# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/.. source=waiting.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/waiting.sh"

failed=0
note=

# True if the name of a check contains the extended regular expression $ONLY. Only such checks run.
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
