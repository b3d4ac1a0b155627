#!/usr/bin/env bash
# Checks the two nodes that up.sh emulates on this machine. They must exist, be isolated, be connected by a
# link of the given rate that can be broken, be able to train, and be removed completely. Needs a release
# build and a data set: make data
#
# `check` calls functions by name, so shellcheck believes that they are not called.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
# shellcheck source-path=SCRIPTDIR source=testing.sh
. "$(dirname "$(readlink -f "$0")")/testing.sh"
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. "$project/scripts/mpi.sh"
mpicc=$(mpi_command mpicc) || exit 1

binary=target/release/mpiburn
data=${DATA:-data/digits}
bytes=$((13 << 20))
rounds=10
links=$(ls /sys/class/net)

runs_on() { # runs_on TOPOLOGY HOST...
  local topology=$1
  shift
  diff <(on "$topology" hostname | sort) <(printf '%s\n' "$@")
}

# The only queue of a link must be a token bucket with this rate, in bytes per second. Its burst must be 128
# µs at this rate, or about two frames, and no packet may be larger than the burst.
is_shaped() { # is_shaped RATE BURST
  local host queue link burst
  for host in node0 node1; do
    queue=$(tc -n "$(namespace_of "$host")" -j qdisc show dev eth0) &&
      link=$(ip -n "$(namespace_of "$host")" -d -j link show eth0) || return
    echo "$queue $link"
    burst=$(grep -o '"burst":[0-9]*' <<<"$queue") && burst=${burst#*:} || return
    # tc rounds the burst down to a whole number of the kernel's ticks.
    [[ $queue != *'},{'* && $queue == *'"kind":"tbf"'*"\"rate\":$1,"* ]] &&
      [ "$burst" -le "$2" ] && [ "$burst" -gt $(($2 * 99 / 100)) ] && [[ $link == *"\"gso_max_size\":$(($2 - 64)),"* ]] || return
  done
}

is_not_shaped() {
  local host
  for host in node0 node1; do
    tc -n "$(namespace_of "$host")" qdisc show dev eth0 | tee /dev/stderr | grep -q '^qdisc noqueue ' || return
  done
}

# A counter of the token bucket, which is the last queue in tc's output.
counter() { # counter NAMESPACE DEVICE NAME
  tc -n "$1" -s -j qdisc show dev "$2" | grep -o "\"$3\":[0-9]*" | tail -n 1 | cut -d: -f2
}

held_back() { counter "$(namespace_of "$1")" eth0 overlimits; } # held_back HOST

# Each rank must send at least the bytes that it reduces, and the shaper must hold back packets at least once.
all_reduce_is_counted() { # all_reduce_is_counted BYTES
  local host sent held
  local -A before held_before
  for host in node0 node1; do
    before[$host]=$(sent_by "$host") && held_before[$host]=$(held_back "$host") || return
  done
  on 2x1 "$work/allreduce" "$1" "$rounds" || return
  for host in node0 node1; do
    sent=$(($(sent_by "$host") - before[$host]))
    held=$(($(held_back "$host") - held_before[$host]))
    note+="$host sent $sent bytes, held back $held times; "
    if [ "$sent" -lt $((rounds * $1)) ] || [ "$held" -eq 0 ]; then
      echo "expected: $((rounds * $1)) bytes, and at least once"
      return 1
    fi
  done
  note=${note%; }
}

stays_on_one_node() {
  local before
  before=$(sent_by node0)
  on 1x2 "$work/allreduce" "$bytes" 2 || return
  note="$(($(sent_by node0) - before)) bytes sent"
  [ "${note%% *}" -lt 100000 ]
}

a_node_is_apart() {
  # shellcheck disable=SC2016
  "$here/enter.sh" node1 sh -e -c '
    touch /tmp/mark /dev/shm/mark
    [ "$(hostname)" = node1 ]
    [ "$(getent hosts node0 | cut -d" " -f1)" = 10.77.0.1 ]
    [ "$(cat /sys/class/net/lo/mtu)" = 1500 ]
    [ "$(ls /sys/class/net | tr "\n" " ")" = "eth0 lo " ]
    [ -n "$(ls /sys/fs/cgroup)" ]' &&
    "$here/enter.sh" node0 sh -c '! [ -e /tmp/mark ] && ! [ -e /dev/shm/mark ]' &&
    ! [ -e /tmp/mark ] && [ "$(hostname)" != node1 ]
}

words_arrive() {
  # shellcheck disable=SC2016
  [ "$("$here/enter.sh" node0 printf '%s|' 'a  b' '$c')" = "a  b|\$c|" ] &&
    [ "$("$here/enter.sh" -x -q node0 echo '"a  b"')" = "a  b" ]
}

# The number of TCP segments that a node has sent again.
# shellcheck disable=SC2016
repeated_by() { "$here/enter.sh" "$1" awk '/^Tcp:/ { n = $13 } END { print n }' /proc/net/snmp; }

repeats() { # repeats HOST TIMES
  [ "$(repeated_by "$1")" -ge "$2" ]
}

# Runs all-reduces, during which the link to node1 goes down. With `briefly`, it goes up again after node0 has
# sent several segments in vain. With `forever`, the job must end.
is_cut() { # is_cut briefly|forever
  local job status before
  on 2x1 "$work/allreduce" "$bytes" 80 >"$work/rounds" &
  job=$!
  await grep -qx 'round 2' "$work/rounds" || return
  before=$(repeated_by node0)
  "$here/link.sh" down node1 || return
  ! grep -qx 'round 80' "$work/rounds" || return
  if [ "$1" = forever ]; then
    wait "$job"
    status=$?
    note="exit $status"
    "$here/link.sh" up node1
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ]
  else
    await repeats node0 $((before + 3)) && "$here/link.sh" up node1 && wait "$job" || return
    note="$(($(repeated_by node0) - before)) segments sent again"
  fi
}

