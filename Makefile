# mpiburn: data-parallel training of Burn models over MPI.
#
#   make run                      set up, build, generate the data set, train on two cores
#   make 1x2 ARGS="--epochs 1"    one machine, two processes; options in ARGS override the target's
#   make 2x2 HOSTS="alpha beta"   two machines, two processes on each
#   make 1x2 MPI=mpich            the same with MPICH, in a separate build
#   make help                     all targets

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Data sets: digits, and for `make tables` also objects and feature vectors. ARGS are further options of
# `mpiburn train`. DEVICES are features to build in: compute backends and nccl.
DATA    ?= data/digits
OBJECTS ?= data/objects
VECTORS ?= data/features
ARGS    ?=
DEVICES ?=
# The MPI to build for: openmpi or mpich.
MPI     ?= openmpi
export MPI

comma    := ,
FEATURES := $(subst $(comma), ,$(DEVICES))
# The default build is in target/release. A build for another MPI or with DEVICES has a folder of its own,
# such as target-mpich.
TARGET   := target$(if $(filter-out openmpi,$(MPI)),-$(MPI))$(if $(DEVICES),-$(subst $(comma),-,$(DEVICES)))
BIN      := $(TARGET)/release/mpiburn
export CARGO_TARGET_DIR := $(TARGET)

# Topologies NxC: N machines, C processes on each. HOSTS="alpha beta" first writes hostfiles/local for these
# machines. CLUSTER=lab uses the emulated nodes of `make cluster-up` (and of `make slurm-up`).
HOSTS    ?=
BACKEND  ?=
CLUSTER  ?=
LAB       = $(if $(filter lab,$(CLUSTER)),--mpirun-by tests/cluster/mpirun.sh --srun-by tests/slurm/srun.sh)
LAUNCH    = $(BIN) launch $@ $(LAB) -- train --data-root $(DATA) $(if $(BACKEND),--backend $(BACKEND))

# Generates a data set unless its folder has files: $(call make_data,KIND,FOLDER).
make_data = [ -n "$$(ls -A $(2) 2>/dev/null)" ] || $(BIN) data $(1) --out $(2)

# Scale of `make tables`: full or quick.
SCALE   ?= full

# Minutes of `make soak`, and seconds of each target of `make fuzz`.
MINUTES ?= 30
SECONDS ?= 60

# Rate and delay of the link between the nodes of `make cluster-up` and `make slurm-up`.
RATE    ?= 1gbit
DELAY   ?=

# `make faults`: the number of faults, and the seed they are drawn from.
N       ?= 200
SEED    ?= 1

.PHONY: help setup build data run 1x1 1x2 2x1 2x2 hosts deploy tables test test-all lint compare-pytorch bench icount bench-comm bench-predict faults fuzz neon sanitize soak cluster-up cluster-down slurm-up slurm-down clean

help: ## Show the targets
	@grep -hE '^[0-9a-z -]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([^:]+):.*## (.*)/\1\t\2/' | expand -t 18

setup: ## Install missing packages: MPI (MPI=openmpi or mpich), libclang, gloo
	@scripts/setup.sh

build: setup ## Build the release binary (MPI=mpich; DEVICES=ndarray,tch,nccl for other backends)
	@scripts/build.sh $(FEATURES)

data: build ## Generate the default data set, once
	@$(call make_data,digits,$(DATA))

deploy: data ## Copy binary and data set to other hosts, at the same path (HOSTS="alpha beta")
	@BIN=$(BIN) DATA=$(DATA) scripts/deploy.sh $(HOSTS)

run: 1x2 ## Train the ConvNet on two cores of this machine

1x1 1x2 2x1 2x2: data $(if $(HOSTS),hosts) ## Train on NxC: machines x processes (HOSTS BACKEND ARGS CLUSTER=lab)
	@$(LAUNCH) $(ARGS)

hosts: ## Write host files into hostfiles/local: HOSTS="alpha beta"
	@scripts/hostfiles.sh $(HOSTS)

tables: data ## Run all sweeps of jobs/sweeps and write their report (SCALE=quick, CLUSTER=lab)
	@$(call make_data,objects,$(OBJECTS))
	@$(call make_data,features,$(VECTORS))
	@BIN=$(BIN) DATA=$(DATA) OBJECTS=$(OBJECTS) VECTORS=$(VECTORS) scripts/tables.sh $(SCALE) $(LAB)

lint: setup ## Check formatting, lints and documentation
	@tests/all.sh --lint

test: build ## Check formatting, lints and documentation; run unit tests and real mpirun jobs
	@tests/all.sh --test

test-all: build ## Run all tests before a release, also those of other builds, PyTorch, two nodes, Slurm and faults: takes hours
	@tests/all.sh

bench: compare-pytorch ## The same as compare-pytorch

compare-pytorch: data ## Run PyTorch and mpiburn in turn, print a table of the ratios of their times (ARGS="--rows vgg-32"); ONLY=library: networks of burn_fused::nn
	@tests/pytorch/setup.sh
ifeq ($(ONLY),library)
	scripts/cargo.sh build --release --workspace --features examples --example char_gpt --example own_cnn
	.venv/bin/python benches/pytorch/library.py --data $(DATA) $(ARGS)
else
	.venv/bin/python benches/pytorch/speed.py --data $(DATA) $(ARGS)
endif

icount: build ## Count instructions of a training step of each network with valgrind; fail at 3% above the recorded count (ARGS=--update)
	@tests/icount/run.sh $(ARGS)

bench-comm: build ## Compare mpiburn's all-reduces with plain C and C++ loops around MPI's and gloo's
	benches/comm/compare.sh
	BACKEND=gloo benches/comm/compare.sh

bench-predict: data ## Compare step times that `report` predicts with measured ones, on two emulated nodes
	@DATA=$(DATA) benches/predict.sh

faults: build ## Inject N random faults, drawn from SEED, into training jobs (N=200 SEED=1)
	@python3 tests/faults/run.py --binary $(BIN) --faults $(N) --seed $(SEED)

fuzz: ## Fuzz the readers of all files for SECONDS each, with cargo-fuzz (SECONDS=600 ARGS="idx npy")
	@fuzz/run.sh $(SECONDS) $(ARGS)

neon: ## Run the tests of burn-fused with NEON, on aarch64 or emulated by QEMU (ARGS=winograd)
	@tests/neon/run.sh $(ARGS)

sanitize: build ## Run AddressSanitizer, memcheck and ThreadSanitizer on tests and two-rank jobs (ARGS=memcheck)
	@tests/sanitize/run.sh $(ARGS)

soak: build ## Train on two ranks for MINUTES; fail if memory, open files or threads grow (MINUTES=30)
	@python3 tests/soak/run.py --binary $(BIN) --minutes $(MINUTES) -- $(ARGS)

cluster-up: ## Emulate two nodes on this machine with network namespaces (RATE=1gbit DELAY=0.1ms)
	@scripts/setup.sh --all
	RATE=$(RATE) DELAY=$(DELAY) tests/cluster/up.sh

cluster-down: ## Remove the nodes of cluster-up
	tests/cluster/down.sh

slurm-up: ## Emulate two nodes with a real Slurm; then run tests/slurm/run.sh sbatch jobs/2x2.sbatch
	@scripts/setup.sh --all
	RATE=$(RATE) DELAY=$(DELAY) tests/slurm/up.sh

slurm-down: ## Remove Slurm and the nodes of slurm-up
	tests/slurm/down.sh

clean: ## Remove builds, but not data sets and results
	rm -rf target target-*
