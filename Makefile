# Two commands matter, and each does all of its own set-up in .venv: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint types browser speed clean

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

# What the tests of the page drive. Where packages may not be installed those tests are skipped, and say so.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
		echo "chromium and chromedriver are there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium chromium-driver || echo "chromium could not be installed: the tests of the page will be skipped"; \
	else \
		echo "no right to install chromium and chromium-driver: the tests of the page will be skipped"; \
	fi

# The long measurement behind docs/benchmarks/speed.md.
speed: $(VENV)/.dev
	$(BIN)/python -m nearfar.bench.speed --markdown docs/benchmarks/speed.md --json docs/benchmarks/speed.json

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers,web,onnx,plots,pretrained]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
