# Names and addresses of the two emulated nodes. The other scripts here source this file.
# shellcheck shell=bash disable=SC2034

# The prefix avoids namespaces of other programs. All links are inside these namespaces, so no other names can
# collide.
switch=mpiburn-switch
hosts=(node0 node1)
subnet=10.77.0.0/24

namespace_of() { echo "mpiburn-$1"; }
address_of() { echo "10.77.0.$((${1#node} + 1))"; }

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

require_tools() {
  [ "$(id -u)" -eq 0 ] || die "network namespaces need root"
  local tool
  for tool in ip:iproute2 tc:iproute2 nsenter:util-linux unshare:util-linux; do
    command -v "${tool%:*}" >/dev/null || die "no ${tool%:*} here; install ${tool#*:}"
  done
}

require_host() {
  [[ " ${hosts[*]} " == *" ${1:-none} "* ]] || die "'${1-}' is not a node; the nodes are ${hosts[*]}"
  [ -e "/run/netns/$(namespace_of "$1")" ] || die "$1 is not up; run tests/cluster/up.sh"
}

# Both nodes see the project's folder, even if it is in /tmp.
project=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")

# shellcheck source-path=SCRIPTDIR source=../waiting.sh
. "$project/tests/waiting.sh"

# True if a path is hidden on a node: it is in /tmp, but not in the project.
out_of_sight() { [[ $1/ == /tmp/* && $1/ != "$project"/* ]]; }
