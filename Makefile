# Everything a contributor or a fresh machine needs. `make demo` and `make test` set up what they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
JAVA   := $(VENV)/.quick-java
PYTEST := $(BIN)/python -m pytest

# Where somebody has it set, every worker would rewrite the assertions of all tests anew, and every process compile Veil.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup demo quick test soak repeat check format compiled bench faults docs clean

setup: $(STAMP)

# Veil with Spark, and Java from PyPI for machines without one: what runs, without the tools of development.
$(RUNS): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("Veil needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "installing Veil and Spark into $(VENV) (pinned by constraints.txt)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark,java]'
	@touch $@

$(STAMP): $(RUNS) requirements-dev.txt
	@echo "installing the tools of development into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

# A Java for the tests that has Spark's classes ready; where it cannot be made, theirs start as everybody's does.
$(JAVA): $(STAMP) tests/quick_java.py
	@echo "preparing Spark's classes in $@" >&2
	-@$(BIN)/python -m tests.quick_java $@

demo: $(RUNS)
	@$(BIN)/veil demo

# The tier to run after each change: the rules, the service, the wire, and the conformance of the stores that need no server.
quick: setup
	$(PYTEST) -q -n 2 -p tests.quick_place -m "not soak and not slow and not postgres" \
	  tests/core tests/service tests/wire tests/stores/test_conformance_*.py tests/test_imports.py

test: setup $(JAVA)
	$(PYTEST) -n 6 -p tests.worker_lots -p tests.quick_place -m "not soak"

soak: setup
	$(PYTEST) -m soak --timeout 900

# Twenty runs of `make test` on this commit, five of them beside busy loops: hours, in as many sittings as you like; none may fail.
repeat: setup
	$(BIN)/python -m tests.repeat 20 --busy 5

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_imports.py
	@found=$$($(PYTEST) -qq --collect-only) || { echo "$$found"; exit 1; }

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The optional build: compiled into a directory of its own, where it runs the tests of what it compiles. The sources and the
# environment stay pure. `tests/compiled.py` says which tests a compiled build cannot run.
COMPILED := $(CURDIR)/build/compiled
compiled: setup
	rm -rf $(COMPILED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'mypy[mypyc]'
	VEIL_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --target $(COMPILED) .
	cp -R tests bench deploy docs examples pyproject.toml $(COMPILED)
	cd $(COMPILED) && PYTHONPATH=$(COMPILED) $(CURDIR)/$(PYTEST) -q -n 2 -p tests.compiled -p tests.quick_place \
	  -m "not soak and not postgres" tests/core tests/service tests/wire tests/server tests/stores \
	  tests/faults/test_crash.py tests/faults/test_fuzz.py

bench: setup
	$(BIN)/python -m bench

faults: setup
	$(BIN)/python -m tests.faults
	VEIL_TEST_SHARDED=1 $(PYTEST) -q -n 2 -k sharded tests/stores
	$(BIN)/python -m tests.pgbouncer $(PYTEST) -q -n 2 -k postgres tests/stores/test_conformance_*.py tests/stores/test_model.py
	$(BIN)/python -m tests.pgbouncer $(BIN)/python -m tests.faults postgres-nodes

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
