# Every verb works from a fresh clone: whatever it needs is set up first.
# Needed on the machine: Python 3.11 or newer with its venv module, make, git. Java 17 or newer for the Spark pipeline
# (setup, test, pipeline-demo); root on Debian or Ubuntu gets it installed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# `make PYTHON=/opt/python/bin/python3 setup` chooses the interpreter; otherwise the first one new enough is taken.
PYTHON ?=
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input --constraint constraints.txt
# What is installed already is no news.
NEWS_ONLY := | awk '!/^Requirement already satisfied/ { print; fflush() }'

# The demo needs only the program (70 MB), the pipeline needs Spark as well (1 GB) and Java, checks and tests need the
# tools of the dev extra, too. Each stamp says that its part is there.
PROGRAM := $(VENV)/.program-installed
SPARK := $(VENV)/.spark-installed
TOOLS := $(VENV)/.tools-installed
JAVA := $(VENV)/.java-found
# What the demo of the pipeline leaves: journal/, tables/, report.html.
PLAYED := build/pipeline-demo

.PHONY: help setup setup-dev demo durable-demo pipeline-demo check audit test mutants sim store-sim chaos compose-test bench bench-failover failover-picture bench-peers bench-pipeline docs page-pictures clean

help: ## this list
	@printf 'bstar: make VERB\n\n'
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(JAVA) $(SPARK) ## make .venv with the program and Spark in it, find Java (does nothing the second time)

setup-dev: $(JAVA) $(TOOLS) ## the same with the tools for checks and tests

demo: $(PROGRAM) ## start a pair, kill the active broker, watch the other take over
	@$(BIN)/bstar demo

durable-demo: $(PROGRAM) ## submit durable requests, kill everything, start it again, fetch all answers
	@$(BIN)/bstar durable-demo

# Its status is the audit's.
pipeline-demo: $(JAVA) $(SPARK) ## the demo with journals, and what the pipeline makes of them
	@rm -rf $(PLAYED)
	@mkdir -p $(PLAYED)
	@$(BIN)/bstar demo --journal $(PLAYED)/journal
	@echo "make: reading the journals on Spark"
	@$(BIN)/bstar pipeline run $(PLAYED)/journal --out $(PLAYED)/tables --engine spark
	@echo "make: writing the report; its path:"
	@$(BIN)/bstar pipeline report $(PLAYED)/tables --out $(PLAYED)/report.html
	@if [ -n "$${DISPLAY:-}" ] && [ -t 1 ]; then $(BIN)/python -m webbrowser "file://$(CURDIR)/$(PLAYED)/report.html"; fi
	@echo "make: the audit's findings and its verdict"
	@$(BIN)/bstar pipeline audit $(PLAYED)/tables

# Tests start hundreds of Python processes: each would compile our modules, and pytest its 250 files.
test chaos: export PYTHONDONTWRITEBYTECODE :=

# tests/support/schedule.py says how many processes there are, and which tests share one.
test: $(JAVA) $(TOOLS) ## all tests except those that break real processes, four at a time on two cores; or JOBS=1
	@$(BIN)/python -m pytest -n $(or $(JOBS),auto) --dist loadfile

mutants: $(TOOLS) ## break the product on purpose, once per mutant, and see that a test notices; or ONLY=star
	@PYTHONPATH=tests $(BIN)/python -m mutants $(if $(ONLY),--only '$(ONLY)')

# The parts are independent, and mypy takes as long as all others.
check: $(TOOLS) ## style, types, layers of the house, generated files up to date, known vulnerabilities
	@$(MAKE) --no-print-directory --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync) check-types check-editor check-style check-layers check-pages check-site check-audit

.PHONY: check-types check-editor check-style check-layers check-pages check-site check-audit
check-types:
	$(BIN)/mypy

# 9 s of CPU.
check-editor:
	$(BIN)/basedpyright

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-layers:
	$(BIN)/lint-imports --no-logo

check-pages:
	PYTHONPATH=tools $(BIN)/python -m pages --check

# Each link of the pages leads to a page and a heading that are there.
check-site:
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c tools/site -d .cache/site docs build/site

check-audit:
	@tools/audit

