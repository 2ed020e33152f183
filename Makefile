# Set-up, tests and lints. `make demo` and `make test` set up everything they need in $(VENV), from nothing.
#
#   make demo    install, train the example classifier, run it on emulated Blackwell kernels
#   make test    install, run the tests that need no GPU: of the longest sweeps a sample
#   make check-fast  install, run the fast tier of the tests: under a minute on two cores
#   make check-python  install, run the tier of another Python: the fast one, and a sample of what leans on Python and JAX
#   make test-long   install, run the tests that need no GPU, the whole of every sweep
#   make build   (re)build an editable install, for development
#   make lint    ruff, mypy, clang-format
#   make format  let ruff and clang-format rewrite the sources
#   make docs    the documentation as a site, build/site/index.html; warnings are errors
#   make cross   compile the extension for aarch64
#   make sanitize  the emulator's tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make test PACKAGE=dist/NAME.whl   test a wheel instead of what the sources build; other targets likewise
#   make check   lint, docs, cross, test: all that CI runs

PYTHON ?= python3
VENV ?= .venv
PACKAGE ?= .
# What is installed with it: test has what the tests need; dev all tools.
EXTRAS ?= dev
PYTEST_FLAGS ?= -n auto --maxprocesses 8 --dist worksteal
# Files and folders of `make test`; empty: all.
TESTS ?=
BIN := $(VENV)/bin
# Set, it would have each process that imports the tests compile them again.
export PYTHONDONTWRITEBYTECODE :=
# pip compiles whatever it installs: two thirds of an install's CPU time, for modules that are mostly never imported.
export PIP_COMPILE := 0

SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake cuda jaxbw -type f \
  -not -path 'jaxbw/kernels/*' -not -path '*/__pycache__/*' -not -name '*.so')
CPP_SOURCES := $(shell find cuda -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu')

.PHONY: demo test test-long check-fast check-python build lint format docs cross sanitize check install clean

demo: install
	mkdir -p build
	$(BIN)/python examples/digits.py --picture build/digits.png

# PYTHONSAFEPATH: what the tests start must not import this folder in place of the installed package.
test: $(VENV)/gpu-compilers $(VENV)/independent-compilers
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) $(TESTS)

test-long: $(VENV)/gpu-compilers $(VENV)/independent-compilers
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not gpu and not gpus" --hypothesis-profile=long

check-fast: install
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) --fast

# XLA optimizes as it does for a user, which tests/conftest.py saves elsewhere.
check-python: $(VENV)/gpu-compilers
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 PYTHONSAFEPATH=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) --other-python

check: lint docs cross test

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP_SOURCES)

# Sphinx reads the pages where they lie, and the docstrings of the installed package.
docs: install
	PYTHONSAFEPATH=1 $(BIN)/python -m sphinx -W --keep-going -q -c docs -d build/site-cache . build/site
	cp build/site/README.html build/site/index.html

# Shows that the extension compiles and links for aarch64 without a warning; not that it runs. A precompiled header loses
# the pragmas by which libstdc++ silences false warnings of g++ 12; without it larger units take less time.
# Python's headers are this machine's, for which CMake 4.4 does not look: they are the same on both, as both are 64-bit Linux.
cross: install
	@command -v aarch64-linux-gnu-g++ > /dev/null || { echo "make cross needs Debian's g++-aarch64-linux-gnu"; exit 1; }
	$(BIN)/cmake -S . -B build/aarch64 -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DPython_INCLUDE_DIR=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))") \
	  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
	  -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 \
	  -DJAXBW_KERNELS=OFF -DJAXBW_WERROR=ON
	$(BIN)/cmake --build build/aarch64
	readelf --file-header build/aarch64/_native.*.so | grep AArch64

# A build of the extension alone, in an environment of its own that finds everything but jaxbw in $(VENV).
# The kernels are the installed ones. Preloaded is what must be there before Python: a sanitizer's run-time, and the
# library whose __cxa_throw it wraps. Python itself leaks by design.
SANITIZED := build/sanitize
SANITIZED_TESTS ?= tests/emulator
sanitize: install
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DCMAKE_BUILD_TYPE=RelWithDebInfo -DJAXBW_KERNELS=OFF \
	  -DJAXBW_SANITIZE=address,undefined
	$(BIN)/cmake --build $(SANITIZED)
	$(BIN)/python -m venv --without-pip $(SANITIZED)/venv
	site=$$($(SANITIZED)/venv/bin/python -c "import site; print(site.getsitepackages()[0])"); \
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$site/parent.pth; \
	kernels=$$(PYTHONSAFEPATH=1 $(BIN)/python -c "import jaxbw; print(jaxbw.__path__[0])")/kernels; \
	rm -rf $$site/jaxbw; cp -r jaxbw $$site; rm -f $$site/jaxbw/*.so; \
	cp -r $$kernels $$site/jaxbw; cp $(SANITIZED)/_native.*.so $$site/jaxbw
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONSAFEPATH=1 \
	  $(SANITIZED)/venv/bin/python -m pytest $(PYTEST_FLAGS) $(SANITIZED_TESTS)

# An editable install: Python sources are used in place, compiled files appear beside them. The tools come as the
# package's dependencies, by an install of its Python sources alone: without isolation, for which pip would install
# jaxlib twice. (pytest is there once that install is done.)
build: $(BIN)/python
	$(BIN)/python -c "import nanobind, pytest, scikit_build_core" 2> /dev/null || { \
	  $(BIN)/pip install --quiet nanobind scikit-build-core && \
	  $(BIN)/pip install --quiet --no-build-isolation --config-settings=wheel.cmake=false \
	    --config-settings=wheel.py-api=py3 '.[dev]'; }
	$(BIN)/pip install --no-build-isolation --no-deps --editable .
	touch $(VENV)/editable $(VENV)/installed

install: $(VENV)/installed

$(VENV)/installed: $(SOURCES) | $(BIN)/python
	@echo "Installing jaxbw and its tools into $(VENV): a minute or three the first time."
	if [ -e $(VENV)/editable ]; then $(MAKE) build; else $(BIN)/pip install --quiet '$(PACKAGE)[$(EXTRAS)]'; fi
	touch $@

$(VENV)/%-compilers: tools/%_compilers.py | install
	$(BIN)/python $<
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf build dist jaxbw/kernels jaxbw/*.so
