.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
TRAINERS := .venv-trainers
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help demo test test-trainers lint bench bench-smoke clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/bin/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing ktae into $(VENV) (torch, pyarrow, typer, rich, tokenizers)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing ktae with its test tools into $(VENV)"
	@$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed ## Install, score the sample rollouts, show the highlighted tokens
	@mkdir -p demo
	$(BIN)/ktae score sample_data/rollouts.parquet -o demo/rollouts.scored.parquet --force
	$(BIN)/ktae export demo/rollouts.scored.parquet --to jsonl -o demo/rollouts.train.jsonl --force
	$(BIN)/ktae highlight demo/rollouts.scored.parquet --tokenizer sample_data/tokenizer.json
	@echo
	@echo "scored rollouts   demo/rollouts.scored.parquet"
	@echo "token table       demo/rollouts.scored.tokens.parquet"
	@echo "for a trainer     demo/rollouts.train.jsonl"

test: $(VENV)/.installed-test ## Install the test tools and run the whole suite
	$(BIN)/python -m pytest -n auto

$(TRAINERS)/.installed: pyproject.toml constraints.txt
	@echo "creating $(TRAINERS) and installing ktae, verl, TRL and tinker into it (minutes)"
	@$(PYTHON) -m venv $(TRAINERS)
	@$(TRAINERS)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt torch -e '.[test,trainers]'
	@touch $@

test-trainers: $(TRAINERS)/.installed ## Install the trainers as well and run the tests against their own functions
	$(TRAINERS)/bin/python -c "import tinker, trl, verl"
	$(TRAINERS)/bin/python -m pytest -n auto tests/trainers

lint: $(VENV)/.installed-test ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.installed-test ## Measure speed and memory against baselines (minutes)
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/estimators.py
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/evidence.py
	$(BIN)/python benchmarks/online.py
	$(BIN)/python benchmarks/gate.py

bench-smoke: $(VENV)/.installed-test ## Run the benchmarks once on little data: they work and their results agree
	$(BIN)/python benchmarks/kernel.py --quick
	$(BIN)/python benchmarks/estimators.py --quick
	$(BIN)/python benchmarks/end_to_end.py --quick
	$(BIN)/python benchmarks/reading.py --quick
	$(BIN)/python benchmarks/memory.py --quick
	$(BIN)/python benchmarks/startup.py --quick
	$(BIN)/python benchmarks/verify.py --quick
	$(BIN)/python benchmarks/evidence.py --quick
	$(BIN)/python benchmarks/online.py --quick
	$(BIN)/python benchmarks/gate.py --quick

clean: ## Remove what make created
	rm -rf $(VENV) $(TRAINERS) demo build *.egg-info .pytest_cache .ruff_cache .hypothesis