audit: $(TOOLS) ## look for known vulnerabilities of the pinned dependencies; fails where no advisories can be had
	@tools/audit --strict

bench: $(TOOLS) ## benchmarks, printed as a table
	@$(BIN)/python benchmarks/run.py
	@$(BIN)/python benchmarks/batches.py
	@$(BIN)/python benchmarks/journal.py

bench-failover: $(TOOLS) ## the outage that clients see: 30 trials of each fault, 25 minutes; or TRIALS=5, PROFILES=lan, FAULTS=kill,stop, OVERLOAD_S=60, OVERLOAD_BYTES=1000000
	@command='make bench-failover$(if $(TRIALS), TRIALS=$(TRIALS))$(if $(PROFILES), PROFILES=$(PROFILES))$(if $(FAULTS), FAULTS=$(FAULTS))$(if $(OVERLOAD_S), OVERLOAD_S=$(OVERLOAD_S))$(if $(OVERLOAD_BYTES), OVERLOAD_BYTES=$(OVERLOAD_BYTES))'; \
	BSTAR_BENCH_COMMAND="$$command" PYTHONPATH=chaos-tests:benchmarks:tools $(BIN)/python -m failover \
	  $(if $(TRIALS),--trials $(TRIALS)) $(if $(PROFILES),--profiles $(PROFILES)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(OVERLOAD_S),--overload-s $(OVERLOAD_S)) $(if $(OVERLOAD_BYTES),--overload-bytes $(OVERLOAD_BYTES)) \
	  $(if $(TRIALS)$(PROFILES)$(FAULTS)$(OVERLOAD_S)$(OVERLOAD_BYTES),,--write docs/failover.md)

failover-picture: $(TOOLS) ## measure a kill of ours and of the published pattern, and draw docs/failover-kill.svg; or TRIALS=10
	@PYTHONPATH=chaos-tests:benchmarks:tools $(BIN)/python -m failover.picture --trials $(or $(TRIALS),5)

# Not part of what has to pass: it installs servers of others.
bench-peers: $(TOOLS) ## beside NATS and RabbitMQ, which it installs (Debian, root), 8 minutes; or ROUNDS=1, WINDOWS=100, SECONDS=1, ONLY=haclient,nats; or DURABLE=1: submits that are on disk
	@PYTHONPATH=benchmarks $(BIN)/python -m peers$(if $(DURABLE),.durable) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(WINDOWS),--windows $(WINDOWS)) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SIZE),--size $(SIZE)) $(if $(ONLY),--only $(ONLY))

bench-pipeline: $(JAVA) $(TOOLS) ## the pipeline on Spark and without, beside DuckDB by hand, half an hour; or REQUESTS=13e3,1e6, CORES=2
	@PYTHONPATH=benchmarks:tests $(BIN)/python -m pipeline $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(CORES),--cores $(CORES))

docs: $(TOOLS) ## write the generated files anew (sample configurations, diagrams, tables), and a site of the pages with a search
	@PYTHONPATH=tools $(BIN)/python -m pages --write
	@$(MAKE) --no-print-directory check-site
	@echo "the site: build/site/index.html"

page-pictures: $(TOOLS) ## draw the pictures of the status page in docs/pictures (needs Chromium)
	@PYTHONPATH=tests $(BIN)/python -m page_pictures

sim: $(TOOLS) ## simulated pairs under faults: 200 seeds; or SEED=7, RUNS=1000, HOURS=100, KEYS=on, PACE=calm; or EXPLORE=all: every state once; or PAIRS=100: a fleet that grows
ifdef EXPLORE
	@PYTHONPATH=tests $(BIN)/python -m explorer $(EXPLORE) $(if $(STATES),--states $(STATES)) $(if $(WRITE),--write)
else
	@PYTHONPATH=tests $(BIN)/python -m sim $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(HOURS),--hours $(HOURS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(MOOD),--mood $(MOOD)) \
	  $(if $(PACE),--pace $(PACE)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(ARBITER),--arbiter $(ARBITER)) $(if $(FLEET),--fleet $(FLEET)) \
	  $(if $(KEYS),--keys $(KEYS)) \
	  $(if $(PIRATES),--pirates $(PIRATES)) $(if $(EMQ),--emq $(EMQ)) $(if $(LIMIT),--limit $(LIMIT)) \
	  $(if $(PAIRS),--pairs $(PAIRS)) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(TRACE),--trace)
