# Two commands matter, and each does all of its own set-up in .venv: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint types speed clean

demo: $(VENV)/.core
	$(BIN)/nearfar demo

test: $(VENV)/.dev lint types
	$(BIN)/pytest -n 2

check: test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The long measurement behind docs/benchmarks/speed.md.
speed: $(VENV)/.dev
	$(BIN)/python -m nearfar.bench.speed --markdown docs/benchmarks/speed.md --json docs/benchmarks/speed.json

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
