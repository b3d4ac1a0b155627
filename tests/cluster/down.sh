#!/usr/bin/env bash
# Removes the two nodes, complete or not, and kills the processes inside. The links are
# removed with their namespaces.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_tools

all_killed_in() { # all_killed_in NAMESPACE: nothing is left there to be killed
  mapfile -t pids < <(ip netns pids "$1")
  [ ${#pids[@]} -gt 0 ] || return 0
  kill -KILL "${pids[@]}" 2>/dev/null
  return 1
}

for space in "$(namespace_of "${hosts[0]}")" "$(namespace_of "${hosts[1]}")" "$switch"; do
  name=/run/netns/$space
  [ -e "$name" ] || continue
  # Everything in the namespace is about to be killed: refuse from within it, or if
  # its name was given to the machine's own network.
  for own in self 1; do
    [ "$name" -ef "/proc/$own/ns/net" ] && die "$space is the network of process $own; leaving it alone"
  done
  # Repeated, because a process may fork in the meantime.
  await all_killed_in "$space" || die "cannot end these processes in $space: ${pids[*]}"
  ip netns delete "$space"
done
