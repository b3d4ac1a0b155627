# The common part of the tests in this folder, which source it. It changes to the project's folder, makes a
# temporary folder $work, and removes the nodes at the end.
# shellcheck shell=bash disable=SC2034,SC2154

here=$project/tests/cluster
cd "$project" || exit 1
require_tools
unset RATE DELAY MPIRUN_OPTIONS
# Not in /tmp, because each node has its own /tmp.
mkdir -p target
work=$(mktemp -d "$PWD/target/cluster-test.XXXXXX")
trap '"$here/down.sh"; rm -rf "$work"' EXIT

# shellcheck source-path=SCRIPTDIR source=../checking.sh
. "$project/tests/checking.sh"

on() { timeout "$limit" "$here/mpirun.sh" "$@"; }

sent_by() { "$here/enter.sh" "$1" cat /sys/class/net/eth0/statistics/tx_bytes; }
