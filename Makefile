# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` has the others.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
DOCS_STAMP := $(VENV)/.docs-done
COMPILED := $(VENV)/.compiled
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
# One thread per worker is set by the engine itself; these keep numpy and scikit-learn from adding their own.
export OMP_NUM_THREADS ?= 2
export OPENBLAS_NUM_THREADS ?= 2
# Tests start hundreds of programs: compiled modules are kept even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test check check-slow coverage wheel bench bench-peers mutants fuzz sanitize docs clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create the virtual environment and install what the demo and the tests need, pinned

ENGINE := $(wildcard hatch_build.py src/coterie/native/compile.py src/coterie/native/source/*)
$(STAMP): pyproject.toml constraints.txt $(ENGINE)
	@# the compiler works while pip downloads; without one PyTorch does the work, and that is said
	@# pip works on one core: two of them install a half of the pinned versions each, the third what they could not
	@$(PYTHON) src/coterie/native/compile.py >/dev/null & $(PYTHON) -m venv $(VENV) && \
	  for half in 0 1; do sed '/^# docs/,$$d; /^#/d' constraints.txt | awk "NR % 2 == $$half" | \
	    xargs $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile & halves="$$halves $$!"; done; wait $$halves; \
	  COTERIE_COMPILE=no $(INSTALL) --no-compile -e '.[dev,flower,metrics,onnx,ray,tensorboard,watch]' && wait
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: setup  ## recover four hidden groups of rotated digits: a table and a picture, under two minutes
	@# 80 columns, whoever reads it
	COLUMNS=$${COLUMNS:-80} $(BIN)/coterie compare fedavg local ifca wecfl --data digits --partition 'rotation(0,90,180,270)' \
	  --clients 40 --clusters 4 --rounds 20 --seeds 1..5 --out runs/demo
	@$(BIN)/coterie report runs/demo -o runs/demo/report.html

# Three processes on two cores: federations wait for each other most of their time, so their tests come first. Threads
# that wait for each other sleep, as the cores have other work: a small network on two threads took four times as long.
PYTEST := OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' tests/deploy tests/contract tests src
TESTS := $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder
test: setup  ## everything CI runs: lint, types, layers, and beside them the tests
	@$(MAKE) --no-print-directory check & checking=$$!; $(MAKE) --no-print-directory $(COMPILED); \
	  $(TESTS); tested=$$?; wait $$checking && exit $$tested

# On a fresh clone three processes that begin together would each compile the same modules, which takes longer than to
# import them. What cannot be imported is said by the tests.
$(COMPILED): $(STAMP)
	@$(PYTEST) --collect-only -qq >/dev/null; touch $@

coverage: setup  ## the tests once more, slower, and which lines they enter: a table, runs/coverage/html, coverage.xml
	$(TESTS) --cov --cov-report=term --cov-report=html --cov-report=xml

check: setup  ## lint, types and import layers only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check-slow: wheel  ## the slow checks on real data (fetches it; tens of minutes), new cases for the property tests, the wheel
	$(BIN)/pytest -m slow --durations=0 -v
	$(BIN)/pytest tests/property --hypothesis-profile='new cases'

# Elsewhere, so that the sources are not on the path: what the wheel lacks is missing there.
wheel: setup  ## build the wheel, install it into an empty environment, run it there from another folder
	rm -rf dist build/empty build/elsewhere
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/coterie-*.whl
	mkdir -p build/elsewhere
	cd build/elsewhere && env -u PYTHONPATH ../empty/bin/coterie --version
	cd build/elsewhere && env -u PYTHONPATH ../empty/bin/coterie run wecfl --rounds 2 --quiet

bench: setup  ## speed of the engine beside a plain loop, with this machine's peak; what got slower since the baseline
	$(BIN)/python -m benchmarks.engine

# For a quick try: make bench-peers PEERS='--models mlp --peers JAX --clients 20 --repeats 2'
bench-peers: setup  ## speed beside Flower, pfl, fluke, fedbase and JAX, in environments of their own (an hour, and 7 GB)
	$(BIN)/python -m benchmarks.peers $(PEERS)

mutants: setup  ## small faults in a copy of the library, one at a time: which do the tests notice? (half an hour or more)
	$(BIN)/python benchmarks/mutation.py --out runs/mutants.jsonl --lanes 2

SEED ?= 1
CASES ?= 2000
fuzz: setup  ## strange words, files, folders, messages and networks, by a seed: nothing may crash, hang or be left behind
	$(BIN)/python -m fuzz --seed $(SEED) --cases $(CASES)

# The checks are loaded before Python; it and torch do not free all they hold, so leaks are not looked for.
sanitize: setup  ## the native engine with checks of addresses and undefined behaviour, on the random chains
	mkdir -p build
	$(BIN)/python -m coterie.native.compile --sanitize --to build/engine-checked.so
	LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	  COTERIE_NATIVE=$(CURDIR)/build/engine-checked.so $(BIN)/pytest tests/test_native.py -m "slow or not slow"

docs: $(DOCS_STAMP)  ## build the documents into site/, without a network: no link may be broken, and every example must run
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest tests/test_docs.py

clean:  ## remove the environment, what was built and caches, keep runs
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
