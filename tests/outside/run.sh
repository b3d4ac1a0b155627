#!/usr/bin/env bash
# Tests burn-mpi and burn-fused as a user would use them: packs both, unpacks them outside the workspace, and
# runs their tests there, and programs that depend on them and Burn alone. Checks that the averaged gradients
# of a program at 1, 2 and 3 ranks are those of one process on all samples. Also checks burn-mpi's examples
# and burn-train over MPI. The features of Burn differ from the workspace's, so Burn is compiled once more:
# without optimization, which takes half the time.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh
# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpirun=$(mpi_command mpirun) || exit 1
# The target folder of the workspace, so that a crate which both compile in the same way is compiled once.
export CARGO_TARGET_DIR=$PWD/target$([ "$MPI" = openmpi ] || echo "-$MPI")
export CARGO_PROFILE_DEV_DEBUG=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# The folders of the packed libraries and of the programs lie as in the repository.
packed=$work/packed
manifest=$packed/tests/outside/Cargo.toml

packs() {
  local crate file
  rm -f "$CARGO_TARGET_DIR"/package/*.crate
  # Warnings are errors. The tests below build the packages, so cargo need not.
  scripts/cargo.sh package --locked --allow-dirty --no-verify --package burn-fused --package burn-mpi 2>&1 |
    tee "$work/package" && ! grep -A 3 '^warning' "$work/package" || return
  mkdir -p "$packed/crates" "$packed/tests" && cp -r examples "$packed/" && cp -r tests/outside "$packed/tests/" ||
    return
  for crate in burn-fused burn-mpi; do
    tar -xzf "$CARGO_TARGET_DIR/package/$crate"-*.crate -C "$packed/crates" &&
      mv "$packed/crates/$crate"-[0-9]* "$packed/crates/$crate" || return
    for file in LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md; do
      [ -f "$packed/crates/$crate/$file" ] || { echo "$file is not in the package of $crate" && return 1; }
    done
  done
  note=$(sed -n 's/^ *Packaged //p' "$work/package" | paste -sd '; ')
}

builds() {
  scripts/cargo.sh build --locked --manifest-path "$manifest" 2>&1 | tee "$work/build" &&
    note="$(awk '/^ *Compiling/ { n++ } END { print n + 0 }' "$work/build") crates"
}

# MPI's compiler and libclang are not found, so this fails if the test needs MPI.
tests_its_loop() {
  MPICC=/no/mpicc LIBCLANG_PATH=/no/libclang scripts/cargo.sh test --locked --no-default-features \
    --manifest-path "$manifest" --test own_loop
}

# Also tests burn-mpi's module `train`, which is not part of the workspace's build, because burn-train is not.
tests_of_a_package() { # tests_of_a_package CRATE TARGET...
  scripts/cargo.sh test --locked --manifest-path "$manifest" --package "$1" "${@:2}" 2>&1 | tee "$work/unit" &&
    note="$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0; exit !passed }' "$work/unit") passed"
}

trains() { # trains RANKS
  ranks "$1" outside
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(grep -o "rank . of $1: gradients within" "$work/out" | wc -l)" -eq "$1" ] &&
    note=$(head -n 1 "$work/out")
}

ranks() { # ranks N PROGRAM OPTION...
  local options=()
  if [ "$MPI" = openmpi ]; then
    options=(--bind-to core)
    [ "$1" -le "$(nproc)" ] || options=(--bind-to core:overload-allowed --oversubscribe)
  fi
  timeout "$limit" "$mpirun" -n "$1" "${options[@]}" "$CARGO_TARGET_DIR/debug/$2" "${@:3}" >"$work/out" 2>&1
}

# Succeeds if every rank printed that the check holds. mpirun forwards long output in pieces, so the text may
# be inside another rank's line.
all_hold() { # all_hold RANKS CHECK
  [ "$(grep -o "rank . of $1: $2 holds" "$work/out" | sort -u | wc -l)" -eq "$1" ]
}

# Runs a check of burn-train over MPI, which must hold on every rank.
learns() { # learns RANKS CHECK
  rm -rf "$work/learner"
  ranks "$1" learner "$2" "$work/learner"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && all_hold "$1" "$2"
}

# The job must end, and one line must name the rank and the reason. The line may begin behind a piece of other
# output.
refuses() { # refuses RANKS LINE PROGRAM OPTION...
  ranks "$1" "${@:3}"
  local status=$?
  cat "$work/out"
  [ $status -ne 0 ] && [ $status -ne 124 ] && [ "$(grep -oE "$3: $2" "$work/out" | wc -l)" -eq 1 ]
}

# Runs a check of burn-mpi's examples, or of the library functions that they use. It must hold on every rank.
holds() { # holds RANKS EXAMPLE CHECK
  rm -rf "$work/loops" && mkdir "$work/loops"
  ranks "$1" loops "$2" "$3" "$work/loops"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && all_hold "$1" "$3"
}

# The training of an example must end with the same weights on all ranks.
ends_alike() { # ends_alike RANKS EXAMPLE
  ranks "$1" loops "$2" train
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(grep -o "rank . of $1: weights " "$work/out" | wc -l)" -eq "$1" ] &&
    [ "$(grep -o "rank . of $1: weights [0-9a-f]*" "$work/out" | cut -d " " -f 6 | sort -u | wc -l)" -eq 1 ]
}

# The mount is in its own namespace, so it ends with the job.
on_a_full_disk() { # on_a_full_disk RANKS
  mkdir -p "$work/full"
  # shellcheck disable=SC2016 # expanded by the shell inside
  export -f ranks && export work MPI mpirun limit
  unshare -m bash -c 'mount -t tmpfs -o size=256k tmpfs "$work/full" && ranks "$1" loops library full "$work/full"' \
    bash "$1"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && all_hold "$1" full
}

# The last value in the output must be below SHARE times the first one.
falls() { # falls SHARE 's/PATTERN/VALUE/p'
  sed -nE "$2" "$work/out" | awk -v share="$1" 'NR == 1 { first = $1 } { last = $1 }
    END { print "from", first, "to", last; exit !(NR > 1 && last < share * first) }' >"$work/falls" &&
    note=$(cat "$work/falls")
}

own_loop_learns() { # own_loop_learns RANKS
  ranks "$1" own_loop "$work/own"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ -s "$work/own.bpk" ] && falls 0.3 's/^epoch [0-9]+: loss (.*)/\1/p'
}

# Two jobs of the example must print the same metrics.
repeats() { # repeats RANKS EXAMPLE
  local first
  ranks "$1" "$2" && first=$(grep '^epoch' "$work/out") && ranks "$1" "$2" || { cat "$work/out"; return 1; }
  [ "$first" = "$(grep '^epoch' "$work/out")" ]
}

# An invalid option must fail before the network is allocated, and a pipe must not be waited for.
char_gpt_refuses() { # char_gpt_refuses LINE OPTION...
  refuses 2 "rank 0 on [^ ]*: $1" char_gpt "${@:2}"
}

regression_learns() { # regression_learns RANKS
  ranks "$1" regression
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(sed -nE 's/^rank .: ([0-9]+) of 1003 samples.*/\1/p' "$work/out" |
    awk '{ sum += $1 } END { print sum, NR }')" = "1003 $1" ] &&
    falls 0.3 's/^epoch [0-9]+: mean squared error ([0-9.]+),.*/\1/p'
}

