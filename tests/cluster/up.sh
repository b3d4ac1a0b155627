#!/usr/bin/env bash
# Emulates two nodes on this machine: two network namespaces, connected by a bridge in a third namespace:
#
#   RATE=1gbit DELAY=0.1ms tests/cluster/up.sh
#
# RATE limits what each node sends (default: unlimited). DELAY is the time that a packet takes from node to
# node; it is ignored with a message if the kernel cannot delay packets. Existing nodes are replaced.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
require_tools
rate=${RATE:-}
delay=${DELAY:-}

# The burst is 128 µs at the rate, so that small messages are shaped too. At low rates it is slightly more
# than two frames, because packets would be lost with less. A packet in the queue is at most as large as the
# burst. Otherwise the queue would segment packets itself, and not reach 1 Gbit/s on busy cores.
shape() { # shape NAMESPACE
  local rate_in_bytes burst=4096
  tc -n "$1" qdisc add dev eth0 root handle 1: tbf rate "$rate" burst "$burst" latency 20ms ||
    die "cannot shape to RATE=$rate; use tc's notation, such as 1gbit or 100mbit"
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

ip netns add "$switch" || die "cannot create a network namespace"
ip -n "$switch" link add bridge type bridge || die "cannot create a bridge"
ip -n "$switch" link set bridge up

for host in "${hosts[@]}"; do
  node=$(namespace_of "$host")
  ip netns add "$node"
  # lo's default MTU is 65536. With it, transports that connect to their own host over TCP would wait for
  # acknowledgements. 1500 is the MTU of a real network.
  ip -n "$node" link set lo mtu 1500 up
  ip -n "$node" link add eth0 type veth peer name "$host" netns "$switch" || die "cannot create a veth pair"
  ip -n "$node" address add "$(address_of "$host")/${subnet#*/}" dev eth0
  ip -n "$node" link set eth0 up
  ip -n "$switch" link set "$host" master bridge up
  if [ -n "$rate" ]; then shape "$node"; fi
done

# The delay is on the switch's ports, so that it does not share a queue with the rate. The first port shows
# whether the kernel supports delays; if not, neither port has one.
if [ -n "$delay" ]; then
  for host in "${hosts[@]}"; do
    if message=$(tc -n "$switch" qdisc add dev "$host" root netem delay "$delay" limit 100000 2>&1); then
      continue
    elif [[ $message == *"kind is unknown"* ]]; then
      echo "up.sh: this kernel has no netem; DELAY=$delay is ignored" >&2
      delay=
      break
    else
      die "cannot add DELAY=$delay: ${message%%$'\n'*}"
    fi
  done
fi

trap - EXIT
echo "up: ${hosts[0]} $(address_of "${hosts[0]}"), ${hosts[1]} $(address_of "${hosts[1]}"), rate ${rate:-unlimited}, delay ${delay:-none}"
