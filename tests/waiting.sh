# Defines $limit, the time in seconds after which a test counts as hanging, and `await`, which waits for an
# event up to that limit. tests/checking.sh and the scripts that start nodes source this file.
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