# Trains on the data set of `guide_learns`.
own_cnn_learns() { # own_cnn_learns RANKS
  ranks "$1" own_cnn "$work/digits" --batch 16 --steps 30
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && awk '$1 == "accuracy" { found = $2 } END { exit found < 0.5 }' "$work/out"
}

# A damaged file must be named before the training starts.
own_cnn_refuses() { # own_cnn_refuses FILE COMMAND
  rm -rf "$work/damaged" && cp -r "$work/digits" "$work/damaged" && (cd "$work/damaged" && eval "$2") &&
    refuses 2 "rank 0 on [^ ]*: [^ ]*/$1[: ]" own_cnn "$work/damaged" && ! grep -q "steps per epoch" "$work/out"
}

char_gpt_learns() { # char_gpt_learns RANKS OPTION...
  ranks "$1" char_gpt --width 16 --layers 1 --heads 2 --batch 8 --tokens 8 --steps 60 --rate 1e-2 "${@:2}"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && grep -qE '^[0-9.]+ ms per step' "$work/out" && grep -q '^gradients: .* hidden, .* exposed' "$work/out" &&
    falls 0.5 's/^step [0-9]+: perplexity (.*)/\1/p'
}

# Runs the guide of Burn's book over MPI. The accuracy is read from burn-train's summary.
guide_learns() {
  target/release/mpiburn -q data digits --out "$work/digits" --train 601 --test 101 &&
    ranks 2 learner_mnist "$work/digits" 2
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] || return
  note=$(sed -n 's/^| Valid *| Accuracy *|.*| *\([0-9.]*\) *| [0-9]* *|$/\1/p' "$work/out" | tail -n 1)
  [ -s "$work/digits/guide/model.bpk" ] && awk -v found="${note:-0}" 'BEGIN { exit found < 60 }'
}

