# make help lists what there is. Each sets up its own .venv first. Needs Python 3.10 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo help native test test-fast test-all test-gpu fuzz attack lint lock bench examples docs dist clean
.DELETE_ON_ERROR:

demo: .make/test native
	$(BIN)/spectralgrad demo

help:
	@echo "make demo      what a user sees first: methods x d on digits, three minutes, a page"
	@echo "make native    the kernels for the CPU again, after a change of their sources; needs a C++ compiler"
	@echo "make test      lint, types, all tests but the slow ones"
	@echo "make test-fast one test of each function that tests: the inner loop"
	@echo "make test-all  the slow tests too"
	@echo "make test-gpu  tests on a GPU, with PYTHON= as it is; RECORD=FILE keeps the record"
	@echo "make lint      ruff and mypy alone"
	@echo "make fuzz      hostile matrices: SEED= MATRICES= ONLY= DEVICE=cuda"
	@echo "make attack    damaged files, interrupts, faults of ranks: SEED= COUNT= ONLY="
	@echo "make bench     accuracy and speed beside other packages; records go into results/"
	@echo "make examples  every example, or ONLY=, with its picture"
	@echo "make docs      the site, into site/"
	@echo "make dist      sdist and wheel of both packages, checked, in dist/"
	@echo "make lock      requirements.lock again, after a change of versions"
	@echo "make clean     removes .venv, .make, demo, dist and site"

# Each worker begins with neighbouring files, whose fixtures it makes once, and takes from the others when it is done.
# Bytecode is kept, whatever the environment says: without it every worker and every child compiles all files again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: .make/test native lint
	$(PYTEST) -m "not slow"

test-fast: .make/test native
	$(PYTEST) --fast

test-all: .make/test native lint
	$(PYTEST)

# The library of native kernels beside its sources: installing makes it, this makes it again where they are newer. Without a
# compiler there is none, or an old one that nobody loads, and plain torch does that work.
CPU := src/spectralgrad/kernels/cpu
native: .make/native
.make/native: .make/test $(wildcard $(CPU)/*.h $(CPU)/*.cpp) $(CPU)/build.py
	$(BIN)/python $(CPU)/build.py || echo "going on without"
	touch $@

# With the Python it is given, and nothing installed: a machine with a GPU may be offline. RECORD=FILE keeps the record.
test-gpu:
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/lab/src:$(CURDIR)/tests:$(CURDIR)/lab/tests:$$PYTHONPATH" \
		$(PYTHON) -m pytest -p support.gpu_record -m cuda tests lab/tests $(if $(RECORD),--record "$(RECORD)")

# Hostile matrices, 10^6 unless MATRICES= says otherwise; SEED= repeats a run, ONLY= a target, DEVICE=cuda on a GPU, where nothing
# is installed. Exit code 1 if a promise was broken: each failure is printed as a snippet. See tests/fuzz.
fuzz: $(if $(filter cuda,$(DEVICE)),,.make/test)
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/tests:$$PYTHONPATH" $(if $(filter cuda,$(DEVICE)),$(PYTHON),$(BIN)/python) -m fuzz \
		seed=$(SEED) matrices=$(MATRICES) only="$(ONLY)" device=$(DEVICE) workers=$(WORKERS)

# Damaged records, pickles, pictures and weights, interrupts, faults of ranks: some minutes each; ONLY= takes those whose name
# holds it, COUNT= fewer, SEED= the same again. Exit code 1 if one found something. See lab/tests/attack and docs/trust.md.
attack: .make/test
	PYTHONPATH="$(CURDIR)/lab/tests:$$PYTHONPATH" $(BIN)/python -m attack seed=$(SEED) count=$(COUNT) only="$(ONLY)"

lint: .make/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .make/bench
	$(BIN)/spectralgrad bench --only gradients --write
	$(BIN)/spectralgrad bench --only roots --write
	$(BIN)/spectralgrad bench --write

# Every example, or that of ONLY=; its picture goes to docs/figures/examples.
examples: .make/test
	$(BIN)/python .ci/examples.py $(ONLY)

# What is released, both packages: built, checked, installed into empty environments and tried; then in dist/. Nothing is fetched
# once .make/dist.stamp is there. From a tree with changes only by DIRTY=1. See .ci/dist.py.
dist: .make/dist.stamp
	DIRTY=$(DIRTY) $(BIN)/python .ci/dist.py

# The site, into site/: the Markdown of docs/ and the docstrings. Strict; needs no network once its packages are installed.
docs: .make/docs
	$(BIN)/python docs/_site/make.py

# One stamp for each set of packages. Python 3.11, which CI runs, installs requirements.lock, hashes and all; other versions,
# for which some of its packages have no files, the pins of constraints.txt. torch stands apart: its builds differ by platform.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
OFFLINE = { echo "$(1): its packages are not all installed, see above; that needs a network, once"; exit 1; }
.make/test: pyproject.toml lab/pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
		$(PIP) --no-deps --require-hashes -r requirements.lock && $(PIP) -c constraints.txt torch && \
		$(PIP) --no-deps --no-build-isolation -e . -e ./lab; \
	else \
		$(PIP) -c constraints.txt torch && $(PIP) -c constraints.txt -e ".[test,lint]" -e "./lab[test]"; \
	fi || $(call OFFLINE,$(VENV))
	mkdir -p .make && touch $@

# After a change of constraints.txt or pyproject.toml: the versions installed by them, with the hashes of all their files.
lock:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch hatchling editables
	$(PIP) -c constraints.txt -e ".[test,lint]" -e "./lab[test]"
	$(BIN)/python .ci/lock.py

.make/bench: .make/test
	for peer in kornia xitorch torchspd roma; do $(PIP) -c constraints.txt $$peer || echo "$$peer did not install: its column stays empty"; done
	touch $@

.make/dist.stamp: .make/test
	$(PIP) --no-build-isolation -c constraints.txt -e ".[dist]" || $(call OFFLINE,dist)
	touch $@

.make/docs: .make/test
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "docs: Sphinx needs Python 3.11 or newer: make clean, then make docs PYTHON=python3.11"; exit 1; }
	$(PIP) -c constraints.txt hatchling editables && $(PIP) --no-build-isolation -c constraints.txt -e ".[docs]" || \
		$(call OFFLINE,docs)
	touch $@

clean:
	rm -rf $(VENV) .make demo dist site
