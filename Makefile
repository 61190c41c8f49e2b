# Everything runs inside .venv, which is made on first use and brought up to date when pyproject.toml
# or constraints.txt changes. PYTHON=... names the interpreter to make it with.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-chaos test-lowest test-pythons check constraints bench bench-quick bench-functions bench-agents bench-pairs bench-growth bench-tenants bench-kills clean

# One environment for each system that is measured: their dependencies differ.
BENCH_QUICK := .venv-bench/flowengine/.installed .venv-bench/dbos/.installed
BENCH_ALL := $(BENCH_QUICK) .venv-bench/prefect/.installed .venv-bench/pyworkflow/.installed
AT_RANDOM := tests/unit/evaluator/test_laws.py tests/unit/evaluator/test_cancellation.py \
	tests/unit/evaluator/test_generations.py tests/unit/turns/test_laws.py \
	tests/unit/scheduling/test_laws.py tests/unit/documents/test_any_document.py \
	tests/unit/authoring/functions/test_laws.py tests/integration/agents/test_agent_laws.py \
	tests/integration/functions/test_laws.py tests/unit/afl \
	tests/unit/program/test_mutations.py \
	tests/integration/test_front_ends.py tests/integration/test_as_plain_python.py \
	tests/integration/messaging/test_model.py tests/integration/messaging/test_cut_connections.py
# Scratch in memory where there is room: tests kill processes, not machines, so no disk is needed.
SCRATCH = $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 8000000 ] 2>/dev/null \
	&& [ -w /dev/shm ] && echo /dev/shm || echo "$${TMPDIR:-/tmp}")
# Tests start hundreds of processes, and without bytecode on the disk each compiles the package.
export PYTHONDONTWRITEBYTECODE :=
# A test that hangs fails after five minutes, with the stacks of its threads.
PARALLEL := -n 5 --dist loadfile --no-loadscope-reorder \
	-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

COLLECT := .venv/bin/python -m pytest --collect-only -qq -n0 >/dev/null 2>&1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed ## Run the quickstart; needs no server
	.venv/bin/flowengine run examples/quickstart.py:word_count \
		--input 'urls=["pages/tea", "pages/bread", "pages/sea"]'

test: .venv/.compiled-tests ## Run all tests, on real servers (ARGS="-k name" to choose)
	scripts/ensure-servers
	TMPDIR=$(SCRATCH) .venv/bin/python -m pytest $(PARALLEL) $(ARGS)

# Tests of faults wait most of the time, so three at a time share two cores. Each of the ten seeds
# takes 60 to 90 seconds.
test-chaos: .venv/.installed-dev ## Inject faults for long (ARGS="--chaos-seed 7" to repeat)
	scripts/ensure-servers
	EXAMPLES_AT_RANDOM=1 .venv/bin/python -m pytest -q -n 2 $(AT_RANDOM)
	TMPDIR=$(SCRATCH) .venv/bin/python -m pytest $(PARALLEL) --other-database tests/integration
	TMPDIR=$(SCRATCH) .venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
		-m chaos -v tests $(ARGS)

test-lowest: .venv-lowest/.installed ## Run them with the oldest versions that pyproject.toml allows
	scripts/ensure-servers
	TMPDIR=$(SCRATCH) .venv-lowest/bin/python -m pytest $(PARALLEL) $(ARGS)

# Without the acceptance tests: they start hundreds of processes, and none depends on the interpreter.
test-pythons: ## Run the tests without processes with each Python of pyproject.toml
	scripts/ensure-servers
	scripts/find-pythons | while read -r version python; do \
		echo "--- Python $$version"; \
		$(MAKE) --no-print-directory .venv-python/$$version/.installed PYTHON=$$python && \
		TMPDIR=$(SCRATCH) .venv-python/$$version/bin/python -W error -m pytest $(PARALLEL) \
			tests/test_exports.py tests/unit tests/integration $(ARGS) </dev/null || exit 1; \
	done

