# Everything that is done with this project. On a machine with Python >= 3.11, git and make, any target sets
# up what it needs first; .venv/.ready marks that this was done.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# dg warns when another environment, or none, is active
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

# Spark starts many Python processes; without bytecode on disk each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

# The Python that the environment is made with: PYTHON=..., or the first of these that is 3.11 or later.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-long test-faults test-stores test-kafka test-flink test-cluster test-matrix test-core test-ui screenshots check docs ui bench bench-all profile dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the locked packages, find or make a Java, fetch Delta's jars

demo: $(READY) ## feed a year of real flights through two stateful jobs by materialising Dagster assets
	$(BIN)/python -m orchestration.demo

# Tests of other targets.
ELSEWHERE := faults or ui or servers or kafka or cluster or flink

test: $(VENV)/.s3 ## test the core, the protocol, jobs in memory, and each promise on Spark (3 minutes)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not (more or long or $(ELSEWHERE))" $$($(BIN)/python -m tests.promises)

test-all: test ## then run the other tests, too: what is merged has passed them (a quarter of an hour)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "more and not (long or $(ELSEWHERE))"

test-long: $(VENV)/.s3 ## run the long tests: a year for every pair of cut and parallelism, new processes, no Java
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "long and not ($(ELSEWHERE))"

test-faults: $(READY) ## break every step by exceptions, SIGKILL and zombies; 200 random histories; 1,000 schedules; many runners
	$(BIN)/python -m pytest tests/faults tests/protocol -n 2 --dist loadgroup

test-stores: $(VENV)/.s3 $(VENV)/.servers $(VENV)/.azurite ## put whole jobs, many runners and faults on S3-compatible servers, and file sinks on HDFS
	$(BIN)/python -m pytest tests/stores -n 2 --dist loadgroup

test-kafka: $(VENV)/.kafka ## put jobs between topics of a real Kafka broker, and kill driver, executor and broker
	$(BIN)/python -m pytest tests/kafka -m "not long"

test-flink: $(READY) .venv-flink/.ready ## compare windows and operators with those of Flink itself, which an environment of its own has
	$(BIN)/python -m pytest tests/flink

test-cluster: $(VENV)/.s3 ## kill executors and workers of a Spark cluster, with the root in a store and every kind of sink
	$(BIN)/python -m pytest tests/cluster

test-matrix: $(VENV)/.installed ## run the core suite on PySpark 4.1 and 4.2 with Python 3.11 and 3.13, where the interpreter is there
	$(BIN)/python -m tests.matrix

test-core: $(VENV)/.installed ## run the tests that need no Java
	$(BIN)/python -m pytest -m "not spark"

test-ui: $(READY) $(VENV)/.ui ## click through Dagster's web interface in a real browser (needs Chromium)
	$(BIN)/python -m pytest tests/ui -x

screenshots: $(READY) $(VENV)/.ui ## take the pictures of the documentation anew, in docs/pictures (needs Chromium)
	$(BIN)/python -m pytest tests/ui -x --screenshots

check: $(VENV)/.installed ## format, lint, types, import contracts, Dagster definitions
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/dg check defs

docs: $(VENV)/.installed ## build the documentation into site/, without a network; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "To read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

ui: $(READY) ## open the assets in Dagster's web interface
	mkdir -p .dagster
	test -f .dagster/dagster.yaml || cp orchestration/dagster.yaml .dagster/
	DAGSTER_HOME="$(CURDIR)/.dagster" $(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1

dist: $(VENV)/.installed ## build wheel and sdist into dist/, byte for byte the same wherever they are built
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	cd dist && sha256sum *

bench: $(READY) ## compare with Spark's transformWithState on the reference workload
	$(BIN)/python -m benchmarks

bench-all: $(READY) .venv-flink/.ready ## run all benchmarks with all peers, Flink too, and write .benchmarks/benchmarks.md
	$(BIN)/python -m benchmarks.all

profile: $(READY) ## sample where the time of the reference workload goes, in driver, workers and JVM, into .profiles
	$(BIN)/python -m benchmarks.profile

# Flink's packages exclude Spark's, so they have an environment of their own; the benchmarks take it where it is.
.venv-flink/.ready: benchmarks/requirements-flink.txt $(VENV)/.installed
	test -x .venv-flink/bin/python || $(PYTHON) -m venv .venv-flink
	$(BIN)/python -m uv pip install --quiet --python .venv-flink/bin/python --require-hashes -r $< \
		|| .venv-flink/bin/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r $< \
		|| { echo "error: PyFlink cannot be installed with this Python; try make bench-all PYTHON=python3.11" >&2; exit 1; }
	@touch $@

clean: ## remove the environment and the caches of tools; state and data stay
	rm -rf $(VENV) .venv-flink .venv-matrix dist site spark-warehouse metastore_db derby.log \
		.pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Packages: uv, whose hashes are pinned too, installs the lock in a fifth of pip's time. Where it cannot (no
# wheel for the platform, a package index that only pip is configured for), pip does the same, slowly.
$(VENV)/.installed: requirements.lock requirements-uv.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 was found; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: PYTHON=$(PYTHON) does not start, or is older than 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "error: $(PYTHON) lacks the module venv (on Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): packages first (half a minute to some minutes, once)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		-r requirements-uv.lock || echo "uv cannot be had here: pip installs the packages"
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock \
		|| $(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# What drives the browser of `make test-ui`, which itself is the machine's; the server that `make test-stores` kills.
$(VENV)/.ui: tests/ui/requirements.txt
$(VENV)/.servers: tests/stores/requirements.txt
$(VENV)/.ui $(VENV)/.servers: $(VENV)/.installed
	$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --require-hashes -r $(filter %.txt,$^) \
		|| $(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r $(filter %.txt,$^)
	@touch $@

# An emulator of Azure's blob service. Where there is no npm, its tests are left out.
$(VENV)/.azurite: $(VENV)/.installed
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/azurite azurite@3.37.0 && touch $@ \
		|| echo "Azurite cannot be had here: tests with it are left out"

$(READY): $(VENV)/.installed
	$(BIN)/statelake setup
	@touch $@

# What tests with object stores need besides.
$(VENV)/.s3: $(READY)
	$(BIN)/statelake setup --s3
	@touch $@

# What tests with Kafka need besides; they fetch the jars of their broker themselves.
$(VENV)/.kafka: $(READY)
	$(BIN)/statelake setup --kafka
	@touch $@
