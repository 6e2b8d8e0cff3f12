# Streamkeeper's front door. Everything that is downloaded goes into .venv and .cache.
# It needs Python 3.11 to 3.14 with its venv module, a JDK of Java 17 or 21, and make.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
SHELL := /bin/sh

PY := .venv/bin/python
# Stamps lie in what they vouch for: a removed folder takes its stamp along.
VENV_STAMP := .venv/.made
LOCK_STAMP := .venv/.lock-installed
PROJECT_STAMP := .venv/.project-installed

export UV_CACHE_DIR := $(CURDIR)/.cache/uv
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A tool that is started without the virtual environment's activation must still find spark-submit and airflow there.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Fast first; a folder that is not named here comes last. Benchmarks run by `make bench` alone.
# In several processes (JOBS) a file's tests stay together, and those of the one Airflow of a run: they take longest, so they begin beside
# Spark's. In one process they come last.
JOBS ?= 2
FAST := $(wildcard tests/test_*.py tests/core tests/demo)
ifeq ($(JOBS),1)
ORDERED := $(FAST) $(wildcard tests/spark tests/airflow tests/chaos tests/end_to_end)
else
ORDERED := $(FAST) $(wildcard tests/airflow tests/end_to_end tests/spark tests/chaos)
BESIDE := -n $(JOBS) --dist loadscope --no-loadscope-reorder
endif
OTHERS := $(sort $(filter-out $(ORDERED) tests/benchmarks,$(patsubst %/,%,$(dir $(wildcard tests/*/test_*.py)))))
# What is passed on comes last, so that it wins.
PYTEST = $(PY) -m pytest $(BESIDE) -m $(1) --durations=25 $(PYTEST_OPTIONS)

.PHONY: help setup java browser prometheus jars s3-jars avro-jars demo test test-long test-matrix test-newest test-fast check format docs docs-serve pictures chaos bench lock wheel changelog .env up down up-test clean

# Compose's plugin, or the program of its own that older systems have. An image is built before it is used, so that none is pulled.
COMPOSE = $(if $(shell docker compose version 2>/dev/null),docker compose,docker-compose)

help: ## show this help
	@echo "Streamkeeper: make <target>"
	@awk -F ':.*## ' '/^[.a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: java $(PROJECT_STAMP) jars ## make .venv, install the locked packages, fetch and build the jars (once)

demo: setup ## start Airflow with a streaming flow and new data; STORY=1 plays break and recovery by itself; KAFKA=1 adds Kafka; PORT=…
	@$(PY) -m demo $(if $(STORY),--story) $(if $(KAFKA),--kafka) $(if $(PORT),--port $(PORT))

test: setup ## run the tests but the long ones, fast ones first, in JOBS=… processes (2); PYTEST_OPTIONS=… is passed on
	@$(call PYTEST,"not long") $(ORDERED) $(OTHERS)

test-long: setup browser prometheus ## run the tests that are marked as long; fetches the browser and the Prometheus that some need (once)
	@$(call PYTEST,long) $(ORDERED) $(OTHERS)

test-matrix: setup ## install into an Airflow of its own, by each file of constraints/ with each of PYTHONS="3.11 3.12 3.13" (on the PATH), and run two flows
	@MATRIX="$(or $(PYTHONS),3.11 3.12 3.13)" $(PY) -m pytest -m long -v $(PYTEST_OPTIONS) tests/installed

test-newest: setup ## once a week: the same with the newest release of everything that the wheel allows; PYTHONS="3.13"
	@MATRIX="$(or $(PYTHONS),3.13)" NEWEST=1 $(PY) -m pytest -m long -v $(PYTEST_OPTIONS) tests/installed

test-fast: $(PROJECT_STAMP) ## run those of make test that need neither Spark nor Airflow
	@$(call PYTEST,"not long") $(FAST)

check: $(PROJECT_STAMP) ## run the linter, the format check, the type checker, and look for pages of docs/ that the code has left behind
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m tools.docs --check

format: $(PROJECT_STAMP) ## format the code and repair what the linter can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(PROJECT_STAMP) ## write the parts of docs/ that are made from the code, and build the site into .cache/site
	@$(PY) -m tools.docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

docs-serve: $(PROJECT_STAMP) ## show the site at http://127.0.0.1:8000, as docs/ is edited; PORT=…
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --dev-addr 127.0.0.1:$(or $(PORT),8000)

pictures: setup browser ## take the pictures of docs/pictures from the demo's own flow, which takes half an hour
	@$(PY) -m tests.end_to_end.looking.pictures

chaos: setup ## kill drivers, tasks and schedulers of a real Airflow, with WHERE=cluster also Spark's, Kafka, S3, with WHERE=disk fill its disk (as root); ROUNDS=… (20), SEED=…, VICTIMS=…, KEEP=… a folder
	@$(PY) -m tests.chaos $(if $(WHERE),--where $(WHERE)) --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED)) $(if $(VICTIMS),--victims $(VICTIMS)) $(if $(KEEP),--keep $(KEEP))

wheel: setup ## build the wheel, which has everything but other projects' jars, into dist/
	@rm -rf build dist
	@$(PY) -m uv build --quiet --wheel --out-dir dist . || $(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@rm -rf build && ls dist

changelog: $(PROJECT_STAMP) ## show what the fragments in changes/ add to CHANGELOG.md; VERSION=… writes it there, and removes them
	@$(PY) -m towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version Unreleased)

bench: setup ## measure, and print all ratios in one table at the end; NAME=… runs tests/benchmarks/bench_<name>.py alone, or several; ROUNDS=…
	@$(if $(ROUNDS),ROUNDS=$(ROUNDS)) $(PY) -m tests.benchmarks $(NAME)

lock: $(LOCK_STAMP) ## make all lock files anew, after a change of requirements.in or streamkeeper/jars
	@$(PY) -m uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements.txt requirements.in
	@$(PY) -m uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements-cluster.txt requirements-cluster.in
	@$(PY) -m tools.constraints
	@$(PY) -m streamkeeper.jars --resolve
	@$(PY) -m streamkeeper.jars --resolve --lock tools/s3.lock
	@$(PY) -m streamkeeper.jars --resolve --lock tools/avro.lock --beside-spark --root org.apache.spark:spark-avro_2.13:4.1.1
	@$(PY) -m streamkeeper.jars --resolve --lock tools/kafka_broker.lock \
		--root org.apache.kafka:kafka_2.13:4.1.0 --root org.slf4j:slf4j-simple:1.7.36

.env: ## make the secrets of docker-compose.yaml; a file that is there gets those that it lacks
	@sh docker/make_env.sh $@

up: .env ## build and start docker-compose.yaml, until all is healthy; PROFILE="metrics s3" adds to it; PORT=…
	@$(if $(PORT),AIRFLOW_PORT=$(PORT)) $(COMPOSE) $(PROFILE:%=--profile %) up -d --build
	@echo "Airflow: http://$$($(COMPOSE) port api-server 8080), login admin and AIRFLOW_PASSWORD of .env. The rest: docs/operations/compose.md"

down: ## stop what `make up` started; the volumes stay
	@$(COMPOSE) --profile metrics --profile s3 down --timeout 120

up-test: .env ## play the demo's story through docker-compose.yaml, beside what runs, and remove it again; PORT=… (18080)
	@sh docker/up_test.sh $(or $(PORT),18080) $(COMPOSE)

clean: ## remove .venv, .cache, .demo and what the tools left behind
	rm -rf .venv .cache .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@PYTHON="$(PYTHON)" sh tools/needs.sh java >/dev/null

$(VENV_STAMP):
	@python=$$(PYTHON="$(PYTHON)" sh tools/needs.sh) || exit 1; \
	if [ ! -x $(PY) ] && ! "$$python" -m venv .venv; then \
		rm -rf .venv; \
		echo "error: $$python could not make a virtual environment; the lines above say why." >&2; \
		exit 1; \
	fi
	@touch $@

# uv is quick; where it cannot work (it does not read pip's configuration), pip does the same.
$(LOCK_STAMP): requirements.txt | $(VENV_STAMP)
	@echo "Installing the locked packages into .venv …"
	@{ sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt && $(PY) -m pip install --quiet -r .venv/uv.txt \
			&& $(PY) -m uv pip sync --quiet requirements.txt; } \
		|| { echo "uv could not install them; trying with pip, which takes longer …"; $(PY) -m pip install --quiet -r requirements.txt; } \
		|| { echo "error: the packages of requirements.txt could not be installed; the lines above say why." \
			"Is there a network? Run the same command again: it goes on where it stopped." >&2; exit 1; }
	@rm -f $(PROJECT_STAMP)
	@touch $@

$(PROJECT_STAMP): pyproject.toml $(LOCK_STAMP)
	@$(PY) -m uv pip install --quiet --no-deps --editable . || $(PY) -m pip install --quiet --no-deps --editable .
	@touch $@

# Looked at each time, by name and content; that takes a fifth of a second, and a damaged or missing jar comes again.
jars: $(LOCK_STAMP)
	@$(PY) -m streamkeeper.jars .cache/jars

s3-jars: setup ## fetch the jars for state and tables on S3 into .cache/jars-s3, beside all others; for STREAMKEEPER_JARS
	@$(PY) -m streamkeeper.jars .cache/jars-s3 --lock jars.lock --lock tools/s3.lock

avro-jars: $(LOCK_STAMP) ## fetch Spark's Avro into .cache/jars-avro, for the jars of a driver that reads a schema registry's values
	@$(PY) -m streamkeeper.jars .cache/jars-avro --lock tools/avro.lock

browser: $(LOCK_STAMP)
	@$(PY) -m tools.browser

prometheus: $(LOCK_STAMP)
	@$(PY) -m tools.prometheus
