# `make` lists the targets. Everything runs in .venv, made from requirements.lock; a second run finds it ready.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
PROCESSES ?= 2
UV := $(VENV)/tools/bin/uv
READY := $(VENV)/.ready
CODE := statestore pipelines ops infra tests docs/examples

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow crash crash-matrix crash-cluster bench bench-recovery bench-stores game-day monitoring \
	lint types screenshots lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the pinned packages

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
		{ echo "Python 3.11 or 3.12 is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv lives beside the packages, since sync removes what the lock does not name.
	@test "$$($(UV) --version 2>/dev/null | cut -d ' ' -f 2)" = $(UV_VERSION) || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/tools uv==$(UV_VERSION)
	@echo "installing the packages of requirements.lock (about 2 GB)"
	@# Compiled now: where PYTHONDONTWRITEBYTECODE is set, as in many images, every process would do it again.
	@$(UV) pip sync --python $(BIN)/python --quiet --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --python $(BIN)/python --quiet --no-deps --editable .
	@$(BIN)/python -m compileall -q statestore pipelines ops infra
	@$(BIN)/python -c 'from pipelines.engine import loops; from statestore import entryhashes; loops.ready(); entryhashes.ready()'
	@touch $@

demo: setup ## run the main job on real flights, kill it twice, compare every result (3 minutes)
	@$(BIN)/rollforward demo $(DEMO)

# On a machine that is busy otherwise a wait may be too short: what fails runs once more, and the summary says so.
# In tests/crash that is so for time limits alone.
# Two files at a time, in their order, so that those of few and long tests are not the last: a third of the time is waiting.
test: setup ## run the tests (slow ones: make slow, make crash)
	@$(BIN)/python -m pytest --reruns 1 --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(TESTS)

slow: setup ## run the long proofs: state machines of 10,000 steps, hundreds of random kills (others: make crash)
	@$(BIN)/python -m pytest -m slow --timeout 3600 --ignore tests/crash --ignore tests/ops/test_dagster_killed.py $(TESTS)

crash: setup ## kill the job at every step of the protocol and at random moments
	@$(BIN)/python -m pytest tests/crash tests/ops/test_dagster_killed.py -m "slow or not slow" $(TESTS)

crash-matrix: setup ## every fault against a running pipeline, compared with the model (MATRIX="--seed 7 --only kill-driver --minutes 30")
	@$(BIN)/python -m tests.crash.matrix $(MATRIX)

crash-cluster: setup ## kill servers and workers of a Spark standalone cluster with store servers over TLS
	@$(BIN)/python -m pytest tests/cluster -m slow $(TESTS)

bench: setup ## measure throughput; the figures go to a JSON file
	@$(BIN)/python -m tests.benchmarks $(BENCH)

bench-stores: setup ## measure every mechanism of the stores against plain rocksdict
	@$(BIN)/python -m tests.benchmarks.stores $(BENCH)

bench-recovery: setup ## measure how long an empty disk takes to come back (BENCH="--keys 10000000")
	@$(BIN)/python -m tests.benchmarks.recovery $(BENCH)

game-day: setup ## half an hour of faults with nobody touching it; GAME_DAY="--minutes 5 --seed 7"
	@$(BIN)/python -m tests.game_day $(GAME_DAY)

monitoring: setup ## fetch Prometheus and Alertmanager for this user, without root
	@$(BIN)/python -m infra.tools

lint: setup ## check style, format and the direction of imports
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/lint-imports --no-logo

types: setup ## check types, those of the tests too
	@$(BIN)/mypy

screenshots: setup ## run the demo and take the pictures of the Dagster pages in docs/images
	@$(BIN)/rollforward demo --keep
	@$(BIN)/python -m ops.dagster.screenshots flights docs/images --home .rollforward-demo
	@ROLLFORWARD_HOME=.rollforward-demo $(BIN)/rollforward down --wipe

lock: setup ## pin the packages in requirements.lock (newest versions: make lock LOCK=--upgrade)
	@$(UV) pip compile pyproject.toml --group dev --extra traces --python-version 3.11 --generate-hashes --no-header \
		--no-annotate --no-emit-index-url --quiet $(LOCK) --output-file requirements.lock
	@echo "requirements.lock is new: make setup installs it"

clean: ## delete .venv, caches and the data of demo and local stack; stops what runs there
	@for home in .rollforward .rollforward-demo; do \
		if test -d $$home && test -x $(BIN)/rollforward; then ROLLFORWARD_HOME=$$home $(BIN)/rollforward down --wipe; fi; done
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
