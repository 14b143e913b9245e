# Two commands matter, and each does all of its own set-up in .venv: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint types coverage docs wheel browser speed clean

demo: $(VENV)/.core
	$(BIN)/nearfar demo

test: $(VENV)/.dev lint types
	$(BIN)/pytest -n 2

check: test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

coverage: $(VENV)/.dev
	$(BIN)/pytest -n 2 --cov=nearfar --cov-report=term-missing:skip-covered

# The site, into site/. A broken link, or a page that is not in the nav of mkdocs.yml, is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# sdist and wheel into dist/; the wheel is installed in an empty environment and started there.
wheel: $(VENV)/.dev
	rm -rf dist build/wheel
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	build/wheel/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build && wheel/bin/nearfar --version && wheel/bin/nearfar data sketches

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
	$(BIN)/python -m benchmarks.speed --markdown docs/benchmarks/speed.md --json docs/benchmarks/speed.json

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers,web,onnx,plots,pretrained]"
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build site
