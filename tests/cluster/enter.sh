#!/usr/bin/env bash
# Runs a command inside a node:
#
#   tests/cluster/enter.sh HOST COMMAND...
#   tests/cluster/enter.sh -OPTION... HOST COMMAND...
#
# With a leading option it behaves as ssh does, for mpirun's plm_rsh_agent:
# options are dropped, and the words of the command joined and given to a shell.
#
# The command sees this machine's files, with these exceptions, which are its
# own and end with it: /tmp, /dev/shm, /sys, /etc/hosts. So programs, data and
# run directories must lie outside /tmp, or in the project's own folder.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
like_ssh=
while [[ ${1-} == -* ]]; do
  like_ssh=1
  shift
done
require_tools
require_host "${1-}"
host=$1
shift
[ $# -gt 0 ] || die "usage: enter.sh HOST COMMAND..."
! out_of_sight "$PWD" || die "$PWD is out of sight in a node, which has its own /tmp; start from another folder"
[ -z "$like_ssh" ] || set -- sh -c "$*"

HOSTS_FILE="127.0.0.1 localhost"
for node in "${hosts[@]}"; do HOSTS_FILE+=$'\n'"$(address_of "$node") $node"; done
export HOSTS_FILE
# Elsewhere it might be shared by both nodes.
export TMPDIR=/tmp
export PROJECT=$project

# `ip netns exec` would not do: it hides the cgroups, which binding to cores
# needs. Own IPC, /dev/shm and /sys keep an MPI library from finding a way
# between the nodes past the network; an own /tmp keeps its session files apart.
# shellcheck disable=SC2016
exec nsenter --net="/run/netns/$(namespace_of "$host")" \
  unshare --uts --ipc --mount --propagation private \
  sh -e -c '
    hostname "$1"
    shift
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mkdir /dev/shm/project
    mount --bind "$PROJECT" /dev/shm/project
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    case $PROJECT/ in
      /tmp/*)
        mkdir -p "$PROJECT"
        mount --move /dev/shm/project "$PROJECT"
        cd "$PWD"
        ;;
      *) umount /dev/shm/project ;;
    esac
    rmdir /dev/shm/project
    echo "$HOSTS_FILE" >/tmp/etc-hosts
    mount --bind /tmp/etc-hosts /etc/hosts
    mkdir /tmp/cgroup
    mount --rbind /sys/fs/cgroup /tmp/cgroup
    mount -t sysfs sysfs /sys
    mount --move /tmp/cgroup /sys/fs/cgroup
    rmdir /tmp/cgroup
    unset HOSTS_FILE PROJECT
    exec "$@"
  ' sh "$host" "$@"
