# The common part of the report's checks and of benches/predict.sh, which source it in the project's root.
# shellcheck shell=bash disable=SC2034

bin=target/release/mpiburn
as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root
# Not in /tmp, because each emulated node has its own /tmp.
mkdir -p target
work=$(mktemp -d "$PWD/target/report-check.XXXXXX")

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh
