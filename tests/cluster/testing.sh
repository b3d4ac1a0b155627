# Common part of the tests here, sourced by them. They start in the project's folder, with
# a temporary folder $work, and remove the nodes when they end.
# shellcheck shell=bash disable=SC2034,SC2154

here=$project/tests/cluster
cd "$project" || exit 1
require_tools
unset RATE DELAY MPIRUN_OPTIONS
# Not in /tmp, which is private to each node.
mkdir -p target
work=$(mktemp -d "$PWD/target/cluster-test.XXXXXX")
trap '"$here/down.sh"; rm -rf "$work"' EXIT

# shellcheck source-path=SCRIPTDIR source=../checking.sh
. "$project/tests/checking.sh"

on() { timeout "$limit" "$here/mpirun.sh" "$@"; }

sent_by() { "$here/enter.sh" "$1" cat /sys/class/net/eth0/statistics/tx_bytes; }
