#!/usr/bin/env bash
# Installs missing system packages that the build needs; with --all, also the packages that `make test-all`
# needs. Installed packages are left as they are, and no question is asked. MPI=mpich installs MPICH instead
# of Open MPI.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$(dirname "$(readlink -f "$0")")/mpi.sh"

missing=()
need() { # need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_libclang() {
  ldconfig -p | grep -q 'libclang[-.0-9]*\.so' || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*'
}
# libclang needs its own headers to parse mpi.h.
has_clang_headers() { compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h'; }
# torch.compile generates code that includes Python.h.
has_python_headers() { test -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; }
has_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' || compgen -G '/usr/lib*/faketime/libfaketime.so.1'; }
# Daemons may be outside a user's PATH.
has_daemon() { PATH=$PATH:/usr/sbin command -v "$1"; }

if ! command -v cargo >/dev/null; then
  echo "setup: no Rust toolchain: install one from https://rustup.rs, then try again" >&2
  exit 1
fi
for package in $mpi_packages; do
  case $package in
    lib*) need "$package" mpi_command mpicc ;;
    *) need "$package" mpi_command mpirun ;;
  esac
done
need libclang-dev has_libclang
need libclang-dev has_clang_headers
need libgloo-dev test -e /usr/include/gloo/allreduce.h
need g++ command -v g++
need python3 command -v python3
# mpirun starts ranks on other hosts with ssh.
need openssh-client command -v ssh
if [ "${1-}" = --all ]; then
  need iproute2 command -v ip
  need mpich mpirun.mpich --version
  need libmpich-dev command -v mpicc.mpich
  need openssh-server test -x /usr/sbin/sshd
  need python3-venv python3 -c 'import ensurepip, venv'
  need python3-dev has_python_headers
  need binutils command -v readelf
  need slurm-wlm has_daemon slurmctld
  need slurm-wlm has_daemon slurmd
  need slurm-wlm command -v srun
  need munge has_daemon munged
  need chromium command -v chromium
  need valgrind command -v valgrind
  need mmdebstrap command -v mmdebstrap
  need libfaketime has_faketime
fi

[ ${#missing[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends $(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')"
if ! command -v apt-get >/dev/null; then
  echo "setup: this system has no apt-get; install with its package manager: ${missing[*]}" >&2
  exit 1
elif [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  echo "setup: packages are missing and this user cannot install them; run: sudo $install" >&2
  exit 1
fi

echo "setup: $install"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)

# Do not let apt start or enable Slurm's and munge's services: tests/slurm starts the daemons that it needs,
# with its own settings. policy-rc.d forbids the start. If one exists, as in most containers, it is kept.
services=()
for package in "${missing[@]}"; do
  case $package in
    slurm-wlm) services+=(slurmctld slurmd) ;;
    munge) services+=(munge) ;;
  esac
done
policy=/usr/sbin/policy-rc.d
if [ ${#services[@]} -gt 0 ] && ! [ -e $policy ]; then
  trap '"${as_root[@]}" rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  "${as_root[@]}" chmod +x $policy
fi

# The installation fails if the package list is outdated, because the list names versions that no longer
# exist. The list is then updated once, and the installation repeated.
if ! "${as_root[@]}" $install >"$log" 2>&1; then
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" $install; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "setup: could not install; run it by hand: $install" >&2
    exit 1
  fi
fi
rm -f "$log"
if [ ${#services[@]} -gt 0 ] && command -v systemctl >/dev/null; then
  "${as_root[@]}" systemctl disable "${services[@]}" >/dev/null 2>&1 || true
fi
