#!/usr/bin/env bash
# Writes the host files of all topologies for two machines into hostfiles/local, which git ignores and
# `mpiburn launch` and `sweep` prefer to the examples in hostfiles:
#
#   scripts/hostfiles.sh FIRST [SECOND]
#
# Start mpirun on the first. With one machine only 1x1 and 1x2 are written.
set -euo pipefail
cd "$(dirname "$0")/.."

hosts=("$@")
[ ${#hosts[@]} -ge 1 ] && [ ${#hosts[@]} -le 2 ] || {
  echo "hostfiles: ${#hosts[@]} machines named, one or two expected: make hosts HOSTS=\"alpha beta\"" >&2
  exit 1
}
for host in "${hosts[@]}"; do
  [[ $host =~ ^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$ ]] || {
    echo "hostfiles: '$host' is not a host name" >&2
    exit 1
  }
done

mkdir -p hostfiles/local
for nodes in 1 2; do
  [ "$nodes" -le ${#hosts[@]} ] || continue
  for ranks in 1 2; do
    file=hostfiles/local/${nodes}x$ranks
    echo "# $nodes machine(s), $ranks rank(s) on each; written by: make hosts HOSTS=\"${hosts[*]}\"" >"$file.new"
    for host in "${hosts[@]:0:nodes}"; do
      echo "$host slots=$ranks" >>"$file.new"
    done
    mv "$file.new" "$file"
  done
done
