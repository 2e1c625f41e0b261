# The two commands: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The oldest pair of Spark and Delta that is supported, in an environment of its own.
COMPAT := .venv-compat
COMPAT_PAIR := 'pyspark==4.0.*' 'delta-spark==4.0.*'

.PHONY: help setup servers demo lint types test test-long test-fast test-compat bench docs wheel clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.installed $(VENV)/.jars  ## make .venv with the program at .venv/bin/outbox, resolve Delta's jars

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "outbox-connector needs Python 3.11 or newer: make PYTHON=python3.12 setup"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# Spark starts from local jars; without a Java there is no stamp, and the next setup tries again.
$(VENV)/.jars: $(VENV)/.installed
	@tests/servers/install.sh java
	@if command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java"; then $(BIN)/python -m spark_sink.jars && touch $@; fi

servers:  ## install the database servers that the tests start, where apt is there and allowed
	@tests/servers/install.sh

demo: setup  ## the main job end to end on embedded defaults, with crashes on the way
	$(BIN)/outbox demo

lint: setup  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy --strict
	$(BIN)/mypy

# Most tests wait for a server, a lease or a lock, so four processes keep two cores busy. What belongs together
# (a file, a Spark session) stays in one of them: tests/conftest.py. PYTEST_FLAGS= runs one test after the other.
PYTEST_FLAGS ?= -n 4 --dist loadgroup

# Four at a time on two cores, a test may wait longer than it allows for. Whatever failed is run again alone, and both
# results are printed: what fails twice fails.
test: setup servers lint types  ## everything: lint, types, all tests
	@$(BIN)/python -m pytest -m 'not long' $(PYTEST_FLAGS) || { code=$$?; test $$code -eq 1 || exit $$code; \
	    echo "once more, alone: what has failed in company"; $(BIN)/python -m pytest -m 'not long' -n 1 --dist loadgroup --last-failed --last-failed-no-failures none; }

test-long: setup servers  ## more of the same: wider bounds of the model, longer storms of writers
	$(BIN)/python -m pytest -m long

test-fast: setup servers lint types  ## a few minutes, for the inner loop: no Spark, no crashes
	$(BIN)/python -m pytest -m 'not slow and not long and not spark' -x -n 2 --dist loadgroup tests/unit tests/contract tests/model tests/integration

test-compat: servers $(COMPAT)/.installed  ## the Spark tests marked compat, on the oldest supported Spark and Delta
	$(COMPAT)/bin/python -m pytest -m compat

$(COMPAT)/.installed: pyproject.toml
	@test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --upgrade pip
	$(COMPAT)/bin/python -m pip install --quiet --editable '.[dev]' $(COMPAT_PAIR)
	@touch $@

bench: setup servers  ## measure the budgets, write docs/benchmarks.md
	$(BIN)/python -m bench

docs: setup  ## generate docs/cli.md from the program
	$(BIN)/python docs/generate_cli.py

wheel: setup  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

clean:  ## remove what was built; the environment stays
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-data
