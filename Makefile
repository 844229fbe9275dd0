# `make demo` and `make test` need Python 3.11 or newer and a package index, nothing else.
PYTHON ?= python3
BIN := .venv/bin

# for `make multi30k` and `make tinystories`: a Hub id or a folder, and a limit in minutes (none: to the recipe's end)
MINUTES ?=
OUT ?=
LIMIT = $(if $(MINUTES),--max_minutes $(MINUTES))
MULTI30K_DATA = --dataset_name $(or $(DATA),bentrevett/multi30k)
MULTI30K_OUT = $(or $(OUT),runs/multi30k_tiny)
TINYSTORIES_DATA = --dataset_name $(or $(DATA),roneneldan/TinyStories)
TINYSTORIES_OUT = $(or $(OUT),runs/tinystories_small)

.PHONY: setup demo test test-slow test-min lint bench multi30k tinystories results

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, e.g. make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,demo,export]'
	touch $@

demo: setup
	$(BIN)/python scripts/demo.py

test: lint
	$(BIN)/python -m pytest -m 'not slow'

test-slow: setup
	$(BIN)/python -m pytest -m slow

# the lowest transformers that pyproject.toml allows, with the newest of all else that it goes with
LOWEST := $(shell sed -n 's/.*"transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)

test-min: .venv-min/.installed
	.venv-min/bin/python -m pytest -m 'not slow'

.venv-min/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-min
	grep -v -e '^transformers==' -e '^huggingface_hub==' constraints.txt > .venv-min/constraints.txt
	.venv-min/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-min/constraints.txt \
		'transformers~=$(LOWEST).0' --editable '.[dev,demo,export]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# every figure of the cards in model_cards again; WRITE=1 writes the cards instead
results: setup
	$(BIN)/python scripts/results.py $(if $(MULTI30K),--multi30k $(MULTI30K)) \
		$(if $(TINYSTORIES),--tinystories $(TINYSTORIES)) $(if $(WRITE),--write)

# without DATA: synthetic sentences about as long as Multi30k's
bench: setup
	$(BIN)/python scripts/benchmark.py --output_dir $(or $(OUT),runs/benchmark) $(if $(DATA),--data $(DATA)) \
		$(if $(ONLY),--only $(ONLY))

# the published models' two trainings each; with MINUTES the first alone
multi30k: setup
	$(BIN)/python scripts/train_translation.py scripts/recipes/multi30k_tiny.yaml $(MULTI30K_DATA) \
		--output_dir $(MULTI30K_OUT) $(LIMIT)
ifndef MINUTES
	$(BIN)/python scripts/train_translation.py scripts/recipes/multi30k_tiny_rdrop.yaml $(MULTI30K_DATA) \
		--model_name_or_path $(MULTI30K_OUT) --output_dir $(MULTI30K_OUT)_rdrop
endif

tinystories: setup
	$(BIN)/python scripts/train_language_model.py scripts/recipes/tinystories_small.yaml $(TINYSTORIES_DATA) \
		--output_dir $(TINYSTORIES_OUT) $(LIMIT)
ifndef MINUTES
	$(BIN)/python scripts/train_language_model.py scripts/recipes/tinystories_small_rdrop.yaml $(TINYSTORIES_DATA) \
		--model_name_or_path $(TINYSTORIES_OUT) --output_dir $(TINYSTORIES_OUT)_rdrop
endif
