#!/usr/bin/env bash
# Starts an MPI program on the emulated nodes. mpirun itself runs on node0:
#
#   tests/cluster/mpirun.sh NxC PROGRAM ARGS...
#
# NxC is N nodes with C ranks on each: one or two nodes, and up to 16 ranks. MPI=mpich uses MPICH's mpirun.
# $MPIRUN_OPTIONS has further options of mpirun, split at spaces. These options and the variables OMPI_MCA_...
# override the settings below. Every node has its own /tmp: program, data and results must be elsewhere.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. "$project/scripts/mpi.sh"
mpirun=$(mpi_command mpirun)
usage="usage: mpirun.sh NxC PROGRAM ARGS..., with 1 or 2 nodes and 1 to 16 ranks on each"
[[ ${1-} =~ ^([12])x([1-9]|1[0-6])$ ]] || die "$usage"
nodes=${BASH_REMATCH[1]}
ranks_per_node=${BASH_REMATCH[2]}
shift
[ $# -gt 0 ] || die "$usage"
require_tools
for host in "${hosts[@]:0:nodes}"; do require_host "$host"; done
for arg in "$@"; do
  ! out_of_sight "${arg##*=}" || die "$arg: every node has its own /tmp; use a path outside it"
done
# mpirun splits the agent's command at spaces and does not support quotes.
[[ $here != *' '* ]] || die "cannot start from a folder with a space in its name: $here"

# With `--map-by ppr:C:node --bind-to core`, as on real machines, the first ranks of both nodes would be bound
# to the same core, because each node sees the whole machine. A rank file assigns different cores to all
# ranks, as long as there are enough cores.
cores=$(lscpu --parse=core,socket | grep -v '^#' | sort -u | wc -l)
allowed=$(nproc)
[ "$cores" -le "$allowed" ] || cores=$allowed
host_file=
rank_file=
rank=0
for host in "${hosts[@]:0:nodes}"; do
  slots=()
  for _ in $(seq "$ranks_per_node"); do
    slots+=($((rank % cores)))
    rank_file+="rank $rank=$host slot=$((rank % cores))"$'\n'
    rank=$((rank + 1))
  done
  case $MPI in
    openmpi) host_file+="$host slots=$ranks_per_node"$'\n' ;;
    mpich) host_file+="$host:$ranks_per_node binding=user:$(IFS=,; echo "${slots[*]}")"$'\n' ;;
  esac
done
export host_file rank_file

setting() { # setting NAME VALUE: unless the caller has set it
  export "$1=${!1-$2}"
}
case $MPI in
  openmpi)
    setting OMPI_MCA_plm_rsh_agent "$here/enter.sh --ssh"
    setting OMPI_MCA_btl self,vader,tcp
    setting OMPI_MCA_btl_tcp_if_include "$subnet"
    setting OMPI_MCA_oob_tcp_if_include "$subnet"
    # Two connections, because a single one rarely transfers in both directions at once.
    setting OMPI_MCA_btl_tcp_links 2
    # The nodes share cores, and a waiting rank that spins would keep its peer from running.
    setting OMPI_MCA_mpi_yield_when_idle 1
    # With these settings, a job ends within seconds if a link stays broken. Otherwise it would hang. It
    # survives an interruption of two seconds.
    setting OMPI_MCA_oob_tcp_keepalive_time 2
    setting OMPI_MCA_oob_tcp_keepalive_intvl 1
    setting OMPI_MCA_oob_tcp_keepalive_probes 3
    options=(--allow-run-as-root --hostfile /tmp/host-file --rankfile /tmp/rank-file
      --bind-to core:overload-allowed)
    ;;
  mpich)
    options=(-f /tmp/host-file -launcher ssh -launcher-exec "$here/enter.sh" -iface eth0)
    ;;
esac

read -ra more <<<"${MPIRUN_OPTIONS-}"
# Both files are in node0's private /tmp, and vanish with it. Each command is an exec, so that this process
# becomes mpirun and receives mpirun's signals.
# shellcheck disable=SC2016
exec "$here/enter.sh" node0 sh -e -c '
  echo "$host_file" >/tmp/host-file
  echo "$rank_file" >/tmp/rank-file
  unset host_file rank_file
  exec "$@"
' sh "$mpirun" "${options[@]}" "${more[@]}" "$@"
