#!/usr/bin/env bash
# Removes Slurm and its two nodes, even if they are incomplete. Daemons and jobs end with their nodes; running
# jobs are lost.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
"$cluster/down.sh"
rm -rf "$state"
