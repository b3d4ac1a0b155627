#!/usr/bin/env bash
# Cuts a node off the other, or joins it again: link.sh down|up HOST
#
# At the switch's end of the cable: the node loses its carrier and keeps its
# address, so connections hang, as they do when a cable is pulled.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_tools
[[ ${1-} == up || ${1-} == down ]] || die "usage: link.sh down|up HOST"
require_host "${2-}"
ip -n "$switch" link set "$2" "$1"
# A lookup of the other's address that began during the cut would still fail,
# and take a new connection with it.
if [ "$1" = up ]; then
  for host in "${hosts[@]}"; do ip -n "$(namespace_of "$host")" neigh flush dev eth0; done
fi
