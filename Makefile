# Two commands: `make quickstart` and `make test`. Each makes its own virtual environment and needs Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# The CPU build of torch suffices; where pip's index offers only the CUDA build, that one is taken (several GB).
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MALLOC_ARENA_MAX := 1

.PHONY: quickstart test lint coldstart test-vllm clean

quickstart: $(VENV)/.installed
	$(BIN)/swe-rl run --config quickstart

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory lint
	$(BIN)/pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Remakes the checkpoint that the quickstart begins with.
coldstart: $(VENV)/.installed
	$(BIN)/swe-rl coldstart --config quickstart --out build/tiny-repair

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e ".[service,train]"
	sandboxes/base/host-tools.sh $(BIN)
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet -e ".[service,train,dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm build runs
