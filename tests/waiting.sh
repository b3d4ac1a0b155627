# The limit of tests against hanging, and `await`, which waits for an event up to that
# limit. Sourced by tests/checking.sh and by the scripts that start nodes.
# shellcheck shell=bash

limit=$(cat "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/limit_s")

await() { # await COMMAND...: until it succeeds
  local end=$((SECONDS + limit))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "not within $limit s: $*" >&2; return 1; }
    sleep 0.05
  done
}

ended() { ! kill -0 "$1" 2>/dev/null; } # ended PROCESS
