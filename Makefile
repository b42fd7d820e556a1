# Everything a newcomer or a CI machine needs. Only Python, make and a C library are assumed.
PYTHON := $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || python3 -c 'import sys; print(sys.executable)')
VENV := .venv
BIN := $(VENV)/bin
# The stamp is younger than the two files that decide what is installed, or the set-up runs again.
STAMP := $(VENV)/.installed

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

RECIPE := first
ARGS :=

.PHONY: help setup train test test-learning test-faults test-browser test-cuda lint check format clean kills sequences fuzz \
	docs docs-serve dist dist-check

help:  ## Show this help.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv and install everything at the tested versions.

$(STAMP): pyproject.toml constraints.txt requirements.lock
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.10 or newer." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --require-hashes --requirement requirements.lock
	$(PIP) --constraint constraints.txt torch  # by itself: its build differs by machine, so no digest fits all
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

train: $(STAMP)  ## Train MLR on a real task, or continue: make train RECIPE=dmcontrol/reacher-easy ARGS="seed=3"
	$(BIN)/maskrl train $(RECIPE) --video $(ARGS)

test: $(STAMP)  ## Run the whole test suite: the learning gate, the faults and the browser included.
	$(BIN)/python -m pytest --numprocesses 2 -m 'not systems'

test-learning: $(STAMP)  ## The learning gate for all: every agent, with and without every objective, solves a toy.
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m learning

test-faults: $(STAMP)  ## Only the faults: runs that are killed, files that are damaged, environments that fail.
	$(BIN)/python -m pytest --numprocesses 2 -m faults

KILLS := 1000
SEQUENCES := 500
CASES := 170000
SEED := 1

# By hand. The counts are kept in results/reliability.json by their SEED: run slices side by side, as KILLS=500 SEED=1 and SEED=2.
kills: $(STAMP)  ## By hand: kill real runs KILLS times and compare each with its undisturbed twin.
	cd tests && ../$(BIN)/python killing.py kills --count $(KILLS) --seed $(SEED)

sequences: $(STAMP)  ## By hand: SEQUENCES random orders of signals, kills, deletions and restarts.
	cd tests && ../$(BIN)/python killing.py sequences --count $(SEQUENCES) --seed $(SEED)

fuzz: $(STAMP)  ## By hand: CASES cases for each of the six readers of strangers' files (installs atheris).
	$(PIP) --constraint constraints.txt '.[fuzz]'
	$(BIN)/python fuzz/count.py --runs $(CASES) --seed $(SEED)

test-browser: $(STAMP)  ## Only the pages, in a real browser (Debian and Ubuntu: apt-get install chromium).
	$(BIN)/python -m pytest --numprocesses 2 -m browser

test-cuda: $(STAMP)  ## Only what needs a GPU: device, precision, recorded updates, batches ahead, resume. Skipped without one.
	$(BIN)/python -m pytest -m cuda -rs

lint: $(STAMP)  ## Format, lint, spelling, types and import contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell *.md *.toml *.yml Makefile docs examples fuzz/*.py src studies tests tools
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## The same and the fast tests: run it before every commit.
	$(BIN)/python -m pytest --numprocesses 2 -m 'not slow and not learning and not faults and not browser'

docs: $(STAMP)  ## Build the documentation site into site/: no warning, no dead link or anchor.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html (its search needs a server: make docs-serve)"

docs-serve: $(STAMP)  ## Show the site on http://127.0.0.1:8000, and rebuild it when a page changes.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

dist: $(STAMP)  ## Build the wheel and the sdist into dist/.
	rm -rf dist
	$(BIN)/python -m build --no-isolation

dist-check: dist  ## Install the wheel and the sdist into empty environments, each with a toy run. PYTHON chooses the interpreter.
	$(PYTHON) tools/dist_check.py dist

format: $(STAMP)  ## Rewrite the sources in the project's format.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the virtual environment and caches.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist site
