#!/usr/bin/env bash
# Takes the two nodes down, whatever there is of them, and ends what still runs
# inside. The links go with their namespaces.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_tools

for space in "$(namespace_of "${hosts[0]}")" "$(namespace_of "${hosts[1]}")" "$switch"; do
  name=/run/netns/$space
  [ -e "$name" ] || continue
  # Everything in the namespace is about to be killed: not from within it, and
  # not if someone gave its name to the machine's own network.
  for own in self 1; do
    [ "$name" -ef "/proc/$own/ns/net" ] && die "$space is the network of process $own; leaving it alone"
  done
  # More than once, as a process may fork while it is being looked up.
  for _ in {1..50}; do
    mapfile -t pids < <(ip netns pids "$space")
    [ ${#pids[@]} -gt 0 ] || break
    kill -KILL "${pids[@]}" 2>/dev/null || true
    sleep 0.1
  done
  [ ${#pids[@]} -eq 0 ] || die "cannot end these processes in $space: ${pids[*]}"
  ip netns delete "$space"
done
