# `make help` lists the targets. Nothing here needs more than python3, make and, for the tests, Debian's apt-get.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
DEMO_FOR ?=
# More workers than cores: the live tests wait more than they compute.
PYTEST_ARGS ?= -n 5 --dist loadgroup
LOCK_ARGS ?=
FUZZ_ARGS ?=
BENCH_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq --no-input --disable-pip-version-check
export PIP_ROOT_USER_ACTION := ignore
# Debian's Prometheus, Alertmanager and their tools, unpacked under .cache/debian/SUITE. bookworm is the pinned pair;
# testing carries the newest one and is left out, with its reason, where it cannot be fetched.
PINNED_TOOLS := .cache/debian/bookworm/fetched
NEWEST_TOOLS := .cache/debian/testing/fetched
LINTED := src tests tools benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test fuzz bench lint tools browser dashboards runbooks rules docs pictures grafana-schema lock clean newest-tools

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 17

demo: .venv/.runtime ## run phasewatch on recorded servers, one in an incident; DEMO_FOR=25s ends it by itself
	@$(BIN)/phasewatch demo $(if $(DEMO_FOR),--for $(DEMO_FOR))

test: lint tools browser grafana-schema ## lint, then run all tests; PYTEST_ARGS="-k name" selects some
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: .venv/.dev tools ## measure what watching a fleet costs, beside Prometheus; BENCH_ARGS="--targets 10,50" and others
	$(BIN)/python -m benchmarks.fleet $(BENCH_ARGS)

fuzz: .venv/.dev ## run malformed scrapes through reading, diagnosis and export; FUZZ_ARGS="--sequences 500" runs fewer
	$(BIN)/python -m benchmarks.fuzz $(FUZZ_ARGS)

lint: .venv/.dev ## run ruff and mypy
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy

tools: $(PINNED_TOOLS) newest-tools ## fetch the Prometheus and Alertmanager that the tests use

$(PINNED_TOOLS): scripts/fetch-tools.sh
	@scripts/fetch-tools.sh bookworm

# Tried again on every run until it is there, since a test run must not hang on it.
newest-tools:
	@test -e $(NEWEST_TOOLS) || scripts/fetch-tools.sh testing || \
		echo "make: going on without Debian testing's Prometheus; its tests will be skipped" >&2

# playwright's driver needs libatomic1, which a small Debian lacks.
browser: .venv/.dev ## install Debian's chromium if it is missing (needs root)
	@if test -x /usr/bin/chromium && $(BIN)/playwright --version >/dev/null 2>&1; then :; \
	elif test "$$(id -u)" = 0; then scripts/apt-install.sh chromium libatomic1; \
	else echo "make: no /usr/bin/chromium or no libatomic1, and not root: browser tests cannot run" >&2; fi

dashboards: .venv/.dev ## rewrite grafana/dashboards from tools/dashboards
	$(BIN)/python -m tools.dashboards

docs: .venv/.dev ## rewrite docs/metrics.md from the tables in src/phasewatch/core/report
	$(BIN)/python -m tools.metrics_docs

runbooks: .venv/.dev ## rewrite the remedies in config/runbooks/verdicts from the causes' rows
	$(BIN)/python -m tools.runbooks

rules: .venv/.dev ## rewrite config/prometheus/rules from tools/alerts
	$(BIN)/python -m tools.alerts

pictures: browser $(PINNED_TOOLS) ## rewrite docs/pictures, the README's previews of the dashboards
	PYTHONPATH=tests $(BIN)/python scripts/preview_dashboards.py

# Made from what Grafana publishes for node; without it one step of checking the dashboards is skipped, and says so.
grafana-schema:
	@test -e .cache/grafana-schema/schema.json || scripts/grafana-schema.sh || \
		echo "make: going on without Grafana's schema; the tests that use it will be skipped" >&2

.venv/.made: scripts/make-venv.sh
	@scripts/make-venv.sh $(PYTHON)
	@touch $@

# Enough to run phasewatch. The project is installed in place, so a change under src/ needs no new install.
.venv/.runtime: .venv/.made requirements/runtime.txt requirements/build.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

.venv/.dev: .venv/.runtime requirements/dev.txt
	$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes $(LOCK_ARGS)
lock: .venv/.dev ## rewrite requirements/ from pyproject.toml; LOCK_ARGS=--upgrade takes newer releases
	$(LOCK) pyproject.toml -o requirements/runtime.txt
	$(LOCK) --group build -o requirements/build.txt
	$(LOCK) pyproject.toml --extra rules --group dev -c requirements/runtime.txt -c requirements/build.txt -o requirements/dev.txt

clean: ## remove everything that make created
	rm -rf .venv .cache dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
