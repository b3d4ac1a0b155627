#!/usr/bin/env bash
# Copies the binary and the data set to other hosts, at the same paths as here, where
# the ranks expect them:
#
#   BIN=target/release/mpiburn DATA=data/digits scripts/deploy.sh HOST...
#
# Copies only the files whose SHA-256 differs, and checks the copies. Checks that the host can load the binary
# and has the same MPI. Prints one line per host; continues with the next host after a failure. SSH is the
# command that connects to a host. If this host is in the list, under any of its names, it is skipped.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$(dirname "$(readlink -f "$0")")/mpi.sh"
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=5}"
binary=$(realpath -ms "${BIN:-target/release/mpiburn}")
data=${DATA-data/digits}

die() {
  echo "deploy: $*" >&2
  exit 1
}

[ $# -gt 0 ] || die 'name the hosts: make deploy HOSTS="alpha beta"'
[ -x "$binary" ] || die "no $binary; run make build"
files=("$binary")
if [ -n "$data" ]; then
  data=$(realpath -ms "$data")
  mapfile -t found < <(find -L "$data" -type f 2>/dev/null | sort)
  [ ${#found[@]} -gt 0 ] || die "no data set in $data; run make data"
  files+=("${found[@]}")
fi
mpirun=$(mpi_command mpirun)
# Prints the first line of `mpirun --version` of Open MPI or MPICH, such as `mpirun (Open MPI) 4.1.4`.
version='{ '"$mpirun --version || mpirun --version; } 2>/dev/null | grep -m1 -E 'Open MPI|OpenRTE|Version:' | tr -s ' '"
own_version=$(sh -c "$version")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sha256sum -- "${files[@]}" >"$work/digests"

is_this_host() {
  local address own
  [[ $1 != localhost && $1 != "$(uname -n)" && ${1%%.*} != "$(uname -n)" ]] || return 0
  address=$(getent ahosts "$1" | awk 'NR == 1 { print $1 }') && [ -n "$address" ] || return 1
  # If the route to the address is local, the address belongs to this host.
  own=$(ip route get "$address" 2>/dev/null) && [[ $own == local* ]]
}

# Runs a command on $host. The error output of the command and of ssh goes to a file.
there() { LC_ALL=C "${ssh[@]}" "$host" "$@" 2>"$work/stderr"; }

# Explains the error of ssh, and says what to do.
ssh_error() {
  local output
  output=$(tr -d '\r' <"$work/stderr")
  case $output in
    *"resolve hostname"*) echo "unknown host; check the name, or add it to /etc/hosts or ~/.ssh/config" ;;
    *"Host key verification failed"*) echo "its host key is unknown or has changed; run once by hand: ssh $host" ;;
    *"Permission denied"*) echo "no login without a password; run once: ssh-copy-id $host" ;;
    *"Connection refused"*) echo "no ssh server answers; install openssh-server there" ;;
    *"timed out"* | *"No route to host"* | *unreachable*) echo "not reachable; is it up, and on this network?" ;;
    *) echo "ssh failed: $(tail -n 1 <<<"$output")" ;;
  esac
}

# Lists the files that are missing or differ on $host; fails if the digests there cannot be computed.
differing() {
  there "LC_ALL=C sha256sum --check 2>/dev/null || true" <"$work/digests" >"$work/checked" || return
  sed -nE 's/: FAILED( open or read)?$//p' "$work/checked" >"$work/differing"
  [ "$(wc -l <"$work/checked")" -eq ${#files[@]} ]
}

packages_of() { # packages_of LIBRARY...
  local library
  for library in "$@"; do
    case $library in
      libmpich.*) echo mpich ;;
      libmpi.* | libopen-*) echo openmpi-bin ;;
      libgloo*) echo libgloo0 ;;
      libstdc++*) echo libstdc++6 ;;
      *) echo "the package of $library" ;;
    esac
  done | sort -u | paste -sd' '
}

deploy() { # prints the result, or the reason of a failure
  local other missing count bytes
  there true </dev/null || { ssh_error; return 1; }
  other=$(there "$version" </dev/null) || other=
  [ -n "$other" ] || { echo "$mpirun not found; install $mpi_packages"; return 1; }
  [ "$other" = "$own_version" ] || { echo "it has ${other# }, and this host has ${own_version# }; install the same version on both"; return 1; }
  differing || { echo "cannot compare digests: $(tail -n 1 "$work/stderr")"; return 1; }
  count=$(wc -l <"$work/differing")
  if [ "$count" -gt 0 ]; then
    bytes=$(tr '\n' '\0' <"$work/differing" | du -cbL --files0-from=- | tail -n 1 | cut -f1)
    # The archive has the paths without their first slash, and the host unpacks it at the root.
    if ! sed 's|^/||' "$work/differing" | tar --create --dereference --directory / --files-from - |
      there "LC_ALL=C tar --extract --no-same-owner --directory /"; then
      echo "cannot write: $(grep -m1 -E 'No space|denied|Read-only' "$work/stderr" || tail -n 1 "$work/stderr")"
      return 1
    fi
    if ! differing || [ -s "$work/differing" ]; then
      echo "differs after copying: $(head -n 1 "$work/differing")"
      return 1
    fi
  fi
  missing=$(there "ldd $(printf %q "$binary") | sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p'" </dev/null) ||
    { echo "cannot inspect the binary: $(tail -n 1 "$work/stderr")"; return 1; }
  # shellcheck disable=SC2086 # one word per library
  [ -z "$missing" ] || { echo "missing libraries ${missing//$'\n'/, }; install $(packages_of $missing)"; return 1; }
  there "$(printf %q "$binary") --version" </dev/null >/dev/null ||
    { echo "the binary does not start: $(tail -n 1 "$work/stderr")"; return 1; }
  if [ "$count" -gt 0 ]; then
    echo "copied $count of ${#files[@]} files, $((bytes / 1000000)) MB; digests match"
  else
    echo "all ${#files[@]} files are up to date; digests match"
  fi
}

failed=0
for host in "$@"; do
  if is_this_host "$host"; then
    echo "$host: this host"
  elif output=$(deploy); then
    echo "$host: $output"
  else
    echo "deploy: $host: $output" >&2
    failed=1
  fi
done
exit "$failed"
