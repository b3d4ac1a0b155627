#!/usr/bin/env bash
# Breaks or restores the link of a node: link.sh down|up HOST
#
# The link goes down on the switch's side, as if the cable were pulled: the node keeps its address, and
# connections hang.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_tools
[[ ${1-} == up || ${1-} == down ]] || die "usage: link.sh down|up HOST"
require_host "${2-}"
ip -n "$switch" link set "$2" "$1"
# Lookups of neighbours (ARP) that began during the failure would still fail, and new connections with them.
if [ "$1" = up ]; then
  for host in "${hosts[@]}"; do ip -n "$(namespace_of "$host")" neigh flush dev eth0; done
fi
