# make setup    an environment in .venv with everything the other targets need (once)
# make demo     see it work: a shop that is killed while it sells, Spark included, in about a minute
# make check    lint, format, types, architecture: seconds
# make test     check, then the whole suite: less than half an hour on two cores
# make test-fast  a small part of the states that the suites explore, no mutants, no Spark, no browser: for daily work
# make torture  only the suites that explore, twenty times as far, from a fresh seed: hours
# make browser  a Chromium for tests of the console, if there is none (Debian, as root); test does so itself
# make bench    compare with LMDB, RocksDB and SQLite on this machine
# make bench-spark  compare with Parquet and text in Spark
# make bench-server  compare the server with NATS JetStream and Redis Streams
# make docs     the documentation as a site, in site/
# make lock     resolve pyproject.toml into requirements.lock again (needs uv); UPGRADE=NAME renews that one
# make sbom     write the bill of materials, esker.cdx.json, as the lock says
# make audit    ask whether a vulnerability is known in what is locked; SERVICE=osv asks another service
# make clean    remove everything that make and the tools created
#
# Needs only make and Python 3.11 or newer; no Java. Another Python: make setup PYTHON=python3.12
# More test workers: make test WORKERS=8. There is one more than two cores, because some tests wait
# for a JVM, a disk or a clock. A part of the suite: make test TESTS=tests/unit

PYTHON ?= python3
UV ?= uv
WORKERS ?= 3
TESTS ?= tests
SCALE ?= 20
SEED ?= $(shell date +%s)

# Hundreds of processes import Esker. Each would compile it anew if the environment forbade keeping
# what is compiled; `make clean` removes it.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup browser demo check test test-fast torture bench bench-spark bench-server docs lock sbom audit clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(READY)

# Two stamps, so that an edit of pyproject.toml does not download the world again.
$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "esker needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@echo "setup: installing the locked dependencies (1.4 GB, half of it for Spark; a minute or two)"
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@echo "setup: installing esker itself, editable"
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup
	@$(BIN)/esker demo

check: setup
	@echo "check: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "check: mypy, and the architecture beside it"
	@$(BIN)/mypy --no-error-summary & types=$$!; \
		$(BIN)/python -m pytest -q --no-header tests/test_tidy.py; architecture=$$?; \
		wait $$types && exit $$architecture

# Tests of the console need a Chromium. Where it can be had without asking, it is.
browser:
	@[ -z "$$ESKER_CHROMIUM" ] || exit 0; \
	for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
		! command -v $$name >/dev/null || exit 0; done; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "browser: installing Debian's chromium, for tests of the console"; \
			{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
				>/dev/null 2>&1 || echo "browser: it could not be installed; tests of the console are skipped" >&2; \
		else echo "browser: no Chromium here; tests of the console are skipped" >&2; fi

test: check browser
	@echo "test: the suite, on $(WORKERS) workers"
	@$(BIN)/python -m pytest -q --no-header --durations 25 --durations-min 10 -n $(WORKERS) $(TESTS)

test-fast: check
	@echo "test: the suite without Spark, suites that explore at 3 %, on $(WORKERS) workers"
	@ESKER_SCALE=0.03 $(BIN)/python -m pytest -q --no-header -n $(WORKERS) \
		-m "not slow" --ignore tests/zoo --ignore tests/spark --ignore tests/test_tidy.py $(TESTS)

torture: setup
	@echo "torture: suites that explore, at $(SCALE) times, seed $(SEED), on $(WORKERS) workers"
	@ESKER_SCALE=$(SCALE) ESKER_SEED=$(SEED) $(BIN)/python -m pytest -q --no-header \
		-n $(WORKERS) -m suite --timeout 36000 $(TESTS)

bench: setup
	@$(BIN)/python -m bench.run

bench-spark: setup
	@$(BIN)/python -m bench.spark

bench-server: setup
	@$(BIN)/python -m bench.server

docs: setup
	@$(BIN)/zensical build --strict
	@echo "docs: site/index.html"

lock:
	@$(UV) pip compile pyproject.toml --group build --group dev --group interop --group objects --group spark \
		--group bench --group clients --group browser --group docs --group supply --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade-package $(UPGRADE)) \
		--custom-compile-command "make lock" --quiet --output-file requirements.lock
	@echo "lock: $$(grep -c '==' requirements.lock) packages; now make sbom"

sbom: setup
	@$(BIN)/python -m tools.sbom

audit: setup
	@$(BIN)/python -m tools.audit $(if $(SERVICE),--service $(SERVICE))

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis .coverage htmlcov site .cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
