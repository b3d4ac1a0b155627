# Common part of the report's checks; sourced from the project's root.
# shellcheck shell=bash disable=SC2034

bin=target/release/mpiburn
as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root
# Not in /tmp, which is private to each node.
mkdir -p target
work=$(mktemp -d "$PWD/target/report-check.XXXXXX")

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh
