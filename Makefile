# Two commands on a fresh machine: `make demo` and `make test`. Both set up all they need (Python parts from
# requirements.lock into .venv; Java peers by Maven where Maven is present). CONTRIBUTING.md names the lanes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HAPROXY := .cache/haproxy
FILE ?=
STORE ?=
SEEDS ?= 1000
FIRST ?= 0
MINUTES ?= 2

# Tests start thousands of Python processes. Without cached bytecode each compiles all of dlog again, which is 0.4 s of a
# proxy's start; images for containers set this variable.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check lint types imports unit simulation integration interop test test-slow hunt chaos fuzz docs pythons sparks lock peers haproxy clean

help:
	@echo "make demo [FILE=lines.txt]   a cluster on this machine; the file goes in while processes are killed, and comes back"
	@echo "make demo STORE=kafka        the same with the stream on three brokers of Kafka, which are started, too"
	@echo "make demo STORE=s3-direct    the same with the stream as objects on an S3 server, which is started, too"
	@echo "make demo STORE=s3           the same with the stream in objects behind a log that many streams share"
	@echo "make test                    every test but those of make test-slow; CI runs both"
	@echo "make test-slow               what measures, and compares with other releases and systems"
	@echo "make check                   the fast lane: lint, types, import contracts, unit, few simulation seeds"
	@echo "make pythons                 environments of other Pythons found here, on which traces are compared"
	@echo "make hunt SEEDS=20000        look for a seed that breaks an invariant"
	@echo "make chaos MINUTES=10        hurt a cluster of real processes and judge what its clients saw"
	@echo "make chaos STORE=s3          the same with streams in objects, or STORE=s3-direct; the S3 server is hurt, too"
	@echo "make docs                    the site of the documents, into build/site; a broken link is a failure"
	@echo "make lock                    renew requirements.lock from pyproject.toml"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "dlog needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) from requirements.lock"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@case "$(STORE)" in \
	"") $(BIN)/python -m dlog.cli.demo $(FILE);; \
	kafka) $(BIN)/python -m loadtest.kafka_demo $(FILE);; \
	s3-direct|s3) $(BIN)/python -m loadtest.s3_demo --store $(STORE) $(FILE);; \
	*) echo "no such store for the demo: STORE=$(STORE); use STORE=kafka, STORE=s3-direct, STORE=s3, or leave it out" >&2; exit 2;; esac

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

integration: setup haproxy
	$(BIN)/pytest tests/integration tests/repository -n 2 --dist loadfile

# Servers and clients of other makers: Apache BookKeeper and Kafka by Maven, NATS by Go. What is here is not fetched again;
# where a tool is missing, its peer is left out, and the line says how to get it.
peers: setup
	@$(BIN)/python -m loadtest peers install --all --if-possible

# HAProxy of the distribution: as installed, else unpacked below .cache without root; root is used only to read the
# package lists where there are none yet.
haproxy:
	@if command -v haproxy >/dev/null || test -x /usr/sbin/haproxy || test -x $(HAPROXY)/usr/sbin/haproxy; then exit 0; fi; \
	if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then echo "no apt here: install HAProxy, or its tests are left out"; exit 0; fi; \
	wanted() { apt-get install -s --no-install-recommends haproxy 2>/dev/null | awk '/^Inst /{print $$2}' || true; }; \
	names=$$(wanted); \
	if test -z "$$names"; then \
	  root=$$(test "$$(id -u)" = 0 || echo "sudo -n"); $$root apt-get update -qq >/dev/null 2>&1 || true; names=$$(wanted); fi; \
	if test -z "$$names"; then echo "no HAProxy to be had here: its tests are left out (apt-get install haproxy)"; exit 0; fi; \
	mkdir -p $(HAPROXY)/deb; cd $(HAPROXY)/deb; \
	if apt-get download -qq $$names >/dev/null 2>&1; then for deb in *.deb; do dpkg -x $$deb ..; done; \
	else echo "HAProxy cannot be fetched: its tests are left out (apt-get install haproxy)"; fi; rm -rf $(CURDIR)/$(HAPROXY)/deb

# The oldest PySpark that is supported, beside the one of the environment.
sparks: setup
	@test -d .cache/pyspark-4.2/pyspark || $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps --target .cache/pyspark-4.2 -r tests/integration/spark/pyspark-4.2.lock || echo "PySpark 4.2 cannot be fetched: its tests are left out"

interop: setup peers
	$(BIN)/pytest tests/interop

check: lint types imports setup
	DLOG_SIM_SEEDS=60 $(BIN)/pytest tests/unit tests/simulation -n 2

test: lint types imports setup peers haproxy pythons
	$(BIN)/pytest tests -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder --durations=15 -ra

test-slow: setup peers sparks
	$(BIN)/pytest tests -m slow -n 2 --dist load --durations=15 -ra

pythons: setup
	$(BIN)/python -m tests.simulation.service.pythons

hunt: setup
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --jobs 2

chaos: setup
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(STORE),--store $(STORE))

fuzz: setup
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

docs: setup
	$(BIN)/mkdocs build -q

lock: setup
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11 --extra db --extra embedded --extra s3 --extra spark --group dev --group docs --group peers --group plots -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
