#!/usr/bin/env bash
# Checks the two emulated nodes: that they exist, are isolated, are connected by a link
# of the given rate that can be broken, can train, and are removed completely.
# Needs a release build and a data set: make data
# Functions are called by name, through `check`.
# shellcheck disable=SC2317
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

all_reduce_takes() { # all_reduce_takes BYTES LEAST MOST, in ms
  local took
  took=$(on 2x1 "$work/allreduce" "$1" "$rounds") || return
  note="$took ms"
  awk -v took="$took" -v least="$2" -v most="$3" 'BEGIN { exit !(least < took && took < most) }'
}

# Every rank must send at least as many bytes as it reduces.
all_reduce_is_counted() {
  local before after host fine=0
  before=$(sent_by node0) && before+=" $(sent_by node1)" || return
  on 2x1 "$work/allreduce" "$bytes" "$rounds" || return
  after=$(sent_by node0) && after+=" $(sent_by node1)" || return
  echo "bytes sent before: $before, after: $after; expected: $((rounds * bytes))"
  for host in 1 2; do
    [ $(($(cut -d' ' -f"$host" <<<"$after") - $(cut -d' ' -f"$host" <<<"$before"))) -ge $((rounds * bytes)) ] || fine=1
  done
  return "$fine"
}

stays_on_one_node() {
  local before
  before=$(sent_by node0)
  on 1x2 "$work/allreduce" "$bytes" 2 && [ $(($(sent_by node0) - before)) -lt 100000 ]
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

# About 10 s of all-reduces, during which the link to node1 is down for $1 seconds.
cut_for() {
  local started job status
  on 2x1 "$work/allreduce" "$bytes" 80 &
  job=$!
  sleep 3
  kill -0 "$job" || return
  "$here/link.sh" down node1 || return
  started=$SECONDS
  if [ "$1" = ever ]; then
    wait "$job"
    status=$?
    note="exit $status after $((SECONDS - started)) s"
    "$here/link.sh" up node1
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ $((SECONDS - started)) -lt 30 ]
  else
    sleep "$1"
    "$here/link.sh" up node1 && wait "$job"
  fi
}

trains() {
  [ -x "$binary" ] || { echo "no $binary; run make build"; return 1; }
  on 2x1 "$binary" train --data-root "$data" --epochs 1 --train-samples 3200 --out "$work/run" || return
  grep -A3 '"hosts"' "$work/run/run.json"
  tr -d ' \n' <"$work/run/run.json" | grep '"hosts":\["node0","node1"\]' >/dev/null
}

# Not every kernel can delay packets; up.sh must report one that cannot.
delay=0
up_with_delay() {
  local message
  message=$(RATE=20mbit DELAY=10ms "$here/up.sh" 2>&1) || { echo "$message"; return 1; }
  echo "$message"
  if grep -q 'rate 20mbit, delay 10ms$' <<<"$message"; then
    delay=10
    note="packets take 10 ms"
  else
    note="no netem here"
    grep -q 'rate 20mbit, delay none$' <<<"$message" &&
      grep -qx 'up.sh: this kernel has no netem; DELAY=10ms is ignored' <<<"$message"
  fi
}

# A killed mpirun cannot end its ranks and may leave them running.
a_killed_mpirun_leaves_nothing() {
  local job ranks
  # The script execs mpirun, so the job's pid is mpirun's.
  "$here/mpirun.sh" 2x2 "$work/allreduce" "$bytes" 10000 &
  job=$!
  sleep 3
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
  "$here/enter.sh" node1 sleep 1000 &
  stray=$!
  sleep 0.5
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

# An invalid rate fails in the middle of up.sh: nothing may be left.
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
# 13 MiB at 1 Gbit/s are 109 ms; less than 80 would exceed 1 Gbit/s, more than 400 would
# be slower than both directions one after the other.
check "an all-reduce of 13 MiB takes the time of 1 Gbit/s" all_reduce_takes "$bytes" 80 400
check "it goes over the link" all_reduce_is_counted
check "an all-reduce within one node does not" stays_on_one_node
check "a job survives a link failure of 1 s" cut_for 1
check "a permanent link failure ends the job" cut_for ever
check "2x1 trains, and run.json names both nodes" trains
check "without RATE the link is faster" "$here/up.sh"
check "an all-reduce of 13 MiB takes less than 80 ms" all_reduce_takes "$bytes" 0 80
check "up.sh at 20 Mbit/s, with a delay, or a message without netem" up_with_delay
# 17 KiB are 7.0 ms at 20 Mbit/s, and 7.3 with their headers; below 0.1 ms if they were not shaped. More than
# 14.6, both directions one after the other, is a busy machine.
check "small messages are shaped as well: an all-reduce of 17 KiB" all_reduce_takes 17408 $((6 + delay)) $((40 + 4 * delay))
check "an all-reduce of 4 bytes takes the delay" all_reduce_takes 4 "$([ "$delay" -eq 0 ] && echo -1 || echo "$delay")" $((40 + 4 * delay))
check "ranks of a killed mpirun end with the nodes" a_killed_mpirun_leaves_nothing
check "up.sh afterwards" "$here/up.sh"
check "down.sh leaves no namespace and no process" nothing_is_left
check "down.sh again" "$here/down.sh"
exit "$failed"
