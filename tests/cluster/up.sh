#!/usr/bin/env bash
# Two nodes on one machine, as network namespaces joined by a bridge in a third:
#
#   RATE=1gbit DELAY=0.1ms tests/cluster/up.sh
#
# RATE is what each node may send (none: as fast as the machine goes), DELAY the
# time a packet takes from node to node, where the kernel can add one.
# A cluster that is already up is replaced.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
require_tools
rate=${RATE:-}
delay=${DELAY:-}

# What may pass unshaped is 128 µs' worth, so that small messages are shaped
# too; at low rates it is two whole frames and a bit, without which packets are
# lost. No packet is handed to the queue in larger pieces: the queue would cut
# them up itself, and then 1 Gbit/s is not reached where cores are busy.
shape() { # shape NAMESPACE
  local rate_in_bytes burst=4096
  tc -n "$1" qdisc add dev eth0 root handle 1: tbf rate "$rate" burst "$burst" latency 20ms ||
    die "cannot shape to RATE=$rate; name it as tc does, as 1gbit or 100mbit"
  rate_in_bytes=$(tc -n "$1" -j qdisc show dev eth0 | grep -o '"rate":[0-9]*')
  rate_in_bytes=${rate_in_bytes#*:}
  if [ $((rate_in_bytes * 128 / 1000000)) -gt "$burst" ]; then
    burst=$((rate_in_bytes * 128 / 1000000))
    tc -n "$1" qdisc change dev eth0 root handle 1: tbf rate "$rate" burst "$burst" latency 20ms
  fi
  [ "$burst" -ge 65536 ] || ip -n "$1" link set eth0 gso_max_size $((burst - 64))
}

"$here/down.sh"
trap '"$here/down.sh"' EXIT

ip netns add "$switch" || die "no network namespace can be made here"
ip -n "$switch" link add bridge type bridge || die "no bridge can be made here"
ip -n "$switch" link set bridge up

for host in "${hosts[@]}"; do
  node=$(namespace_of "$host")
  ip netns add "$node"
  # With lo's usual MTU of 65536, transports that talk to their own host over
  # TCP wait on acknowledgements; 1500 is what they meet on a real network.
  ip -n "$node" link set lo mtu 1500 up
  ip -n "$node" link add eth0 type veth peer name "$host" netns "$switch" || die "no veth pair can be made here"
  ip -n "$node" address add "$(address_of "$host")/${subnet#*/}" dev eth0
  ip -n "$node" link set eth0 up
  ip -n "$switch" link set "$host" master bridge up
  if [ -n "$rate" ]; then shape "$node"; fi
done

# The delay sits on the switch's ports and so never nests with the rate. Both
# ports get it, or neither: the first one tells whether the kernel can.
if [ -n "$delay" ]; then
  for host in "${hosts[@]}"; do
    if said=$(tc -n "$switch" qdisc add dev "$host" root netem delay "$delay" limit 100000 2>&1); then
      continue
    elif [[ $said == *"kind is unknown"* ]]; then
      echo "up.sh: this kernel has no netem; DELAY=$delay is left out" >&2
      delay=
      break
    else
      die "cannot add DELAY=$delay: ${said%%$'\n'*}"
    fi
  done
fi

trap - EXIT
echo "up: ${hosts[0]} $(address_of "${hosts[0]}"), ${hosts[1]} $(address_of "${hosts[1]}"), rate ${rate:-unlimited}, delay ${delay:-none}"
