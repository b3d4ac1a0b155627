#!/usr/bin/env bash
# Starts an ssh server on an emulated node. It runs until the node is removed:
#
#   tests/cluster/sshd.sh FOLDER HOST [MOUNT_OPTIONS]
#
# FOLDER gets the server's keys and settings, and FOLDER/config for `ssh -F`. /etc/ssh and ~/.ssh are neither
# read nor written. In place of the project's folder, commands on the server see an empty file system, as on
# another machine.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
[ $# -ge 2 ] || die "usage: sshd.sh FOLDER HOST [MOUNT_OPTIONS]"
folder=$(realpath "$1")
host=$2
options=${3:-size=1g}
require_host "$host"
for tool in /usr/sbin/sshd ssh ssh-keygen; do
  command -v "$tool" >/dev/null || die "no $tool; install openssh-server and openssh-client"
done

for key in host user; do
  [ -e "$folder/$key" ] || ssh-keygen -q -t ed25519 -N '' -f "$folder/$key"
done
cat >"$folder/sshd_config" <<END
HostKey /tmp/ssh/host
AuthorizedKeysFile /tmp/ssh/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
END
echo "$host,$(address_of "$host") $(cut -d' ' -f1,2 "$folder/host.pub")" >"$folder/known_hosts"
cat >"$folder/config" <<END
Host *
  BatchMode yes
  ConnectTimeout $limit
  IdentityFile $folder/user
  IdentitiesOnly yes
  UserKnownHostsFile $folder/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
END

# shellcheck disable=SC2016
"$(dirname "$(readlink -f "$0")")/enter.sh" "$host" sh -e -c '
  cp -r "$1" /tmp/ssh
  mount -t tmpfs tmpfs /run
  mkdir /run/sshd
  mount -t tmpfs -o "$3" tmpfs "$2"
  cd /
  exec /usr/sbin/sshd -D -e -f /tmp/ssh/sshd_config
' sh "$folder" "$project" "$options" >"$folder/log" 2>&1 </dev/null &
await grep -qs 'Server listening' "$folder/log" ||
  die "the ssh server did not start: $(tail -n 1 "$folder/log")"
