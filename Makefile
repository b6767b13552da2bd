# Two commands for a newcomer: `make demo` and `make test`; each sets up what it needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lab bench clean docs
.DEFAULT_GOAL := setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,test]'
	touch $@

demo: $(READY)
	@$(BIN)/python -m mimokit_widgets.notebooks.execute notebooks/01_first_light.ipynb --output build/demo

# The tests start hundreds of processes: each would compile all that it imports.
test: export PYTHONDONTWRITEBYTECODE =
# Two workers on two cores: threads of torch would wait for each other.
test: export OMP_NUM_THREADS = 1

test: $(READY)
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/python -m pytest --numprocesses 2

lab: $(READY)
	$(BIN)/jupyter lab --notebook-dir notebooks

docs: $(READY)
	$(BIN)/python -m mimokit.config_files.reference > docs/config.md

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