# burn-mpi must not depend on crates for terminals, tables, pictures or command lines. Those are the
# program's.
depends_on_little() {
  local tree found
  tree=$(scripts/cargo.sh tree --locked --package burn-mpi --edges normal --prefix none --features gloo) || return 1
  grep -q '^burn v' <<<"$tree" || return 1
  found=$(grep -E '^(clap|indicatif|comfy-table|plotters|maud|csv|env_logger|mimalloc)( |_)' <<<"$tree")
  [ -z "$found" ] || { echo "$found" && return 1; }
  note="$(sort -u <<<"${tree// (\*)/}" | wc -l) crates"
}

check "burn-mpi depends on nothing for terminals, tables or pictures" depends_on_little
check "burn-fused and burn-mpi are packages" packs
check "a program outside the workspace builds with them" builds
check "its loop is tested by cargo test, without MPI" tests_its_loop
check "tests of the package burn-mpi, with burn-train" tests_of_a_package burn-mpi --lib --example first \
  --test exchange --test prefetch --test types
check "the programs in the documentation of burn-mpi compile" tests_of_a_package burn-mpi --doc -- Readme RankOutput
# Without optimization, the other unit tests of burn-fused take minutes. The workspace runs them.
check "tests of the package burn-fused" tests_of_a_package burn-fused --lib -- \
  nn::activation nn::linear nn::loss nn::norm ops::linear ops::loss optim:: runtime:: tests::types
for ranks in 1 2 3; do
  check "its gradients at $ranks ranks are those of one process, $mpi_name" trains $ranks
done
check "burn-train over one rank is burn-train's own, bit by bit" learns 1 alone
for ranks in 1 3; do
  for what in one-step uneven workers resume early interrupted; do
    check "burn-train over $ranks ranks: $what" learns $ranks $what
  done
done
# One of three ranks fails, so rank 0 and another rank must both notice it.
check "a loader that fails, 3 ranks" refuses 3 "rank 2 on [^ ]*: the data loader failed: sample 52" learner fail "$work/learner"
check "a panic, 3 ranks" refuses 3 "rank 2 on [^ ]* panicked" learner panic "$work/learner"
check "fewer samples than ranks, 3 ranks" refuses 3 "rank 2 on [^ ]* gets no sample: .* has 2 for 3 ranks;" learner few "$work/learner"
check "another model on a rank, 3 ranks" refuses 3 "parameter 0 of the module differs between ranks: rank 1" learner other "$work/learner"
check "another batch size on a rank, 3 ranks" refuses 3 "the batch size of the training loader differs between ranks: rank 2 on [^ ]* has 2, rank 0 has 4" learner batch "$work/learner"
check "a loader whose progress is ahead of its batches, 3 ranks" refuses 3 "rank [0-9] on [^ ]*: the data loader .* progress stays at [0-9]* samples" learner ahead "$work/learner"
check "another optimizer on a rank, 3 ranks" refuses 3 "after the first step \\(ranks need the same optimizer, rate and clipping\\), .* differs between ranks: rank 2" learner optimizer "$work/learner"
for ranks in 1 3; do
  for what in shards metrics records misuse; do
    check "the library's $what at $ranks ranks" holds $ranks library $what
  done
  for example in own_loop regression char_gpt char_lstm; do
    check "$example at $ranks ranks: gradients of each step are those of one process" holds $ranks $example gradients
  done
done
for example in own_loop regression char_gpt char_lstm; do
  check "$example at 3 ranks: the same weights on all" ends_alike 3 $example
done
check "own_loop learns at 2 ranks" own_loop_learns 2
check "regression learns at 2 ranks" regression_learns 2
check "char_gpt learns a file at 2 ranks" char_gpt_learns 2 --text LICENSE-MIT
check "char_gpt, layers of an LSTM" char_gpt_refuses "--layers requires --network gpt" --network lstm --layers 2
check "char_gpt, windows whose mask is beyond memory" char_gpt_refuses "--batch 16 --tokens 100000: the attention mask would have [0-9]* values" --tokens 100000
for example in own_loop regression; do
  check "$example gives the same results again" repeats 2 $example
done
mkfifo "$work/pipe" && : >"$work/empty"
check "char_gpt, a rate of NaN" char_gpt_refuses "--rate nan: a number above 0 and at most 1" --rate nan
check "char_gpt, a width beyond memory" char_gpt_refuses "--width 65536 --layers 9: the network would have about [0-9]* parameters" --width 65536 --layers 9
check "char_gpt, windows beyond memory" char_gpt_refuses "--tokens 1000000000000: a number from 1 to" --tokens 1000000000000
check "char_gpt, an empty text" char_gpt_refuses "$work/empty: contains 0 characters; .* 65" --text "$work/empty"
check "char_gpt, a pipe as text" char_gpt_refuses "$work/pipe: is not a regular file" --text "$work/pipe"
for example in own_loop regression char_gpt; do
  check "$example, 3 ranks: a data set that fails" refuses 3 \
    "rank 2 on [^ ]*: cannot read the samples of step [0-9]*: sample [0-9]* is damaged" loops $example fail
  check "$example, 3 ranks: a panic" refuses 3 "rank 2 on [^ ]* panicked" loops $example panic
  check "$example, 3 ranks: fewer samples than ranks" refuses 3 \
    "rank 2 on [^ ]* gets no sample: .* has 2 for 3 ranks;" loops $example few
  check "$example, 3 ranks: another model on a rank" refuses 3 \
    "parameter 0 of the module differs between ranks: rank 2" loops $example other
done
check "a record that does not fit on the disk" on_a_full_disk 2
check "the guide of Burn's book at 2 ranks" guide_learns
check "own_cnn learns at 2 ranks" own_cnn_learns 2
check "own_cnn, a file that ends early" own_cnn_refuses t10k-images-idx3-ubyte "truncate -s -1 t10k-images-idx3-ubyte"
check "own_cnn, a label above 9" own_cnn_refuses train-labels-idx1-ubyte \
  "printf '\377' | dd of=train-labels-idx1-ubyte bs=1 seek=20 conv=notrunc status=none"
check "own_cnn, a pipe as a file" own_cnn_refuses train-labels-idx1-ubyte \
  "rm train-labels-idx1-ubyte && mkfifo train-labels-idx1-ubyte"
exit $failed
