# Frostline: what one can do here. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

JOB ?= examples/image_classification/digits.yaml
ARGS ?=
SEED ?= 1
CASES ?= 200
CLUSTER ?=
REV ?=
PY := .venv/bin/python
PROTOC_PY := .venv-proto/bin/python
STAMP := .venv/.frostline-ready
PROTO_STAMP := .venv-proto/.frostline-ready
DOCS_STAMP := .venv-docs/.frostline-ready
BENCH_STAMP := .venv/.frostline-peers-ready
SOURCES := proto controller trainer cache_server tests tools examples docs/site
# Long ones first, so that the short ones fill both cores at the end.
TESTS := $(wildcard tests/e2e tests/integration tests/unit)
# Two test processes where there is memory for two pools of warm workers; TEST_JOBS=0 runs one test after the other.
TEST_JOBS ?= $(shell awk '/MemAvailable/ {print ($$2 > 12000000) ? 2 : 0}' /proc/meminfo)
IN_TURN = -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

export TORCH_INDEX_URL PYTHON
# One thread a process: numerics need it, and several processes share the cores.
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup run test test-wide test-kernels cluster-tools test-cluster test-cluster-wide lint format proto pins docs verify bench chaos model fuzz mutants bench-against same-bits gpu-check images clean

help: ## list these targets
	@printf 'usage: make TARGET [JOB=job.yaml] [ARGS="..."] [TORCH_INDEX_URL=...] [PYTHON=...]\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## install everything into .venv (once; run and test do it too). TORCH_INDEX_URL=... takes torch from there

$(STAMP): requirements.txt requirements-torch.txt $(wildcard */pyproject.toml) tools/setup.sh
	@tools/setup.sh
	@touch $@

run: $(STAMP) ## train: make run [JOB=examples/.../job.yaml] [ARGS="--workers 2 --set training.epochs=3"]
	@case $(JOB) in examples/*) if grep -q '\.cache/' $(JOB); then for script in $(dir $(JOB))*.py; do $(PY) "$$script"; done; fi;; esac # an example fetches its own data
	@.venv/bin/frostline run -f $(JOB) $(ARGS)

test: $(STAMP) ## unit, integration and end-to-end tests that this machine can run; says what it skips and why. TEST_JOBS=0: one at a time
	$(PY) -m pytest $(TESTS) $(IN_TURN) -q -ra -m "not wide" $(ARGS)

test-wide: $(STAMP) ## the widest tables: every family, type, shape, schedule and freeze history (about an hour)
	$(PY) -m pytest $(TESTS) -n $(TEST_JOBS) --dist load -q -ra -m wide $(ARGS)

test-kernels: $(STAMP) ## the tests of bits again, under each set of CPU kernels that this machine would not choose by itself
	$(PY) -m tests.kernels $(ARGS)

lint: $(STAMP) ## ruff, import boundaries, house rules, Dockerfiles
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/lint-imports --no-cache
	$(PY) tools/house_rules.py $(SOURCES)
	.venv/bin/hadolint */Dockerfile

format: $(STAMP) ## let ruff rewrite what it can
	.venv/bin/ruff check --fix $(SOURCES)
	.venv/bin/ruff format $(SOURCES)

proto: $(STAMP) $(PROTO_STAMP) ## regenerate stubs and other generated files
	tools/generate.sh .

$(PROTO_STAMP): requirements-proto.txt
	@printf 'installing the stub generator and uv into .venv-proto: about 30 MB\n'
	@.venv/bin/python -m venv --clear .venv-proto
	@$(PROTOC_PY) -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-proto.txt
	@touch $@

$(PROTO_STAMP): | $(STAMP)

$(DOCS_STAMP): requirements-docs.txt | $(STAMP)
	@printf 'installing Sphinx into .venv-docs: about 15 MB to download, 120 MB on disk\n'
	@$(PY) -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-docs.txt
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation into build/docs; a link that leads nowhere is an error
	@rm -rf build/docs
	@.venv-docs/bin/sphinx-build -q -W --keep-going -j auto -c docs/site . build/docs
	@printf 'docs: build/docs/index.html\n'

pins: $(STAMP) $(PROTO_STAMP) ## after a pin was edited: ask the package index for its hashes, and write what the images install
	$(PY) tools/pins.py hash
	$(PY) tools/pins.py images .

