#!/usr/bin/env bash
# Removes the two nodes, even if they are incomplete, and kills the processes inside. The links vanish with
# their namespaces.
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
  # All processes in the namespace are about to be killed. Refuse if this script runs inside it, or if the
  # namespace is the machine's own network.
  for own in self 1; do
    [ "$name" -ef "/proc/$own/ns/net" ] && die "$space is the network of process $own; leaving it alone"
  done
  # Repeated, because a process may fork while others are killed.
  await all_killed_in "$space" || die "cannot end these processes in $space: ${pids[*]}"
  ip netns delete "$space"
done
