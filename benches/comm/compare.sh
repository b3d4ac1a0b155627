#!/usr/bin/env bash
# Compares the all-reduce of mpiburn with a plain C loop around MPI_Allreduce, or (BACKEND=gloo) with a plain
# C++ loop around gloo's all-reduce. The two programs take turns. The median over rounds of mpiburn's median
# times must be at most LIMIT times the plain loop's; otherwise the exit code is 1.
#
#   benches/comm/compare.sh                     2 ranks, 9 rounds
#   BACKEND=gloo benches/comm/compare.sh
#   ROUNDS=15 RANKS=4 benches/comm/compare.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

BIN=${BIN:-target/release/mpiburn}
RANKS=${RANKS:-2}
ROUNDS=${ROUNDS:-9}
LIMIT=${LIMIT:-1.15}
BACKEND=${BACKEND:-mpi}
# Message sizes in bytes (17 KiB and 13 MiB), and the timed calls of each size in a round.
SIZES=(17408 13631488)
ITERATIONS=(1000 60)

[ -x "$BIN" ] || { echo "$BIN not found: run make build first" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $BACKEND in
  mpi) "${MPICC:-mpicc}" -O3 -Wall -Wextra -o "$work/allreduce" benches/comm/allreduce.c ;;
  gloo) "${MPICXX:-mpicxx}" -O3 -std=c++17 -o "$work/allreduce" benches/comm/gloo_allreduce.cc -lgloo ;;
  *) echo "BACKEND=$BACKEND: choose mpi or gloo" >&2; exit 2 ;;
esac

as_root=$([ "$(id -u)" -eq 0 ] && echo --allow-run-as-root || true)
bind=$([ "$RANKS" -le "$(nproc --all)" ] && echo core || echo core:overload-allowed --oversubscribe)
mpi() { # mpi PROGRAM ARGUMENTS...
  # shellcheck disable=SC2086 # two lists of words
  mpirun $as_root -n "$RANKS" --bind-to $bind "$@"
}

time_c() { # time_c BYTES ITERATIONS
  case $BACKEND in
    mpi) mpi "$work/allreduce" "$2" "$1" | awk '{ print $3 }' >>"$work/c-$1" ;;
    gloo)
      # gloo exchanges addresses through files, so each run needs a new folder.
      mpi "$work/allreduce" "$2" "$1" "$(mktemp -d "$work/store.XXXX")" | awk '{ print $2 }' >>"$work/c-$1"
      ;;
  esac
}
time_mpiburn() { # time_mpiburn BYTES ITERATIONS
  mpi "$BIN" -q bench allreduce --backends "$BACKEND" --sizes "$1" --iterations "$2" --csv "$work/csv" >"$work/log"
  awk -F, 'NR == 2 { print $4 }' "$work/csv" >>"$work/mpiburn-$1"
}
median() { # median FILE
  sort -g "$1" | awk '{ all[NR] = $1 } END { h = int((NR + 1) / 2); print NR % 2 ? all[h] : (all[h] + all[h + 1]) / 2 }'
}

for ((round = 0; round < ROUNDS; round++)); do
  for i in "${!SIZES[@]}"; do
    # The programs start in alternating order.
    if ((round % 2)); then order=(mpiburn c); else order=(c mpiburn); fi
    for program in "${order[@]}"; do
      "time_$program" "${SIZES[$i]}" "${ITERATIONS[$i]}"
    done
  done
done

least() { # least FILE
  sort -g "$1" | head -n 1
}

echo "$RANKS ranks, $ROUNDS rounds in turn; load average $(cut -d ' ' -f 1 /proc/loadavg)"
row='%10s %12s %12s %8s %16s\n'
# shellcheck disable=SC2059 # the format of the table
printf "$row" bytes 'plain us' 'mpiburn us' ratio 'fastest rounds'
failed=0
for bytes in "${SIZES[@]}"; do
  # Load of other programs only adds time. If the ratio of the two fastest rounds is small, load has caused a
  # large ratio of medians.
  awk -v row="$row" -v bytes="$bytes" -v limit="$LIMIT" \
    -v c="$(median "$work/c-$bytes")" -v c_least="$(least "$work/c-$bytes")" \
    -v m="$(median "$work/mpiburn-$bytes")" -v m_least="$(least "$work/mpiburn-$bytes")" 'BEGIN {
    printf row, bytes, c, m, sprintf("%.3f", m / c), sprintf("%.3f", m_least / c_least)
    exit !(c > 0 && m > 0 && m / c <= limit)
  }' || failed=1
done
[ $failed -eq 0 ] || echo "a ratio is above $LIMIT" >&2
exit $failed
