# make run    start the service (embedded Postgres, scripted demo model unless BEARINGS_MODEL says otherwise)
# make test   the whole suite
# make check  style, types, floors, migrations
# make faults the long fault runs, a table at the end; ARGS="kill lose --seed 7" for a part
# make bench  what it costs, against a bare proxy of the same model server

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test check format faults bench clean

run: $(VENV)/.runtime
	@$(BIN)/bearings serve

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.alembic_check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

faults: $(VENV)/.dev
	$(BIN)/python -W ignore -m tests.faults $(ARGS)

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/runtime.txt
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
