#!/usr/bin/env bash
# Runs the steps of the Dockerfile on a machine without a container engine, as root. Each stage runs in a
# Debian that mmdebstrap makes (apt-get install mmdebstrap). In place of the official Rust image, the first
# stage has this machine's Rust. Then checks the image's size, a training by a user id that the image does not
# know, and an ssh server without root.
#
#   tests/container/run.sh                    # builds from nothing
#   CRD=mpijobs.yaml tests/container/run.sh   # also checks the manifest against the operator's published schema
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
sysroot=$(rustc --print sysroot) || die "no rustc here"
if [ -z "${INSIDE-}" ]; then INSIDE=1 exec unshare --mount --pid --fork "$0"; fi

work=$(mktemp -d)
chmod 755 "$work"
# With this bind mount, one umount ends all mounts below it. rm does not enter a mount that remains.
mount --bind "$work" "$work"
trap 'umount --recursive --lazy "$work" && rm -rf --one-file-system "$work"' EXIT
enter() { env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# Makes a Debian in the folder $root, with these additional packages, and without documentation, as images
# have it.
debian() {
  mkdir "$root"
  mmdebstrap --quiet --variant=minbase --include="$1" --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  mount --bind /dev "$root/dev"
  mount -t proc proc "$root/proc"
}

stage=0
while IFS= read -r line; do
  read -r step rest <<<"$line"
  echo "container: $step $rest"
  [ "$step" != FROM ] || { stage=$((stage + 1)) folder=/ root=$work/$stage; }
  case $stage:$step in
    1:FROM)
      version=$(rustc --version | cut -d' ' -f2)
      [ "$rest" = "rust:${version%.*}-bookworm AS build" ] || die "this machine has Rust $version, and the Dockerfile $rest"
      # The other packages of the Rust image that the build needs.
      debian ca-certificates,gcc,git,libc6-dev,make,pkg-config
      mkdir -p "$root"/{rust,root/.cargo/registry}
      mount --bind "$sysroot" "$root/rust"
      # The crates that were downloaded already, and the certificates that this machine trusts for other
      # downloads.
      mount --bind "${CARGO_HOME:-$HOME/.cargo}/registry" "$root/root/.cargo/registry"
      cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
      ln -s /rust/bin/{cargo,rustc} "$root/usr/local/bin/"
      ;;
    2:FROM)
      [ "$rest" = debian:bookworm-slim ] || die "this script makes debian:bookworm-slim, and the Dockerfile has $rest"
      debian base-files
      ;;
    *:RUN) enter chroot "$root" sh -c "cd $folder && $rest" >"$work/log" 2>&1 || die "$(tail -n 5 "$work/log")" ;;
    1:COPY)
      [ "$rest" = ". ." ] || die "this script does not know COPY $rest"
      git ls-files --cached --others --exclude-standard -z | tar -c --null -T - .git | tar -x -C "$root$folder"
      ;;
    2:COPY)
      [[ $rest =~ ^--from=build\ ([^ ]+)\ ([^ ]+)$ ]] || die "this script does not know COPY $rest"
      cp "$work/1${BASH_REMATCH[1]}" "$root${BASH_REMATCH[2]}"
      ;;
    *:WORKDIR) folder=$rest && mkdir -p "$root$folder" ;;
    2:USER | 2:CMD) ;;
    *) die "this script does not know $step" ;;
  esac
done < <(sed -e '/^#/d' Dockerfile | sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' -e '/^$/d')

size=$(du --one-file-system -sm "$root" | cut -f1)
[ "$size" -lt 300 ] || die "the image has $size MB, of 300 at most"

as() { # as USER COMMAND...
  local user=$1
  shift
  enter HOME=/home/mpiuser chroot --userspec="$user" "$root" sh -c "cd /tmp/work && $*"
}
mkdir -m 1777 "$root/tmp/work"
as 4321:4321 mpiburn data digits --train 640 --test 100 --out data/digits
as 4321:4321 mpirun -n 2 --oversubscribe --bind-to none mpiburn train --data-root data/digits --epochs 1 --out run
grep -q '"status": "completed"' "$root/tmp/work/run/run.json" || die "the training is not complete"

# As the MPI Operator does: the job has a key, which is mounted into each container.
as mpiuser 'mkdir -m 700 ~/.ssh && ssh-keygen -q -t rsa -N "" -f ~/.ssh/id_rsa && cp ~/.ssh/id_rsa.pub ~/.ssh/authorized_keys'
as mpiuser '/usr/sbin/sshd -De -f ~/.sshd_config & server=$!
  until ssh -o BatchMode=yes 127.0.0.1 mpiburn --version; do kill -0 $server || exit 1; sleep 0.1; done; kill $server'
echo "container: $size MB; a training and an ssh server without root"
