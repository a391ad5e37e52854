# One entry for every routine task; `make` alone explains them.

PYTHON ?= python3
VENV   := .venv/bin
PYTEST := $(VENV)/python -m pytest
# pytest, and what failed beside other tests again alone: docs/HACKING.md.
SUITE  := $(VENV)/python -m tools.suite
# Workers of `make test`, for two cores: most of a test is waiting for a disk, a process or a clock.
JOBS   ?= 5

# Bytecode is kept, whatever the environment says: tests start processes by the hundred.
export PYTHONDONTWRITEBYTECODE :=

# Where tests of the compiled modules are; those that reach one run interpreted as well.
ENGINE_TESTS := tests/model tests/core tests/mqtt tests/log tests/broker

.DEFAULT_GOAL := help
.PHONY: help setup run test test-spark test-peers test-cluster nightly lint check format bench demo wheel docs constraints hashes clean

help: ## list the targets
	@printf '\n  Penstock: MQTT and HTTP in, one fsynced log, Spark tables and streams out\n\n'
	@[ -t 1 ] && bold=$$(printf '\033[1m') && plain=$$(printf '\033[0m'); \
		awk -F ':.*## ' -v bold="$$bold" -v plain="$$plain" \
		'/^[a-z-]+:.*## / { printf "  %smake %-12s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  PENSTOCK_COMPILE=auto|0|1  compile the engine if possible (default), never, or fail;\n'
	@printf '                             `make run` does it in the background for the next start\n'
	@printf '  ARGS="--http off"          additional arguments for `make run`\n\n'

setup: ## create .venv/ with penstock, all extras and the compiled engine (repeatable)
	@$(PYTHON) -m tools.prepare

run: ## start a broker from this checkout; needs only Python, compiles the engine in the background
	@$(PYTHON) -m tools.prepare --light
	@exec $(VENV)/penstock serve $(ARGS)

test: setup ## run all tests that need only Python packages; a skipped test is a failure
	@$(VENV)/python tools/engine.py --require-compiled --if-compiler
	@printf '\n== the whole suite\n'
	@PENSTOCK_EXPECT_ENGINE=$$($(VENV)/python tools/engine.py --word) \
		$(SUITE) -n $(JOBS) --in-memory --dist loadgroup --no-loadscope-reorder --durations=25 --no-skips \
		-m 'not java' tests
	@printf '\n== the engine again, interpreted\n'
	@export HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick}; \
		tests=$$($(VENV)/python tools/engine.py --tests $(ENGINE_TESTS)) && \
		$(VENV)/python -m tools.interpreted $(SUITE) -n $(JOBS) --dist worksteal --durations=10 \
		--no-skips -m 'not slow' \
		tests/project/test_engine.py $$tests

test-spark: setup ## run the tests that start Spark; needs a JDK (17 or 21)
	@$(VENV)/python -m tools.spark_classes
	@$(SUITE) -n 3 --dist loadgroup --no-loadscope-reorder --durations=10 --no-skips \
		-m java tests

test-peers: setup ## run tests that need other programs; installs missing ones (Debian packages)
	@$(PYTHON) -m tools.peers
	@$(SUITE) -n 3 --dist loadgroup --no-loadscope-reorder --durations=10 --no-skips tests/peers

test-cluster: setup ## run tests with a real Kafka, which Maven resolves once; needs Maven and Java
	@$(SUITE) -n 2 --dist loadfile --no-loadscope-reorder --durations=10 --no-skips tests/cluster

nightly: setup ## run long tests: malformed packets, random traffic, memory, killed brokers, nodes and Spark drivers, more examples
	@$(VENV)/python -m tests.abuse.fuzz 1_000_000
	@$(VENV)/python -m tests.longrun 10
	@$(VENV)/python -m tests.longrun.level 30
	@PENSTOCK_ROUNDS=20 $(PYTEST) --no-skips -k kill tests/pipeline
	@PENSTOCK_ROUNDS=30 $(PYTEST) --no-skips tests/crash/test_history_kill.py tests/crash/test_erase_kill.py
	@PENSTOCK_CHAOS_S=1800 PENSTOCK_CHAOS_EVERY_S=60 $(PYTEST) -s --no-skips tests/cluster/test_node_chaos.py
	@$(PYTEST) --on-kafka --no-skips tests/conformance tests/scenarios tests/doors/publish tests/doors/deliver tests/doors/session tests/http tests/bus
	@PENSTOCK_SIM_SEEDS=2000 $(PYTEST) -n $(JOBS) --no-skips tests/sim/nodes
	@PENSTOCK_ROUNDS=100 $(PYTEST) --no-skips tests/http/v1/test_v1_openapi.py
	@HYPOTHESIS_PROFILE=long $(PYTEST) -n $(JOBS) --dist worksteal -m 'not slow' $(ENGINE_TESTS) tests/catalog tests/pipeline

lint: setup ## run ruff, mypy --strict, the import rules, the size limits, and hadolint on the container file
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports
	@$(VENV)/python -m tools.limits
	@$(VENV)/hadolint ops/Containerfile

# Linters keep one core busy at a time: they run beside the tests, and are read behind them.
check: setup ## run what lint runs and the fast tests; under a minute
	@said=$$(mktemp); $(MAKE) --no-print-directory lint >"$$said" 2>&1 & linters=$$!; \
	tested=0; HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} \
		$(PYTEST) -q -n 2 --dist worksteal --in-memory --durations=5 \
		-m 'not slow and not over_a_second' tests || tested=$$?; \
	linted=0; wait $$linters || linted=$$?; cat "$$said"; rm -f "$$said"; \
	[ $$tested -eq 0 ] && [ $$linted -eq 0 ]

format: setup ## format the sources and sort imports
	@$(VENV)/ruff check --fix .
	@$(VENV)/ruff format .

bench: setup ## measure speed as ratios against a bare loop or a peer in the same run
	-@$(PYTHON) -m tools.peers
	@$(VENV)/python -m bench $(ARGS)

demo: setup ## run a demo: devices over MQTT, Spark, back over MQTT, a table and a chart; under two minutes
	@$(VENV)/python -m demo $(ARGS)

wheel: ## build wheels, with the compiled engine and without, and try each on Python 3.11 to 3.13
	@$(PYTHON) -m tools.wheels $(ARGS)

docs: setup ## build the documentation as a site in build/site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(VENV)/python -m mkdocs build --strict --quiet
	@printf 'open build/site/index.html; with the search: python3 -m http.server --directory build/site\n'

constraints: ## write the newest compatible versions to constraints.txt, and their hashes
	@$(PYTHON) -m tools.constraints

hashes: ## write the hashes of the versions in constraints.txt to hashes.txt
	@$(PYTHON) -m tools.hashes

clean: ## remove .venv/, builds and caches; keep data directories
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests tools bench demo -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@find src \( -name '*.so' -o -name '*.egg-info' \) -prune -exec rm -rf {} +
