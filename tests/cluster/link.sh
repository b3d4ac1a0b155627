#!/usr/bin/env bash
# Breaks or restores the link of a node: link.sh down|up HOST
#
# On the switch's side of the cable: the node loses its carrier and keeps its address,
# so connections hang as if a cable were pulled.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_tools
[[ ${1-} == up || ${1-} == down ]] || die "usage: link.sh down|up HOST"
require_host "${2-}"
ip -n "$switch" link set "$2" "$1"
# A neighbour lookup that began during the failure would still fail, and fail new
# connections with it.
if [ "$1" = up ]; then
  for host in "${hosts[@]}"; do ip -n "$(namespace_of "$host")" neigh flush dev eth0; done
fi
