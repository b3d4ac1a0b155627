#!/usr/bin/env bash
# Starts the daemons of a node, and becomes its slurmd by exec. up.sh runs it on each node.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
PATH=$PATH:/usr/sbin:/sbin
node=$(hostname)

# The key is copied to the node's private /tmp: the socket's path is short there, and munged accepts the
# folder. --force, because munged would reject a project folder that belongs to another user, as in a CI
# checkout.
install -m 600 "$state/munge.key" /tmp/munge.key
munged --foreground --force --key-file=/tmp/munge.key --socket=/tmp/munge.socket \
  --pid-file=/tmp/munge.pid --seed-file=/tmp/munge.seed 2>"$state/$node.munged.log" &
await test -S /tmp/munge.socket

[ "$node" != "${hosts[0]}" ] || slurmctld -D >"$state/slurmctld.log" 2>&1 &
exec slurmd -D >"$state/$node.slurmd.log" 2>&1
