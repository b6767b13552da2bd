# Two commands for a newcomer: `make demo` and `make lab`; each sets up what it needs.
# `PYTHON=python3.12 make …` chooses a Python; make/pythons.sh says which is taken otherwise.
export PYTHON
ifneq ($(MAKECMDGOALS),clean)
VERSION := $(shell PYTHON='$(PYTHON)' sh make/pythons.sh choose)
ifneq ($(filter error:,$(VERSION)),)
$(error $(wordlist 2,$(words $(VERSION)),$(VERSION)))
endif
endif
# One environment per Python; .venv is a link to the one that was used last.
VENV := .venv-$(VERSION)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo check test test-all test-versions lab bench bench-against clean docs movie
.DEFAULT_GOAL := setup

setup: $(READY)
	@sh make/link.sh $(VENV)

.venv-%/.ready: pyproject.toml constraints/shared.txt constraints/py311.txt constraints/py312.txt constraints/py313.txt
	"$$(sh make/pythons.sh path $*)" -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints/py$(subst .,,$*).txt --editable '.[run,lab,test]'
	touch $@

demo: setup
	@$(BIN)/python -m make.notebooks.execute notebooks/01_first_light.ipynb --output build/demo

# The tests start hundreds of processes: each would compile all that it imports.
check test test-all test-versions: export PYTHONDONTWRITEBYTECODE =
# Two workers on two cores: threads of torch would wait for each other.
check test test-all test-versions: export OMP_NUM_THREADS = 1

# While you work: what has changed since main, without engines; see tests/changed.py.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@sh make/types.sh $(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python -m tests.budget_of_lines > /dev/null
	$(BIN)/python -m tests.changed

# What is claimed, and all rooms without engines: tests/circles.py.
test: setup
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@sh make/types.sh $(BIN)/mypy
	$(BIN)/python -m pytest --suite --numprocesses 2

# Everything, for a night: further layouts, all views and notebooks, other kernels and versions. Call
# it again after it was cut off, or after a change: what failed comes first.
test-all: setup
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest --go-on --numprocesses 2
	$(BIN)/python -m tests.other_kernels tests/test_claims.py
	MORE=1 $(MAKE) --no-print-directory test-versions

# What depends on the versions of Python and Megatron-Core, on the Pythons that `make test` leaves.
OTHERS = $(filter-out $(VERSION),$(shell PYTHON='$(PYTHON)' sh make/pythons.sh there))
test-versions:
	@$(if $(OTHERS),$(MAKE) --no-print-directory $(OTHERS:%=.venv-%/.ready))
	@sh make/test_versions.sh $(VERSION)

# Its root is this folder, so that configs and results can be reached.
lab: setup
	$(BIN)/jupyter lab --notebook-dir . --LabApp.default_url=/lab/tree/notebooks/start.ipynb

# The pages, in build/site: see mkdocs.yml. A notebook is executed again when it has changed.
DOCS_READY := $(VENV)/.docs-ready
TUTORIALS := $(patsubst notebooks/%,build/tutorials/%,$(wildcard notebooks/*.ipynb))

docs: setup $(DOCS_READY) $(TUTORIALS)
	$(BIN)/python -m tests.pages.config_reference > docs/config.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The pages: build/site/index.html"

$(DOCS_READY): $(READY) constraints/docs.txt
	$(BIN)/python -m pip install --quiet --constraint constraints/py$(subst .,,$(VERSION)).txt \
	    --constraint constraints/docs.txt --editable '.[run,lab,docs]'
	touch $@

.DELETE_ON_ERROR:
build/tutorials/%.ipynb: notebooks/%.ipynb | $(READY)
	$(BIN)/python -m make.notebooks.execute $< --output $(@D)

# The moving pictures of the planner and the stepper, which are committed.
movie: setup
	$(BIN)/python -m tests.browser.movie docs/planner.webp
	$(BIN)/python -m tests.browser.stepper_movie docs/stepper.webp
	$(BIN)/python -m tests.browser.stepper_movie docs/stepper.webp

bench: setup
	$(BIN)/python -m benchmarks

# What this tree costs as ratios of a tag: `make bench-against TAG=v0.1.0`.
bench-against: setup
	@$(BIN)/python -m benchmarks.against $(TAG)

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
