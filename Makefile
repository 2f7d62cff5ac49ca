# What a contributor runs. Python 3.11 or newer and make are enough, with git and tmux for the tests: each target makes
# what it needs in .venv and does nothing again that is up to date. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
SAY := @echo "upcall:"
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest --dist worksteal
WORKERS ?= auto
TYPES := PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/python -m pyright
DELAYED := --delayed --hypothesis-profile=quick tests/core tests/callbacks tests/teams tests/kit
COVERED := $(BIN)/python -m coverage run -m pytest --dist worksteal
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# The tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check lint style chaos slow-disk bench docs clean

help:
	@echo "make demo     see an agent work, offline"
	@echo "make check    format, lint, layers, types, and the quick tests"
	@echo "make test     the same with all tests and their branch coverage"
	@echo "make chaos    the kill tests at full count"
	@echo "make slow-disk  the core's and the kill tests with 5 ms added to every fsync"
	@echo "make docs     run every snippet in the docs, hold the reference to the code"
	@echo "make bench    measure beside other frameworks; PEERS=a,b and WORKLOADS=W1,W2 take a part"
	@echo "make clean    remove $(VENV) and what the benchmarks installed"

# --- what people run --------------------------------------------------------------------

demo: $(VENV)/.runtime
	@$(BIN)/upcall demo

test: style
	$(SAY) all tests, with branch coverage, and the types beside them
	@$(BIN)/python -m coverage erase
	@$(call with_types,$(COVERED) -n $(WORKERS))
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report --skip-covered
	$(SAY) the suites of the core once more, on stores whose appends are always delayed
	@$(PYTEST) -n $(WORKERS) $(DELAYED)

check: style
	$(SAY) the tests that are not slow, and the types beside them
	@$(call with_types,$(PYTEST) -n $(WORKERS) -m "not slow" --hypothesis-profile=quick)

lint: style
	$(SAY) types
	@$(TYPES)

style: $(VENV)/.dev
	$(SAY) format
	@$(BIN)/python -m ruff format --quiet --check .
	$(SAY) lint
	@$(BIN)/python -m ruff check --quiet .
	$(SAY) layers
	@$(BIN)/lint-imports --no-logo

# Tests wait now and then, and types do not: what these say is told after the tests.
define with_types
$(TYPES) >$(VENV)/types.txt 2>&1 & types=$$!; trap "kill $$types" INT; $(1); tests=$$?; \
	wait $$types; types=$$?; echo "upcall: types"; cat $(VENV)/types.txt; exit $$((types || tests))
endef

chaos: $(VENV)/.dev
	$(SAY) the kill tests at full count
	@UPCALL_CHAOS=full $(PYTEST) tests/chaos -n $(WORKERS) --timeout=3600

slow-disk: $(VENV)/.dev
	@cc -shared -fPIC -o $(VENV)/slow_fsync.so tests/slow_fsync.c -ldl
	$(SAY) the suites of the core on delayed stores, with 5 ms added to every fsync
	@LD_PRELOAD=$(abspath $(VENV)/slow_fsync.so) $(PYTEST) -n $(WORKERS) $(DELAYED)
	$(SAY) the kill tests at full count, with 5 ms added to every fsync
	@LD_PRELOAD=$(abspath $(VENV)/slow_fsync.so) UPCALL_CHAOS=full $(PYTEST) tests/chaos -n $(WORKERS) --timeout=3600

docs: $(VENV)/.dev
	$(SAY) checking README.md, docs/ and examples/ with the tests in tests/house
	@$(PYTEST) tests/house/test_docs.py tests/house/test_reference.py
	$(SAY) they are plain Markdown: begin with README.md, then docs/

bench:
	$(call need_python)
	$(SAY) the environments of the peers, in benchmarks/.venvs
	@$(PYTHON) benchmarks/venvs.py $(if $(PEERS),--peers $(PEERS))
	$(SAY) measuring, one peer at a time
	@$(PYTHON) benchmarks/run.py $(if $(PEERS),--peers $(PEERS)) $(if $(WORKLOADS),--workloads $(WORKLOADS)) \
		$(if $(PEERS)$(WORKLOADS),--merge) $(BENCH_FLAGS)
	$(SAY) written: benchmarks/RESULTS.md

clean:
	$(SAY) removing $(VENV) and benchmarks/.venvs
	@rm -rf $(VENV) benchmarks/.venvs

# --- the environment --------------------------------------------------------------------

define need_python
	@test -n "$(PYTHON)" || { echo "upcall: needs Python 3.11 or newer; found" \
		"$$(python3 --version 2>/dev/null || echo none). Install one, or say which: make PYTHON=/path/to/python3"; exit 1; }
endef

$(VENV)/.made:
	$(call need_python)
	$(SAY) making $(VENV) with $$($(PYTHON) --version)
	@$(PYTHON) -m venv $(VENV) || { echo "upcall: $(PYTHON) can't make environments;" \
		"on Debian and Ubuntu install python3-venv"; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/.runtime: pyproject.toml $(VENV)/.made
	$(SAY) installing the package and what it needs to run
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml requirements-dev-nodeps.txt $(VENV)/.runtime
	$(SAY) installing what the tests need \(the first time takes a minute or two\)
	@$(PIP) --upgrade "pip>=25.1"
	@$(PIP) --group dev
	@$(PIP) --no-deps --requirement requirements-dev-nodeps.txt
	@touch $@
