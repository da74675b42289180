# Stockade: every command a contributor needs. `make demo` and `make test` set
# up everything themselves; what the machine must have is said by `make setup`.

SHELL := /bin/sh
PY := .venv/bin/python
PYTEST_ARGS ?=
# Tests wait as much as they work: one worker more than there are processors.
WORKERS ?= $(shell echo $$(($$(nproc) + 1)))
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-python test-launcher tools soak lint docs bench bench-tools bench-audit compare chart wheel dist clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-20s %s\n' "$$name" "$$text"; done

setup: ## check the machine, make .venv, build the launcher
	@sh scripts/setup.sh

build: ## build the static launcher into src/stockade/_bin
	@sh scripts/build_launcher.sh

demo: setup ## install an npm tree with a hostile postinstall, bare and at strict, and compare
	@$(PY) scripts/demo.py

test: setup test-launcher ## run every test, several at once
	@sh scripts/test_python.sh -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-launcher:
	@sh scripts/test_launcher.sh

test-python:
	@sh scripts/test_python.sh $(PYTEST_ARGS)

soak: setup ## 10,000 boxes, every tenth killed with SIGKILL at a random moment: nothing may be left
	@STOCKADE_HYGIENE_SPAWNS=10000 STOCKADE_HYGIENE_KILL_EVERY=10 sh scripts/test_python.sh -q tests/integration/test_hygiene.py -k many_boxes --timeout 3600

tools: setup ## run the profiles' tests: real tools on real packages from the registries
	@sh scripts/test_python.sh tests/tools

lint: setup ## ruff, mypy, import layers, house style
	@$(PY) -m ruff check src tests scripts bench
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m pytest -q tests/lint

docs: setup ## write docs/tiers.md, docs/errors.md and the table of docs/decision.md from the tables in the code
	@$(PY) scripts/gen_docs.py

bench: setup ## measure spawning side by side with bubblewrap and print the budgets
	@$(PY) bench/spawn.py

bench-tools: setup ## real work in a box, warm starts, a stuck mount, the peers of the registries
	@$(PY) bench/tools.py $(BENCH_ARGS)

bench-audit: setup ## the audit log beside a plain log file and SQLite
	@$(PY) bench/audit.py

compare: setup ## the same attacks in every sandbox that the registries have
	@$(PY) bench/compare.py

chart: ## draw docs/bench.svg from the figures of the last make bench
	@python3 bench/chart.py

wheel: setup ## build a wheel for this platform into dist/
	@$(PY) -m pip wheel --quiet --no-deps -w dist .

dist: wheel ## the wheel, the wheel without a launcher for other systems, and the source archive
	@STOCKADE_WHEEL=pure $(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	@$(PY) -m hatchling build -t sdist -d dist

clean: ## remove what the other targets made
	@rm -rf .venv dist build bench/build bench/results launcher/target src/stockade/_bin/stockade-launch
