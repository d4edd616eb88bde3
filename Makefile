# `make demo` and `make test` do all the set-up: they need Python >= 3.11 and the package index, nothing else.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BIN = $(VENV)/bin

.DEFAULT_GOAL = help
.PHONY: help demo test lint format types clean

help:
	@echo "make demo     optimize real networks and check them against ONNX Runtime"
	@echo "make test     install and run the whole test suite (PYTEST_ARGS=... is passed on)"
	@echo "make lint     ruff: rules and formatting"
	@echo "make format   let ruff format the code"
	@echo "make types    mypy: strict on graph/ and passes/"
	@echo "make clean    remove the environment, caches and build output"

demo: $(VENV)/.installed-parity
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests -n auto $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# One stamp per extra: `make test` after `make demo` adds what is missing, and a second run installs nothing.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable ".[$*]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed; set PYTHON=...')"
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache tests/.pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.dev/*' -type d -prune -exec rm -rf {} +
