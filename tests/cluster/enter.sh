#!/usr/bin/env bash
# Runs a command on an emulated node:
#
#   tests/cluster/enter.sh HOST COMMAND...
#   tests/cluster/enter.sh -OPTION... HOST COMMAND...
#
# If an option precedes HOST, enter.sh behaves like ssh, so that it can be mpirun's plm_rsh_agent: options are
# ignored, and the words of the command are joined and passed to a shell.
#
# The command sees this machine's files, except for private /tmp, /dev/shm, /sys and /etc/hosts, which are
# removed when the command ends. Programs, data and run directories must therefore be outside of /tmp, or in
# the project's folder.
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
! out_of_sight "$PWD" || die "$PWD is hidden on a node, which has its own /tmp; start from another folder"
[ -z "$like_ssh" ] || set -- sh -c "$*"

HOSTS_FILE="127.0.0.1 localhost"
for node in "${hosts[@]}"; do HOSTS_FILE+=$'\n'"$(address_of "$node") $node"; done
export HOSTS_FILE
# Both nodes might share any other folder for temporary files.
export TMPDIR=/tmp
export PROJECT=$project

# `ip netns exec` would hide the cgroups, which binding to cores needs. With private IPC, /dev/shm and /sys,
# an MPI library cannot communicate between the nodes without the network. A private /tmp separates its
# session files.
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
