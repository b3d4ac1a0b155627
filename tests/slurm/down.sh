#!/usr/bin/env bash
# Takes Slurm and its two nodes down, whatever there is of them. Daemons and jobs
# end with their nodes; jobs that were running are lost.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
"$cluster/down.sh"
rm -rf "$state"
