#!/usr/bin/env bash
# Tests scripts/deploy.sh: deploys to a node that has an ssh server but no file of the project, and runs the
# deployed binary there. Needs a release build.
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
# shellcheck source-path=SCRIPTDIR source=testing.sh
. "$(dirname "$(readlink -f "$0")")/testing.sh"
MPI=openmpi
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. "$project/scripts/mpi.sh"

binary=$project/target/release/mpiburn
data=$work/digits
keys=$work/ssh
mkdir "$keys"

by_ssh() { "$here/enter.sh" node0 ssh -F "$keys/config" node1 "$@"; }

deploy() { # deploy HOST...
  "$here/enter.sh" node0 env SSH="ssh -F $keys/config" BIN="$binary" DATA="$data" scripts/deploy.sh "$@"
}

prints() { # prints LINE COMMAND...: it succeeds and prints a line of that pattern
  local line=$1
  shift
  note=$("$@" 2>&1) || { echo "$note"; note=; return 1; }
  note=$(grep -xE "$line" <<<"$note") || return
}

fails_with() { # fails_with LINE COMMAND...: one line and a non-zero exit code
  local line=$1
  shift
  note=$("$@" 2>&1) && return 1
  grep -qxE "$line" <<<"$note" && [ "$(wc -l <<<"$note")" -eq 1 ]
}

makes_data() { "$binary" -q data digits --out "$data" --train 800 --test 100; }

starts() { # starts [MOUNT_OPTIONS]: node1 with an ssh server and an empty file system
  "$here/up.sh" && "$here/sshd.sh" "$keys" node1 "$@"
}

is_empty_there() {
  local found
  found=$(by_ssh "ls -A '$project'") && [ -z "$found" ]
}

digests_match() {
  diff <(sha256sum "$binary" "$data"/*) <(by_ssh "sha256sum '$binary' '$data'/*")
}

runs_there() {
  note=$(by_ssh "'$binary' --version") && [ "$note" = "$("$binary" --version)" ]
}

restores_what_differs() {
  by_ssh "echo other >>'$binary' && rm '$data/train-labels-idx1-ubyte'" &&
    prints 'node1: copied 2 of 5 files, .* digests match' deploy node1 && digests_match
}

in_server() {
  local server
  server=$(ip netns pids "$(namespace_of node1)" | head -n 1)
  nsenter --mount --target "$server" "$@"
}

# Hides a library from the ssh server, and so from the commands that it starts.
lacks_a_library() {
  # shellcheck disable=SC2016
  in_server sh -e -c '
    folder=$(dirname "$(realpath "$(ldd "$1" | sed -n "s/.*libgloo.* => \(.*\) (.*/\1/p")")")
    mkdir /tmp/changes /tmp/work
    mount -t overlay -o "lowerdir=$folder,upperdir=/tmp/changes,workdir=/tmp/work" overlay "$folder"
    rm "$folder"/libgloo.so*' sh "$binary" || return
  fails_with 'deploy: node1: missing libraries libgloo.*; install libgloo0' deploy node1
}

has_no_mpirun() {
  in_server mount --bind /dev/null "$(readlink -f "$(command -v mpirun.openmpi || command -v mpirun)")" &&
    fails_with 'deploy: node1: mpirun.* not found; install openmpi-bin libopenmpi-dev' deploy node1
}

# Trains with mpirun's own ssh, and with the deployed binary and data.
trains_over_ssh() {
  local by
  by=$(mpi_command mpirun) || return
  timeout "$limit" "$here/enter.sh" node0 "$by" --allow-run-as-root --host node0:1,node1:1 --map-by ppr:1:node \
    --bind-to core --mca plm_rsh_agent "ssh -F $keys/config" --mca oob_tcp_if_include "$subnet" \
    --mca btl_tcp_if_include "$subnet" "$binary" -q train --data-root "$data" --epochs 1 --out "$work/run" &&
    grep -q '"status": "completed"' "$work/run/run.json"
}

lost_key() {
  : >"$keys/known_hosts"
  fails_with 'deploy: node1: its host key is unknown or has changed; run once by hand: ssh node1' deploy node1
}

no_login() {
  mv "$keys/user" "$keys/away"
  fails_with 'deploy: node1: no login without a password; run once: ssh-copy-id node1' deploy node1
  local status=$?
  mv "$keys/away" "$keys/user"
  return "$status"
}

check "the data set" makes_data
check "up.sh, with an ssh server on node1" starts
check "node1 has nothing of the project" is_empty_there
check "deploy.sh copies all" prints 'node1: copied 5 of 5 files, .* MB; digests match' deploy node1
check "digests match" digests_match
check "the binary runs there" runs_there
check "2x1 trains over ssh with the deployed files" trains_over_ssh
check "a second deployment copies nothing" prints 'node1: all 5 files are up to date; digests match' deploy node1
check "only files that differ are copied" restores_what_differs
check "this host is skipped" prints 'node0: this host' deploy node0 10.77.0.1
check "an unknown host" fails_with 'deploy: nohost: unknown host; .*' deploy nohost
check "no login" no_login
check "no binary" fails_with 'deploy: no .*; run make build' env BIN=target/none scripts/deploy.sh node1
check "no data set" fails_with 'deploy: no data set in .*; run make data' env DATA="$work/none" scripts/deploy.sh node1
check "no hosts" fails_with 'deploy: name the hosts: .*' scripts/deploy.sh
check "a missing library" lacks_a_library
check "no mpirun" has_no_mpirun
check "an unknown host key" lost_key
check "node1 with a full disk" starts size=4m
check "no space" fails_with 'deploy: node1: cannot write: .*No space left on device' deploy node1
check "node1 with a read-only file system" starts ro
check "no write access" fails_with 'deploy: node1: cannot write: .*Read-only file system' deploy node1
check "up.sh, without an ssh server" "$here/up.sh"
check "no ssh server" fails_with 'deploy: node1: no ssh server answers; install openssh-server there' deploy node1
exit "$failed"