verify: $(STAMP) $(PROTO_STAMP) docs ## regenerate into a temporary folder and fail on any difference; build the docs
	tools/verify.sh

$(BENCH_STAMP): requirements-bench.txt | $(STAMP)
	@printf 'installing the peers that are measured beside ours into .venv: about 5 MB\n'
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-bench.txt
	@touch $@

bench: $(STAMP) $(BENCH_STAMP) ## benchmarks (two and a half hours); figures and pages go to docs/. ARGS="--only NAME" one of them, ARGS=--quick a smoke test
	$(PY) -m tests.benchmarks $(ARGS)

bench-against: $(STAMP) ## is this tree slower than REV=commit? The same steps, reshapes, reads and recoveries in both, by turns (half an hour)
	@test -n '$(REV)' || { printf 'bench-against: say which revision: make bench-against REV=HEAD~10\n' >&2; exit 2; }
	$(PY) -m tests.benchmarks.against $(REV) $(ARGS)

same-bits: $(STAMP) ## do the example jobs still end with the digests that they had at REV=commit? A few steps of each in both trees (minutes)
	@test -n '$(REV)' || { printf 'same-bits: say which revision: make same-bits REV=HEAD~10\n' >&2; exit 2; }
	$(PY) -m tests.same_bits $(REV) $(ARGS)

cluster-tools: $(STAMP) ## build the programs of the test cluster into the user's cache folder (once a user; ten minutes on two cores)
	@$(PY) -m tests.cluster.binaries
	@$(PY) -m tests.cluster.openapi

test-cluster-wide: $(STAMP) ## the other rows of the cluster's tests, and all of the chart's under Helm 3, which this builds first (minutes)
	@$(PY) -m tests.cluster.binaries helm3
	$(PY) -m pytest tests/cluster tests/images tests/chart -n $(TEST_JOBS) --dist worksteal -q -ra -m wide $(ARGS)

test-cluster: $(STAMP) ## tests on a real API server. CLUSTER=kubeconfig: on that cluster, those that need no nodes of ours
	@$(if $(CLUSTER),true,$(MAKE) cluster-tools) || printf 'without these programs: what needs them is skipped below, and says so\n' >&2
	FROSTLINE_TEST_KUBECONFIG=$(abspath $(CLUSTER)) $(PY) -m pytest tests/cluster tests/images tests/chart -n $(TEST_JOBS) --dist worksteal -q -ra $(ARGS)

chaos: $(STAMP) ## random faults on whole runs, each judged by an oracle (1 h). SEED= CASES= choose others, CASES=1 replays one
	$(PY) -m tests.chaos --seed $(SEED) --cases $(CASES) $(ARGS)

model: $(STAMP) ## search every state of small worlds with crashes, a partition, reshapes (30 min). ARGS="--without RULE", --list
	$(PY) -m tests.model $(ARGS)

fuzz: $(STAMP) ## mutated input for whatever reads what others write (1 min). ARGS="--inputs 1000000", --only NAME, --seed N
	$(PY) -m tests.fuzz $(ARGS)

mutants: $(STAMP) ## plant each known bug in a copy and show that the tests catch it
	$(PY) -m tests.mutants $(ARGS)

gpu-check: $(STAMP) ## on a machine with GPUs: everything that only they can show (40 min), with a report. ARGS=--list, "--only NAME"; "--device cpu" rehearses
	$(PY) -m tests.gpu_check $(ARGS)

BUILDER ?= docker
TAG ?= dev
PYTHON_IMAGE ?=
RDMA_VERSION ?=
BUILD_ARGS = $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE))
TRAINER_ARGS = $(if $(RDMA_VERSION),--build-arg RDMA_VERSION=$(RDMA_VERSION))
images: ## build the three container images: BUILDER=docker|podman|buildah TAG=dev PYTHON_IMAGE=name:tag@sha256:...
	$(BUILDER) build $(BUILD_ARGS) -f controller/Dockerfile -t frostline/controller:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f cache_server/Dockerfile -t frostline/cache-server:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) $(TRAINER_ARGS) -f trainer/Dockerfile -t frostline/trainer:$(TAG) .

clean: ## remove environments, caches and run folders
	rm -rf .venv .venv-proto .venv-docs build dist runs .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -not -path './.git/*' -prune -exec rm -rf {} +
