# Penstock's everyday commands; `make help` lists them. CI calls `make test`, which has what `make
# check` leaves out.

PYTHON ?= python3
RUN_ENV := .venv-run
TEST_ENV := .venv-test
SPARK_ENV := .venv-spark
RUN_STAMP := $(RUN_ENV)/.stamp
TEST_STAMP := $(TEST_ENV)/.stamp
SPARK_STAMP := $(SPARK_ENV)/.stamp
BIN := $(TEST_ENV)/bin
DATA ?= .data
ARGS ?=
MINUTES ?= 10
N ?= 1000
SEED ?=
# Processes that have whole files each: one more than the cores of a small machine, since tests wait.
IN_THREE := -n 3 --dist loadfile

# What is installed is what the locks name, by hash; nothing is built in an environment of its
# own, since nothing would pin its tools.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-build-isolation
LOCKED := $(PIP_INSTALL) --require-hashes
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate

# Tests start hundreds of processes: without kept bytecode each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run authz pipeline check test lint format unit demo bench peers planted sim cluster chaos docs lock clean

help: ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses the interpreter; DATA=dir is the server's; MINUTES=, N=, SEED= are of chaos and sim; ARGS=... is handed on."

run: $(RUN_STAMP) ## Start a server on 127.0.0.1:9092 and 127.0.0.1:8080 (data in .data).
	@exec $(RUN_ENV)/bin/penstock serve --data $(DATA) $(ARGS)

authz: $(RUN_STAMP) ## An authorization service on 127.0.0.1:8081 with a sample policy, and three questions to try.
	@exec $(RUN_ENV)/bin/python demo/authz.py $(ARGS)

pipeline: $(SPARK_STAMP) ## Compaction and tables on a schedule, on Spark, beside `make run`.
	@exec $(SPARK_ENV)/bin/penstock pipeline run $(ARGS)

check: lint ## lint and the fast unit tests with few examples, in under 2 minutes: before each commit.
	$(BIN)/pytest --hypothesis-profile=check -m "not slow" $(IN_THREE) tests/unit $(ARGS)

test: $(TEST_STAMP) ## All that CI runs: lint, then every suite, with a table of times.
	@$(BIN)/python tests/run.py

lint: $(TEST_STAMP) ## ruff, mypy --strict, import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(TEST_STAMP) ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(TEST_STAMP) ## Unit tests alone, in random order: all, or those of ARGS=tests/unit/FOLDER.
	$(BIN)/pytest $(IN_THREE) $(if $(findstring tests/,$(ARGS)),,tests/unit) $(ARGS)

demo: $(TEST_STAMP) ## 336,776 real flights through two clients, a table, Spark SQL, compaction.
	$(BIN)/python demo/flights.py $(ARGS)

bench: $(RUN_STAMP) $(TEST_STAMP) ## Penstock against Apache Kafka, alternating; see docs/benchmarks.md.
	$(BIN)/python bench/compare.py $(ARGS)

peers: $(TEST_STAMP) ## Tests with real Kafka clients, and further stores and Sparks, where they can be got.
	@$(BIN)/python tests/peers/build.py
	@$(BIN)/python tests/peers/spark.py
	$(BIN)/pytest tests/clients tests/peers tests/cluster/test_groups_move.py $(ARGS)

planted: $(TEST_STAMP) ## Known bugs are planted one at a time, and the simulation has to find each.
	$(BIN)/python tests/sim/planted.py $(ARGS)

sim: $(TEST_STAMP) ## Simulated clusters, N of them with new seeds; SEED=... has one again.
	$(BIN)/python tests/sim/run.py $(if $(SEED),--seed=$(SEED),--count=$(N)) $(ARGS)

cluster: $(TEST_STAMP) ## Three agents, PostgreSQL and an S3 server on this machine, until Ctrl-C.
	@exec $(BIN)/python demo/cluster.py $(ARGS)

chaos: $(TEST_STAMP) ## Clients on a cluster of real processes that are killed, paused and cut off.
	$(BIN)/python tests/chaos/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(TEST_STAMP) ## Make the pages that come from code.
	$(BIN)/python tests/make_docs.py

lock: $(TEST_STAMP) ## Make the locks again from pyproject.toml and requirements/*.in.
	$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(COMPILE) --upgrade --output-file requirements/run.txt pyproject.toml
	$(COMPILE) --upgrade --output-file requirements/build.txt requirements/build.in
	$(COMPILE) --upgrade --output-file requirements/test.txt --extra spark pyproject.toml \
	  requirements/test.in
	$(COMPILE) --upgrade --output-file requirements/spark.txt --extra spark pyproject.toml \
	  --constraints requirements/run.txt --constraints requirements/test.txt
	for name in spark-4.1 spark-4.2 spark-connect venv-pack; do \
	  $(COMPILE) --upgrade --no-deps --output-file requirements/$$name.txt requirements/$$name.in \
	    || exit 1; \
	done

clean: ## Remove environments and caches, not data.
	rm -rf $(RUN_ENV) $(TEST_ENV) $(SPARK_ENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

$(RUN_STAMP): requirements/run.txt requirements/build.txt pyproject.toml
	@$(PYTHON) tests/packaging/make_venv.py $(RUN_ENV)
	$(RUN_ENV)/bin/python $(LOCKED) -r requirements/build.txt
	$(RUN_ENV)/bin/python $(LOCKED) -r requirements/run.txt
	$(RUN_ENV)/bin/python $(PIP_INSTALL) --no-deps --editable .
	@du -sm $(RUN_ENV) | awk '{print "installed in $(RUN_ENV): " $$1 " MB (at most 150)"}'
	@touch $@

$(SPARK_STAMP): requirements/spark.txt requirements/build.txt pyproject.toml
	@$(PYTHON) tests/packaging/make_venv.py $(SPARK_ENV)
	$(SPARK_ENV)/bin/python $(LOCKED) -r requirements/build.txt
	$(SPARK_ENV)/bin/python $(LOCKED) -r requirements/spark.txt
	$(SPARK_ENV)/bin/python $(PIP_INSTALL) --no-deps --editable .
	@touch $@

# test.txt holds what run.txt and spark.txt hold, too.
$(TEST_STAMP): requirements/build.txt requirements/test.txt pyproject.toml
	@$(PYTHON) tests/packaging/make_venv.py $(TEST_ENV)
	$(TEST_ENV)/bin/python $(LOCKED) -r requirements/build.txt
	$(TEST_ENV)/bin/python $(LOCKED) -r requirements/test.txt
	$(TEST_ENV)/bin/python $(PIP_INSTALL) --no-deps --editable .
	@touch $@