endif

store-sim: $(TOOLS) ## simulated replicas of the durable store under faults: 1000 seeds; or SEED=7, RUNS=100, HOURS=10, ARBITER=kept; or EXPLORE=4: every order of 4 faults
ifdef EXPLORE
	@PYTHONPATH=tests $(BIN)/python -m store_sim.explore --depth $(EXPLORE)
else
	@PYTHONPATH=tests $(BIN)/python -m store_sim $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(HOURS),--hours $(HOURS)) $(if $(ARBITER),--arbiter $(ARBITER)) $(if $(FAULTS),--faults '$(FAULTS)') \
	  $(if $(PROCESSES),--processes $(PROCESSES))
endif

chaos: export CHAOS_KEYS = $(KEYS)
chaos: export CHAOS_OTHER = $(OTHER)
chaos: export ROUNDS := $(ROUNDS)
chaos: export SEED := $(SEED)
chaos: export COUNT := $(COUNT)
chaos: $(TOOLS) ## faults against real processes, one run at a time on each core, or JOBS=1; or at random: RUNS=20, SEED=7; or SCENARIO=durable ROUNDS=200; or SCENARIO=pzq COUNT=100000; or KEYS=on; or SCENARIO=versions OTHER=v0.1.0; or SCENARIO=alerts (chaos-tests/README.md)
ifneq ($(RUNS)$(if $(ROUNDS)$(COUNT),,$(SEED)),)
	@PYTHONPATH=chaos-tests $(BIN)/python -m chaos.explore $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))
else ifeq ($(SCENARIO),alerts)
	@PYTHONPATH=chaos-tests $(BIN)/python -m chaos.alerts
else
	@PYTHONPATH=tests $(BIN)/python -m pytest -p support.schedule -p support.zygote chaos-tests -n $(or $(JOBS),$(shell nproc)) --dist loadfile $(if $(SCENARIO),-k '$(SCENARIO)')$(if $(ROUNDS)$(COUNT), -s)
endif

compose-test: $(TOOLS) ## the pair of docker-compose.yml under faults (Docker; docs/deployment.md)
	@PYTHONPATH=tests $(BIN)/python -m compose $(if $(COMPOSE),--compose '$(COMPOSE)') $(if $(BUSY),--busy)

clean: ## remove .venv and every cache
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@python='$(PYTHON)'; \
	if [ -z "$$python" ]; then \
	  for candidate in python3.13 python3.12 python3.11 python3 python; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "make: bstar needs Python 3.11 or newer; none of python3.13, python3.12, python3.11, python3 on the PATH is." >&2; \
	  echo "make: install one (Debian: apt-get install python3 python3-venv) or say where it is: make PYTHON=/path/to/python3 setup" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  echo "make: $$python is not Python 3.11 or newer." >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then \
	  echo "make: $$python lacks the venv module. Debian and Ubuntu have it in a package of its own: apt-get install python3-venv" >&2; \
	  exit 1; \
	fi; \
	echo "make: creating $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	"$$python" -m venv $(VENV)

$(PROGRAM): pyproject.toml constraints.txt | $(BIN)/python
	@echo "make: installing bstar into $(VENV) (the first time takes about half a minute)"
	@$(PIP_INSTALL) --editable '.[server]' $(NEWS_ONLY)
	@touch $@

# Before Spark: who lacks Java should know it before a gigabyte is there.
$(JAVA): tools/install-java | $(BIN)/python
	@tools/install-java
	@touch $@

$(SPARK): pyproject.toml constraints.txt | $(BIN)/python
	@echo "make: installing bstar and Spark into $(VENV), 1 GB (the first time takes a minute or more)"
	@$(PIP_INSTALL) --editable '.[bench,server,spark]' $(NEWS_ONLY)
	@touch $@ $(PROGRAM)

$(TOOLS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "make: installing bstar, Spark and the tools for checks and tests into $(VENV) (the first time takes two minutes or more)"
	@$(PIP_INSTALL) --editable '.[bench,dev,server,spark]' $(NEWS_ONLY)
	@touch $@ $(PROGRAM) $(SPARK)
