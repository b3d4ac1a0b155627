#!/usr/bin/env bash
# Writes the host files of all topologies of one or two machines into hostfiles/local. git ignores this
# folder, and `mpiburn launch` and `sweep` prefer it to the examples in hostfiles:
#
#   scripts/hostfiles.sh FIRST [SECOND]
#
# Start mpirun on machine FIRST. With one machine, only the files 1x1 and 1x2 are written, and earlier files
# of two machines are removed.
set -euo pipefail
cd "$(dirname "$0")/.."

hosts=("$@")
[ ${#hosts[@]} -ge 1 ] && [ ${#hosts[@]} -le 2 ] || {
  echo "hostfiles: ${#hosts[@]} machines named, one or two expected: make hosts HOSTS=\"alpha beta\"" >&2
  exit 1
}
for host in "${hosts[@]}"; do
  [[ $host =~ ^([A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$ ]] || {
    echo "hostfiles: '$host' is not a host name" >&2
    exit 1
  }
done
[ ${#hosts[@]} -eq 1 ] || [ "${hosts[0]}" != "${hosts[1]}" ] || {
  echo "hostfiles: ${hosts[0]} is named twice: name each machine once, or one alone for make 1x2" >&2
  exit 1
}

mkdir -p hostfiles/local
for nodes in 1 2; do
  for ranks in 1 2; do
    file=hostfiles/local/${nodes}x$ranks
    if [ "$nodes" -gt ${#hosts[@]} ]; then
      # An earlier call wrote this file, for machines that this call does not name.
      [ ! -e "$file" ] || { rm "$file" && echo "hostfiles: removed $file, which needs two machines" >&2; }
      continue
    fi
    echo "# $nodes machine(s), $ranks rank(s) on each; written by: make hosts HOSTS=\"${hosts[*]}\"" >"$file.new"
    for host in "${hosts[@]:0:nodes}"; do
      echo "$host slots=$ranks" >>"$file.new"
    done
    mv "$file.new" "$file"
  done
done
