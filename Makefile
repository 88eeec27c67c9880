# Two commands on a fresh machine: `make demo` and `make test`. Both set up all they need (Python parts from
# requirements.lock into .venv; Java peers by Maven where Maven is present). CONTRIBUTING.md names the lanes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .cache/peers
FILE ?=
SEEDS ?= 1000

.PHONY: help setup demo check lint types imports unit simulation integration interop test hunt lock peers clean

help:
	@echo "make demo [FILE=lines.txt]   a cluster on this machine; the file goes in while processes are killed, and comes back"
	@echo "make test                    everything CI runs"
	@echo "make check                   the fast lane: lint, types, import contracts, unit, few simulation seeds"
	@echo "make hunt SEEDS=20000        look for a seed that breaks an invariant"
	@echo "make lock                    renew requirements.lock from pyproject.toml"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dlog needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) from requirements.lock"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(BIN)/python -m dlog.cli.demo $(FILE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports --no-logo

unit: setup
	$(BIN)/pytest tests/unit -n 2 --dist loadfile

simulation: setup
	$(BIN)/pytest tests/simulation -n 2

integration: setup
	$(BIN)/pytest tests/integration tests/repository -n 2 --dist loadfile

peers: $(PEERS)/.ready

$(PEERS)/.ready: tests/interop/java/pom.xml
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	  mvn -q -B -f tests/interop/java/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(PEERS)/lib && touch $@; \
	else echo "no Maven or no JDK here: the Java peers are left out (apt-get install maven openjdk-17-jdk-headless)"; fi

interop: setup peers
	$(BIN)/pytest tests/interop

check: lint types imports setup
	DLOG_SIM_SEEDS=60 $(BIN)/pytest tests/unit tests/simulation -n 2

test: lint types imports setup peers
	$(BIN)/pytest tests -n 2 --dist loadfile

hunt: setup
	$(BIN)/python -m tests.simulation ledger --seeds $(SEEDS)
	$(BIN)/python -m tests.simulation stream --seeds $(SEEDS)

lock: setup
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 --extra embedded --group dev -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
