# Every target sets up its own environment; nothing but python3 (3.11 or newer) is needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SPREAD := -n 2 --dist worksteal
# Where bytecode is not kept, every process that a test starts compiles the package anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow test-all check bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/viticulture demo

# The fast part, in minutes; what stays long (kills, tours, big networks on real tensors) is marked slow.
test: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m slow

test-all: test test-slow

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks.step

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist src/*.egg-info
	find benchmarks docs src tests -name __pycache__ -prune -exec rm -rf {} +
