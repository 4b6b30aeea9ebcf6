# Every target sets up what it needs: a virtual environment in .venv from the hashes in requirements.lock.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes of the same modules: what one has compiled is kept for the others.
unexport PYTHONDONTWRITEBYTECODE
STAMP := $(VENV)/.installed
# Tests run in a process for each core; tests/conftest.py says which ones stay together.
SHARED := --numprocesses auto
ROOMS := raft log broker simulation spark_analysis tests benchmarks trivet.py
STYLED := $(ROOMS) docs/checking-a-history.ipynb

.PHONY: install demo test test-fast fast-check check fmt map site bench simulate fuzz interop lock clean

# Everything that the commands need, in .venv.
install: $(STAMP)

demo: $(STAMP)
	$(BIN)/trivet demo

# Every test; with TURN=N, as CI does, of those that are run in turns only that one (tests/turns.py).
test: $(STAMP)
	$(BIN)/pytest $(SHARED) $(if $(TURN),--turn $(TURN))

# Between edits: no real processes, no Spark, nothing that takes seconds, and a fifth of the examples of each property.
test-fast: $(STAMP)
	$(BIN)/pytest $(SHARED) --hypothesis-profile "between edits" -m "not (cluster or spark or interop or slow)"

# The loops in C against the pure ones, and below gcc's sanitizers; what was skipped is said.
fast-check: $(STAMP)
	$(BIN)/pytest -rs tests/log/test_loops.py

check: $(STAMP)
	$(BIN)/ruff format --check $(STYLED)
	$(BIN)/ruff check $(STYLED)
	$(BIN)/mypy $(ROOMS)
	$(BIN)/lint-imports

fmt: $(STAMP)
	$(BIN)/ruff format $(STYLED)
	$(BIN)/ruff check --fix $(STYLED)

# Which room imports which, as docs/imports.svg shows it.
map: $(STAMP)
	$(BIN)/python -m tests.import_map

# The pages of docs/ as a site in build/site; a dead link or anchor fails.
site: .site-venv/.installed
	NO_MKDOCS_2_WARNING=1 .site-venv/bin/mkdocs build --strict -f docs/site/mkdocs.yml

.site-venv/.installed: docs/site/requirements.lock
	test -x .site-venv/bin/python || $(PYTHON) -m venv .site-venv
	.site-venv/bin/python -m pip install --quiet --require-hashes -r docs/site/requirements.lock
	touch $@

# An otherwise quiet machine gives figures worth keeping.
bench: $(STAMP)
	$(BIN)/trivet bench --output bench-results/trivet.json

# A long batch; a finding ends with the command that replays it.
simulate: $(STAMP)
	$(BIN)/trivet simulate --seeds 1-1000 --jobs 2

# Hostile requests for brokers, name servers and the port of the peers, beside a healthy client; a finding says how to replay it.
fuzz: $(STAMP)
	$(BIN)/python -m tests.hostile.fuzz --requests 1000000

# Against RocketMQ's own clients and servers, where Maven and Java are there to fetch and run them.
interop: $(STAMP)
	$(BIN)/pytest -rsx tests/interop --clients all

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later with venv and pip is needed (on Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements.lock
	# As pip does it, which takes one core for it; what hardly anything imports is compiled when it is first imported.
	$(BIN)/python -m compileall -qq -j 0 -x '/(pandas|django|playwright|mypyc?|pip|setuptools|pkg_resources|tests|mllib|ml|connect|lexers|rich_rst)/' $(VENV)/lib || true
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	# Tests are left out: pytest compiles them in its own way.
	$(BIN)/python -m compileall -qq -j 0 -x '/(test_[^/]*|conftest)\.py$$' $(ROOMS)
	touch $@

# Pins every dependency by hash; names and versions only, no addresses.
lock:
	$(PYTHON) -m venv .lock-venv && .lock-venv/bin/pip install --quiet uv
	.lock-venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --extra analysis --extra console --extra dev -o requirements.lock pyproject.toml
	.lock-venv/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 -o docs/site/requirements.lock docs/site/requirements.in
	rm -rf .lock-venv

clean:
	rm -rf $(VENV) .site-venv build dist
