# make demo, make test, make lint: each sets up its own .venv first. Needs Python 3.10 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-all test-gpu fuzz lint bench clean
.DELETE_ON_ERROR:

demo: .make/test
	$(BIN)/spectralgrad demo

test: .make/test lint
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-all: .make/test lint
	$(BIN)/python -m pytest -n $(WORKERS)

# With the Python it is given, and nothing installed: a machine with a GPU may be offline. RECORD=FILE keeps the record.
test-gpu:
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/lab/src:$(CURDIR)/tests:$(CURDIR)/lab/tests:$$PYTHONPATH" \
		$(PYTHON) -m pytest -p support.gpu_record -m cuda tests lab/tests $(if $(RECORD),--record "$(RECORD)")

# Hostile matrices, 10^6 unless MATRICES= says otherwise; SEED= repeats a run, ONLY= a target, DEVICE=cuda on a GPU, where nothing
# is installed. Exit code 1 if a promise was broken: each failure is printed as a snippet. See tests/fuzz.
fuzz: $(if $(filter cuda,$(DEVICE)),,.make/test)
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/tests:$$PYTHONPATH" $(if $(filter cuda,$(DEVICE)),$(PYTHON),$(BIN)/python) -m fuzz \
		seed=$(SEED) matrices=$(MATRICES) only="$(ONLY)" device=$(DEVICE) workers=$(WORKERS)

lint: .make/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .make/bench
	$(BIN)/spectralgrad bench --only gradients --write
	$(BIN)/spectralgrad bench --only roots --write
	$(BIN)/spectralgrad bench --write

# One stamp for each set of packages; torch comes first and pinned, or a later package would fetch its CUDA build.
.make/test: pyproject.toml lab/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,lint]" -e "./lab[test]"
	mkdir -p .make && touch $@

.make/bench: .make/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt kornia xitorch torchspd || \
		echo "some peers did not install: their columns stay empty"
	touch $@

clean:
	rm -rf $(VENV) .make demo
