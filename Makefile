# Everything runs in .venv, which is made on first use. `make PYTHON=python3.12 test` takes another interpreter.

.PHONY: help demo test check lint bench conformance size wheel docs fuzz soak clean
help:            ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## */\t/'

find_python = for p in python3.11 python3.12 python3.13 python3.14 python3; do \
    $$p tools/prerequisites.py --python 2>/dev/null && { echo $$p; break; }; done
PYTHON ?= $(or $(shell $(find_python)),python3)
VENV := .venv
# Quoted: the path of the clone may have spaces.
BIN := "$(CURDIR)/$(VENV)/bin"
INSTALL := $(BIN)/pip --disable-pip-version-check install
PIP := $(INSTALL) -q
COMPILE := $(BIN)/python tools/compiling.py
# A list of pyproject.toml, as words for pip.
listed = $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml','rb'))$(1))")
extra = $(call listed,['project']['optional-dependencies']['$(1)'])
requires = $(call listed,['build-system']['requires'])
SECONDS ?= 600
WORKERS ?= 2
NATIVE := $(shell find native -type f) CMakeLists.txt pyproject.toml

demo: $(VENV)/core   ## install, then generate text with the small model in models/
	$(BIN)/ingot generate models/pico-python --prompt "def quicksort(items):" --max-tokens 64

test: $(VENV)/test   ## every test that is not long and needs no GPU, in WORKERS processes
	$(BIN)/python -m pytest -n $(WORKERS)

check: lint          ## linter, types, import rules
	$(BIN)/python -m pytest -q tests/test_imports.py

lint: $(VENV)/test   ## linter and types: check without what the tests have too
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/bench ## all benchmarks with their peers; nothing else should run meanwhile
	$(BIN)/python -m benchmarks all

# What a part needs beside the tests' extras.
NEEDS := $(if $(filter docs all,$(PART)),$(VENV)/docs) $(if $(filter fuzz-python fuzz-onnx all,$(PART)),$(VENV)/fuzz) $(if $(filter fuzz-native all,$(PART)),build/fuzz/done)
conformance: $(VENV)/test $(NEEDS)  ## the long suites, PART=NAME or all, without PART the list, in WORKERS processes; writes docs/conformance.md
	PATH=$(BIN):$$PATH WORKERS=$(WORKERS) $(BIN)/python -m tools.conformance $(PART)

fuzz: $(VENV)/fuzz build/fuzz/done  ## fuzz every parser for SECONDS each
	$(BIN)/python -m fuzz --seconds $(SECONDS)

soak: $(VENV)/test   ## a server under mixed load for SECONDS, a day unless said otherwise; a line a minute, JSON at the end
	$(BIN)/python -m tools.soak --seconds $(if $(filter file,$(origin SECONDS)),86400,$(SECONDS))

wheel: $(VENV)/wheel ## a manylinux wheel in dist/, tried in a fresh environment without a compiler
	@$(BIN)/python tools/prerequisites.py
	rm -rf build/dist build/wheel
	@$(COMPILE) $(BIN)/python -m build --outdir build/dist
	PATH=$(BIN):$$PATH $(BIN)/auditwheel repair -w build/wheel build/dist/*.whl
	$(BIN)/python -m tools.try_wheel build/wheel/*.whl
	mkdir -p dist && cp build/wheel/*.whl dist

size: wheel          ## the wheel, at most 12 MB, and the run-time set: how many distributions, how many bytes, no torch, no huggingface_hub import
	$(BIN)/python -m tools.size build/wheel/*.whl

docs: $(VENV)/docs   ## docs/ and a reference out of the docstrings as a site, build/docs/index.html; no network once installed
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

clean:               ## everything that was built
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@$(PYTHON) tools/prerequisites.py $$($(PYTHON) tools/prebuilt.py >/dev/null 2>&1 && echo --prebuilt)
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# Editable, with the build requirements in .venv, so that a change in native/ rebuilds only what it touches. Where dist/ has a
# wheel of these sources, its native core is taken, and no compiler is needed.
$(VENV)/core: $(VENV)/bin/python $(NATIVE)
	@if wheel=$$($(BIN)/python tools/prebuilt.py); then \
	    echo "installing ingot, with the native core of $$(basename "$$wheel"), and what it runs on (30 MB)"; \
	    $(PIP) $(requires) && $(PIP) --no-build-isolation -C wheel.cmake=false -C wheel.py-api=py3 -e . && \
	    $(BIN)/python tools/prebuilt.py --unpack "$$wheel"; \
	else \
	    $(BIN)/python tools/prerequisites.py && \
	    echo "installing CMake, Ninja and what else building takes (40 MB)" && \
	    $(PIP) $(requires) $(call extra,native) && \
	    echo "installing ingot and what it runs on (30 MB)" && \
	    $(COMPILE) $(INSTALL) -v --no-build-isolation -e .; \
	fi
	@touch $@

# The extras of the ingot that is installed: nothing is built again.
# torch from its CPU index, which saves gigabytes; the extra below takes the default one where that index is out of reach.
# That one, for CUDA, brings a Triton of its own.
$(VENV)/test: $(VENV)/core
	@echo "installing torch, the tests' oracle (200 MB)"
	@$(PIP) 'torch==2.13.0+cpu' 2>/dev/null || \
	    $(PIP) 'torch==2.13.0+cpu' --retries 1 --index-url https://download.pytorch.org/whl/cpu 2>/dev/null || \
	    echo "its build for CPUs is out of reach: the package index has one with CUDA (5 GB once installed)"
	@echo "installing what else the tests take (150 MB)"
	@$(PIP) $(call extra,native) 'ingot[test]'
	@$(BIN)/python -c "from importlib.util import find_spec; exit(not find_spec('triton'))" || { \
	    echo "installing Triton on Linux for x86-64, which interprets kernels for GPUs (190 MB, 640 MB once installed)"; \
	    $(PIP) 'ingot[gpu-test]' || echo "it is out of reach: the tests of these kernels are skipped"; }
	@touch $@

$(VENV)/bench: $(VENV)/test
	@echo "installing what the benchmarks compare with"
	@$(PIP) 'ingot[bench]'
	@touch $@

$(VENV)/fuzz: $(VENV)/test
	@echo "installing atheris"
	@$(PIP) 'ingot[fuzz]'
	@touch $@

$(VENV)/wheel: $(VENV)/bin/python
	@echo "installing what makes a wheel"
	@$(PIP) $(call extra,wheel)
	@touch $@

$(VENV)/docs: $(VENV)/core
	@echo "installing Sphinx and what it takes (30 MB)"
	@$(PIP) 'ingot[docs]'
	@touch $@

# The fuzz driver of the C++ reader, under the address and undefined-behaviour sanitizers.
build/fuzz/done: $(VENV)/core $(NATIVE)
	@$(BIN)/cmake -S . -B build/fuzz -G Ninja --log-level=WARNING -DINGOT_SANITIZE=ON -DPython_EXECUTABLE=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	@$(COMPILE) $(BIN)/ninja -C build/fuzz
	@touch $@
