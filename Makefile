# The two main commands are `make demo` and `make test`. Each sets up its own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Each worker starts with half of the tests, in order, so that most fixtures are computed by one worker only.
PARALLEL := -n 2 --dist worksteal

# The tests start many processes. Without bytecode files, each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint types coverage docs wheel browser speed clean

demo: $(VENV)/.core
	$(BIN)/nearfar demo

test: $(VENV)/.dev lint types
	$(BIN)/pytest $(PARALLEL)

check: test

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

coverage: $(VENV)/.dev
	$(BIN)/pytest $(PARALLEL) --cov=nearfar --cov-report=term-missing:skip-covered

# Build the site into site/. A broken link, or a page that is missing from the nav of mkdocs.yml, is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build sdist and wheel into dist/, then install the wheel in an empty environment and run it there.
wheel: $(VENV)/.dev
	rm -rf dist build/wheel
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	build/wheel/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build && wheel/bin/nearfar --version && wheel/bin/nearfar data sketches

# Install the browser that the tests of the web page use. Without it, these tests are skipped with a message.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
		echo "chromium and chromedriver are installed"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium chromium-driver || echo "chromium could not be installed: the tests of the web page will be skipped"; \
	else \
		echo "chromium and chromium-driver need root to install: the tests of the web page will be skipped"; \
	fi

# Repeat the measurements of docs/benchmarks/speed.md. This takes a long time.
speed: $(VENV)/.dev
	$(BIN)/python -m benchmarks.speed --markdown docs/benchmarks/speed.md --json docs/benchmarks/speed.json

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,peers,web,onnx,pretrained,hub,text,data,sklearn,postgres,qdrant,lancedb,sqlite]"
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build site
