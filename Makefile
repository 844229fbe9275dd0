# `make help` lists the targets. They need a package index and Python 3.11 or newer.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo explore space test test-slow test-faults test-scale test-engines test-browser test-min test-newest lint bench gpu engines multi30k tinystories results

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

# CPU=1: torch without CUDA, which on Linux is several times smaller; give it to the first target that installs
setup: .venv/.installed  ## install the package and its tools into .venv: some minutes; CPU=1 without CUDA

.venv/.installed: pyproject.toml constraints.txt scripts/hf_scratch_launcher.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, e.g. make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "Installing hf_scratch, torch and all tools into .venv: 2.4 GB and some minutes, mostly of downloads."
	@$(if $(CPU),,echo "On Linux, torch brings CUDA along, 5 GB more. Without a GPU, stop this and run: make setup CPU=1")
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		$(if $(CPU),--extra-index-url https://download.pytorch.org/whl/cpu) --editable '.[train,dev,demo,export]'
	touch $@

demo: setup  ## run the published models, then train two small ones in minutes
	$(BIN)/python tests/canary.py
	$(BIN)/python scripts/demo.py

# MODEL: folders of one or more models, by default the published ones. It needs no virtual environment
explore:  ## show in a browser what a model does with a sentence; MODEL=folder
	$(PYTHON) scripts/explorer/serve.py $(if $(MODEL),--model $(MODEL))

space: SPACE := $(or $(OUT),runs/space)
space:  ## gather the explorer and the published models in a folder for any static host; OUT=folder
	@test ! -e $(SPACE) || { echo "$(SPACE) exists: choose another folder, OUT=..."; exit 1; }
	mkdir -p $(SPACE)
	cd scripts/explorer && cp -r *.md index.html style.css models.json *.js model views $(abspath $(SPACE))
	for model in model_cards/scratch-*; do \
		mkdir -p $(SPACE)/models/$${model##*/} && \
		cp -L $$model/*config.json $$model/*tokenizer.json $$model/*.safetensors $(SPACE)/models/$${model##*/} || exit 1; \
	done

test: lint  ## lint, then the test suite: 6 minutes on 2 cores
	$(BIN)/python -m pytest -m 'not slow' --numprocesses auto

test-slow: setup  ## the demo, the READMEs' code, the figures of the cards, the GPU tests on the CPU: 12 minutes
	$(BIN)/python -m pytest -m slow --numprocesses auto --ignore tests/test_faults.py --ignore-glob 'tests/test_scale*.py' \
		--ignore tests/test_streaming.py --ignore tests/test_engines.py --ignore tests/test_browser.py

test-faults: setup  ## kill, stop and resume training runs: 14 minutes, or 8 with KILLS=2 (default: 6)
	$(if $(KILLS),HF_SCRATCH_KILLS=$(KILLS)) $(BIN)/python -m pytest -m slow tests/test_faults.py

test-scale: setup  ## several processes and machines, killed, restarted and resumed: 16 minutes
	$(BIN)/python -m pytest -m slow tests/test_scale*.py tests/test_streaming.py

test-engines: setup  ## the published models in CTranslate2, llama.cpp, onnxruntime and transformers serve: 8 minutes
	$(BIN)/python -m pytest -m slow -rs tests/test_engines.py

test-browser: setup  ## use the explorer in headless Chromium, if it is installed: 4 minutes
	$(BIN)/python -m pytest -m slow tests/test_browser.py

test-min: test  ## the suite on the lowest supported transformers, today the pinned version

# TORCH: a build of torch; TRANSFORMERS: another source, e.g. git+https://github.com/huggingface/transformers
test-newest:  ## the suite on the newest releases of all dependencies, in .venv-newest; TRANSFORMERS=, TORCH=
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check $(or $(TORCH),torch) \
		$(or $(TRANSFORMERS),transformers) --editable '.[train,dev,demo,export]'
	.venv-newest/bin/python -m pytest -m 'not slow' --numprocesses auto

lint: setup  ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

# recomputes the figures of the model cards and results tables, and fails if one differs; WRITE=1 writes them
# commands set how OpenMP's threads wait; benchmarks do not
results: export OMP_WAIT_POLICY ?= PASSIVE
results: setup  ## recompute the figures of the cards and results tables; WRITE=1 writes them
	$(BIN)/python scripts/publish/results.py $(if $(MULTI30K),--multi30k $(MULTI30K)) \
		$(if $(TINYSTORIES),--tinystories $(TINYSTORIES)) $(if $(WRITE),--write)

# DATA: Multi30k, by default synthetic sentences; ONLY: some rows; WRITE=1 keeps the figures and writes the tables
bench: setup  ## measure speed and memory against the models of transformers; WRITE=1 keeps the figures
	$(BIN)/python scripts/benchmark/benchmark.py --output_dir $(or $(OUT),runs/benchmark) $(if $(DATA),--data $(DATA)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write true)

# DATA: Multi30k; WRITE=1 keeps the figures and writes the table
engines: setup  ## run the published models in other engines: equal tokens, speed, size; WRITE=1 keeps the figures
	$(BIN)/python scripts/benchmark/engines.py --data $(or $(DATA),data/multi30k) $(if $(OUT),--output_dir $(OUT)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write true)

# needs no virtual environment and no network: torch, transformers, accelerate and pytest of the machine's own Python
# WHEELS: a folder of wheels that are installed first, for example of a newer transformers
gpu: REPORT := $(or $(OUT),runs/gpu)
gpu:  ## on a machine with a GPU, run the benchmark and then the tests that need one, in 9 minutes; OUT=folder
	$(if $(WHEELS),$(PYTHON) -m pip install --quiet --no-index --no-deps $(WHEELS)/*.whl)
	status=0; \
	timeout -s INT 270 $(PYTHON) scripts/benchmark/gpu.py --output_dir $(REPORT) --max_minutes 3 || status=$$?; \
	timeout -s INT 270 $(PYTHON) -m pytest -m gpu -rs tests/test_gpu.py tests/test_attention.py --junitxml $(REPORT)/tests.xml || status=$$?; \
	exit $$status

# DATA: a folder or a Hub id; OUT: a folder for the runs; FLAGS: options of all trainings, as "--bf16 true --use_cpu true"
multi30k: setup  ## make a translator like the published one: 12 stages, 14 hours; run it again to resume; DATA=
	PYTHON=$(BIN)/python scripts/recipes/multi30k.sh $(or $(DATA),bentrevett/multi30k) $(or $(OUT),runs) $(FLAGS)

tinystories: setup  ## make a GPT like the published one: 8 stages, 10 hours; run it again to resume; DATA=
	PYTHON=$(BIN)/python scripts/recipes/tinystories.sh $(or $(DATA),roneneldan/TinyStories) $(or $(OUT),runs) $(FLAGS)
