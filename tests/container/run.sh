#!/usr/bin/env bash
# Runs the steps of the Dockerfile's second stage where no container engine is, as root, in a Debian that mmdebstrap makes
# (apt-get install mmdebstrap), and checks the result: its size, a training by a user that it does not know, and an
# ssh server without root.
#
#   tests/container/run.sh            # with target/release/mpiburn, which scripts/build.sh makes as in the first stage
#   CRD=mpijobs.yaml tests/container/run.sh   # and the manifest against the operator's published schema
set -euo pipefail
project=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cd "$project"
die() {
  echo "container: $*" >&2
  exit 1
}
if [ -n "${CRD-}" ]; then python3 tests/container/manifest.py "$CRD" containers/mpijob.yaml; fi
[ "$(id -u)" -eq 0 ] || die "chroot needs root"
command -v mmdebstrap >/dev/null || die "no mmdebstrap here; install it"
[ -x target/release/mpiburn ] || die "no target/release/mpiburn; run make build"
if [ -z "${INSIDE-}" ]; then INSIDE=1 exec unshare --mount --pid --fork "$0"; fi

root=$(mktemp -d)
chmod 755 "$root"
# Nothing is removed below a mount that stays.
trap '! mountpoint -q "$root/dev" || umount --lazy "$root"/{proc,dev} && rm -rf --one-file-system "$root"' EXIT
enter() { env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/mpiuser DEBIAN_FRONTEND=noninteractive "$@"; }

stage=0
while IFS= read -r line; do
  read -r step rest <<<"$line"
  echo "container: $step $rest"
  [ "$step" = FROM ] && stage=$((stage + 1))
  case $stage:$step in
    # As the image is, without documentation.
    2:FROM)
      [ "$rest" = debian:bookworm-slim ] || die "this script makes debian:bookworm-slim, and the Dockerfile has $rest"
      mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root"
      cp /etc/resolv.conf "$root/etc/resolv.conf"
      mount --bind /dev "$root/dev"
      mount -t proc proc "$root/proc"
      ;;
    2:RUN) enter chroot "$root" sh -c "$rest" >"$root.log" 2>&1 || die "$(tail -n 5 "$root.log")" ;;
    2:COPY)
      [[ $rest =~ ^--from=build\ /mpiburn/([^ ]+)\ ([^ ]+)$ ]] || die "this script does not know COPY $rest"
      cp "${BASH_REMATCH[1]}" "$root${BASH_REMATCH[2]}"
      ;;
    1:* | 2:USER | 2:WORKDIR | 2:CMD) ;;
    *) die "this script does not know $step" ;;
  esac
done < <(sed -e '/^#/d' Dockerfile | sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' -e '/^$/d')
rm -f "$root.log"

size=$(du --one-file-system -sm "$root" | cut -f1)
[ "$size" -lt 300 ] || die "the image has $size MB, of 300 at most"

as() { # as USER COMMAND...
  local user=$1
  shift
  enter chroot --userspec="$user" "$root" sh -c "cd /tmp/work && $*"
}
mkdir -m 1777 "$root/tmp/work"
as 4321:4321 mpiburn data digits --train 640 --test 100 --out data/digits
as 4321:4321 mpirun -n 2 --oversubscribe --bind-to none mpiburn train --data-root data/digits --epochs 1 --out run
grep -q '"status": "completed"' "$root/tmp/work/run/run.json" || die "the training is not complete"

# As the operator does: a key of the job, mounted into each container.
as mpiuser 'mkdir -m 700 ~/.ssh && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa && cp ~/.ssh/id_rsa.pub ~/.ssh/authorized_keys'
as mpiuser '/usr/sbin/sshd -De -f ~/.sshd_config & server=$!
  until ssh -o BatchMode=yes 127.0.0.1 mpiburn --version; do kill -0 $server || exit 1; sleep 0.1; done; kill $server'
echo "container: $size MB; a training and an ssh server without root"