check: .venv/.installed-dev ## Lint, formatting, types, import layers, known vulnerabilities
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/python scripts/check-programs
	.venv/bin/lint-imports
	.venv/bin/python scripts/constraints check
	.venv/bin/python scripts/audit

constraints: .venv/.installed-dev ## Install the newest packages, and write them to constraints.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check \
		--upgrade --upgrade-strategy eager -e '.[dev]'
	.venv/bin/python scripts/constraints write
	touch .venv/.installed .venv/.installed-dev

bench: $(BENCH_ALL) ## Measure everything beside others, for an hour (ARGS="--workload W2")
	scripts/ensure-servers
	.venv-bench/flowengine/bin/python -m benchmarks $(ARGS)

bench-quick: $(BENCH_QUICK) ## Measure flowengine, the canvas and DBOS in less than 4 minutes
	scripts/ensure-servers
	.venv-bench/flowengine/bin/python -m benchmarks --quick $(ARGS)

bench-functions: $(BENCH_QUICK) ## Measure durable functions beside graphs and DBOS (ARGS="--repeats 5")
	scripts/ensure-servers
	.venv-bench/flowengine/bin/python -m benchmarks --functions $(ARGS)

bench-agents: $(BENCH_QUICK) .venv-bench/langgraph/.installed ## Measure turns of agents beside LangGraph and DBOS
	scripts/ensure-servers
	PYTHONPATH=. .venv-bench/flowengine/bin/python benchmarks/agents.py $(ARGS)

bench-pairs: .venv-bench/flowengine/.installed ## Compare with another checkout (ARGS="../before 60")
	scripts/ensure-servers
	TMPDIR=$(SCRATCH) PYTHONPATH=. .venv-bench/flowengine/bin/python benchmarks/pairs.py $(ARGS)

bench-growth: .venv/.installed-dev ## Measure how the cost of a step grows with its run
	.venv/bin/python benchmarks/growth.py

bench-tenants: .venv/.installed-dev ## Measure a tenant beside a hostile one (ARGS=7: the seed)
	scripts/ensure-servers
	PYTHONPATH=. .venv/bin/python benchmarks/tenants.py $(ARGS)

bench-kills: .venv/.installed-dev ## Measure the recovery of killed workers (ARGS=10: kills)
	scripts/ensure-servers
	PYTHONPATH=. .venv/bin/python benchmarks/kills.py $(ARGS)

clean: ## Remove the environment and everything built
	rm -rf .venv .venv-lowest .venv-python .venv-bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A development install contains the plain one, so it sets
# both stamps; the plain one removes nothing that is already there.

.venv/.installed: pyproject.toml constraints.txt .venv/bin/pip | .venv/bin/python
	scripts/install-package .
	touch $@

.venv/.installed-dev: pyproject.toml constraints.txt .venv/bin/pip | .venv/bin/python
	scripts/install-package '.[dev]'
	touch .venv/.installed $@

# In a new checkout each of the five processes of a test run would compile all tests: here they are
# compiled once, on two cores. An error of a test is reported by the run.
.venv/.compiled-tests: .venv/.installed-dev
	$(COLLECT) tests/integration & $(COLLECT) --ignore=tests/integration; wait
	touch $@

.venv/bin/python .venv/bin/pip &:
	scripts/create-venv

.venv-lowest/.installed: pyproject.toml scripts/lowest-versions | .venv/bin/python
	.venv/bin/python -m venv --clear .venv-lowest
	scripts/lowest-versions >.venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[dev]' -c .venv-lowest/constraints.txt
	touch $@

.venv-python/%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-python/$*
	.venv-python/$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[dev]' -c constraints.txt
	touch $@

.venv-bench/flowengine/.installed: pyproject.toml
.venv-bench/%/.installed: benchmarks/environments/%.txt | .venv/bin/python
	.venv/bin/python -m venv --clear .venv-bench/$*
	.venv-bench/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@
