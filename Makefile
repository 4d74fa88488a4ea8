# Everything runs in .venv, which is made on first use. `make PYTHON=python3.12 test` takes another interpreter.

.PHONY: help demo test check bench conformance size wheel fuzz clean
help:            ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## */\t/'

find_python = for p in python3.11 python3.12 python3.13 python3; do \
    $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { echo $$p; break; }; done
PYTHON ?= $(shell $(find_python))
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install -q
SECONDS ?= 600
NATIVE := $(shell find native -type f) CMakeLists.txt pyproject.toml

demo: $(VENV)/core   ## install, then generate text with the small model in models/
	$(BIN)/ingot generate models/pico-python --prompt "def quicksort(items):" --max-tokens 64

test: $(VENV)/test   ## every test that needs no GPU
	$(BIN)/python -m pytest

check: $(VENV)/test  ## linter, types, import rules
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

bench: $(VENV)/bench ## all benchmarks with their peers; nothing else should run meanwhile
	$(BIN)/python -m benchmarks all

conformance: $(VENV)/fuzz build/fuzz/done  ## the long suites; writes docs/conformance.md
	$(BIN)/python -m tools.conformance --seconds $(SECONDS)

fuzz: $(VENV)/fuzz build/fuzz/done  ## fuzz every parser for SECONDS each
	$(BIN)/python -m fuzz --seconds $(SECONDS)

wheel: $(VENV)/wheel ## a manylinux wheel in dist/, tried in a fresh environment without a compiler
	rm -rf build/dist dist && $(BIN)/python -m build -q --outdir build/dist
	PATH=$(BIN):$$PATH $(BIN)/auditwheel repair -w dist build/dist/*.whl
	$(BIN)/python -m tools.try_wheel dist/*.whl

size: wheel          ## the run-time set: how many distributions, how many bytes, no torch, no huggingface_hub import
	$(BIN)/python -m tools.size dist/*.whl

clean:               ## everything that was built
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "ingot needs Python 3.11, 3.12 or 3.13 on PATH"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Editable, with the build requirements in .venv, so that a change in native/ rebuilds only what it touches.
$(VENV)/core: $(VENV)/bin/python $(NATIVE)
	$(PIP) ninja $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml','rb'))['build-system']['requires'])")
	$(PIP) --no-build-isolation -e .
	@touch $@

# torch from its CPU index, which saves gigabytes; the extra below takes the default one where that index is out of reach.
$(VENV)/test: $(VENV)/core
	$(PIP) 'torch==2.13.0+cpu' 2>/dev/null || $(PIP) 'torch==2.13.0+cpu' --index-url https://download.pytorch.org/whl/cpu || true
	$(PIP) --no-build-isolation -e '.[test]'
	@touch $@

$(VENV)/bench: $(VENV)/test
	$(PIP) --no-build-isolation -e '.[bench]'
	@touch $@

$(VENV)/fuzz: $(VENV)/test
	$(PIP) --no-build-isolation -e '.[fuzz]'
	@touch $@

$(VENV)/wheel: $(VENV)/bin/python
	$(PIP) $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml','rb'))['project']['optional-dependencies']['wheel'])")
	@touch $@

# The fuzz driver of the C++ reader, under the address and undefined-behaviour sanitizers.
build/fuzz/done: $(VENV)/core $(NATIVE)
	cmake -S . -B build/fuzz -G Ninja -DINGOT_SANITIZE=ON -DPython_EXECUTABLE=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	$(BIN)/ninja -C build/fuzz
	@touch $@