trains() {
  [ -x "$binary" ] || { echo "no $binary; run make build"; return 1; }
  on 2x1 "$binary" train --data-root "$data" --epochs 1 --train-samples 3200 --out "$work/run" || return
  grep -A3 '"hosts"' "$work/run/run.json"
  tr -d ' \n' <"$work/run/run.json" | grep '"hosts":\["node0","node1"\]' >/dev/null
}

# Not every kernel can delay packets. If this one cannot, up.sh must say so.
up_with_delay() {
  local message
  message=$(RATE=20mbit DELAY=10ms "$here/up.sh" 2>&1) || { echo "$message"; return 1; }
  echo "$message"
  if grep -q 'rate 20mbit, delay 10ms$' <<<"$message"; then
    local host
    for host in node0 node1; do
      tc -n "$switch" qdisc show dev "$host" | tee /dev/stderr | grep -qE '^qdisc netem .* delay 10(\.0)?ms' || return
    done
    note="packets take 10 ms"
  else
    note="no netem here"
    grep -q 'rate 20mbit, delay none$' <<<"$message" &&
      grep -qx 'up.sh: this kernel has no netem; DELAY=10ms is ignored' <<<"$message"
  fi
}

# mpirun is killed, so it cannot end its ranks, and they may remain. down.sh must end them.
a_killed_mpirun_leaves_nothing() {
  local job ranks
  # mpirun.sh becomes mpirun by exec, so the job's process id is mpirun's.
  "$here/mpirun.sh" 2x2 "$work/allreduce" "$bytes" 10000 >"$work/rounds" &
  job=$!
  await grep -qx 'round 1' "$work/rounds" || return
  mapfile -t ranks < <(pgrep -f "^$work/allreduce")
  [ ${#ranks[@]} -eq 4 ] || { echo "${#ranks[@]} ranks run, not 4"; return 1; }
  kill -KILL "$job" || return
  wait "$job"
  "$here/down.sh" || return
  ! pgrep -f "^$work/allreduce"
}

nothing_is_left() {
  local spaces=() host stray processes left=0
  for host in node0 node1; do spaces+=("$(stat -Lc %i "/run/netns/$(namespace_of "$host")")"); done
  "$here/enter.sh" node1 sleep "$limit" &
  stray=$!
  await grep -qx sleep "/proc/$stray/comm" || return
  "$here/down.sh" || return
  wait "$stray"
  [ $? -eq 137 ] || { echo "a process outlived its node"; left=1; }
  ! ip netns list | grep mpiburn- || left=1
  diff <(ls /sys/class/net) - <<<"$links" || left=1
  processes=$(readlink /proc/[0-9]*/ns/net 2>/dev/null)
  for host in "${spaces[@]}"; do
    ! grep -F "[$host]" <<<"$processes" || left=1
  done
  ! grep -E '10\.77\.0|mpiburn-' /etc/hosts /proc/mounts || left=1
  return "$left"
}

# An invalid rate makes up.sh fail in its middle. Nothing may be left.
fails_cleanly() {
  ! RATE=fast "$here/up.sh" && ! ip netns list | grep mpiburn- && ! "$here/enter.sh" node0 true
}

note=
check "down.sh without nodes" "$here/down.sh"
check "a failed up.sh removes what it has created" fails_cleanly
check "up.sh" env RATE=1gbit "$here/up.sh"
check "up.sh replaces existing nodes" env RATE=1gbit "$here/up.sh"
check "a node has its own name, hosts, /tmp, /dev/shm, /sys" a_node_is_apart
check "enter.sh passes arguments unchanged, or like ssh" words_arrive
check "1x2 runs on node0" runs_on 1x2 node0 node0
check "2x1 runs on both nodes" runs_on 2x1 node0 node1
check "2x2 runs on both nodes" runs_on 2x2 node0 node0 node1 node1
check "allreduce.c compiles" "$mpicc" -O2 -Wall -o "$work/allreduce" "$here/allreduce.c"
check "links are shaped to 1 Gbit/s" is_shaped 125000000 16000
check "an all-reduce of 13 MiB goes over the link" all_reduce_is_counted "$bytes"
check "an all-reduce within one node does not" stays_on_one_node
check "a job survives a short link failure" is_cut briefly
check "a permanent link failure ends the job" is_cut forever
check "2x1 trains, and run.json names both nodes" trains
check "up.sh without RATE" "$here/up.sh"
check "links are not shaped" is_not_shaped
check "up.sh at 20 Mbit/s, with a delay, or a message without netem" up_with_delay
check "links are shaped to 20 Mbit/s" is_shaped 2500000 4096
check "small messages are shaped as well: an all-reduce of 17 KiB" all_reduce_is_counted 17408
check "ranks of a killed mpirun end with the nodes" a_killed_mpirun_leaves_nothing
check "up.sh afterwards" "$here/up.sh"
check "down.sh leaves no namespace and no process" nothing_is_left
check "down.sh again" "$here/down.sh"
exit "$failed"
