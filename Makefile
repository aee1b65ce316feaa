# All a new user needs is Python 3.11 or newer (with venv) and a C++ compiler:
#   make demo    build two models, run one from C++, time one beside onnxruntime
#   make test    lint and the tests
# The first run makes the virtual environment .venv and installs the package into it; later runs
# start at once, and again after a change of pyproject.toml or of the C++ sources.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
MODELS := build/models
CXXFLAGS ?= -O2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PY_SOURCES := $(shell find dlc -name '*.py')
CPP_SOURCES := CMakeLists.txt dlc/__init__.py $(shell find dlc/runtime/cpp -type f)
# Some tests call cmake, which the virtual environment has.
IN_VENV := PATH="$(abspath $(BIN)):$$PATH"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-all test-fast test-slow bench records test-xgboost gpu fuzz fuzz-import mutants operators lint check sanitize format clean

help:
	@echo "make demo        build models, run one from C++, time one beside onnxruntime"
	@echo "make test        lint, and the tests without those of large models and of every case there is"
	@echo "make test-all    lint, and those of every case as well: what CI runs"
	@echo "make test-fast   the quick tour: under a minute on two cores"
	@echo "make test-slow   the slow tests, also of large models, and of those in MODELS=folder"
	@echo "make fuzz        judge random models: COUNT=1000 SEED=0 BUDGET=10m; goes on where it stopped"
	@echo "make fuzz-import import 100,000 damaged models"
	@echo "make mutants     put 60 faults into the compiler, one at a time, and count those found"
	@echo "make operators   write docs/operators.md and docs/onnx-tests.md anew"
	@echo "make bench       time every model on dlc and its peers, 1 and all threads: build/benchmarks"
	@echo "make records     search schedules for this machine that come with dlc: BUDGET=8m, MODELS=folder"
	@echo "make test-xgboost  the tests of the tuner with the oldest XGBoost that is supported"
	@echo "make gpu         check and time all on this machine's GPU, and the models of MODELS=folder; repeat"
	@echo "make lint        format, lint, types, import contracts"
	@echo "make sanitize    the C++ tests under ASan, UBSan and TSan"
	@echo "make format      let ruff format the sources"
	@echo "make clean       remove what was built; .venv too"

install: $(VENV)/.installed

$(VENV)/.created:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed')"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The package is built without isolation, so its build tools must be there before it.
$(VENV)/.tools: pyproject.toml $(VENV)/.created
	$(BIN)/pip install -q cmake ninja "pybind11>=3.0" "scikit-build-core>=0.11"
	@touch $@

$(VENV)/.installed: $(CPP_SOURCES) $(VENV)/.tools
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	@touch $@

# A worker that dies ends the run as a failure: with files kept together, xdist waits forever for
# what the dead one had left.
PYTEST := pytest -q -n auto --dist loadfile --max-worker-restart=0

test: lint
	$(IN_VENV) $(PYTEST) -m "not exhaustive"

test-all: lint
	$(IN_VENV) $(PYTEST)

test-fast: $(VENV)/.installed
	$(IN_VENV) $(PYTEST) -m fast

test-slow: $(VENV)/.installed
	$(IN_VENV) $(PYTEST) -m slow --models $(MODELS)

fuzz: $(VENV)/.installed
	$(BIN)/python -m dlc.testing --seed $(or $(SEED),0) --count $(or $(COUNT),1000) \
	    --budget "$(BUDGET)" --folder build/fuzz

fuzz-import: $(VENV)/.installed
	$(IN_VENV) python -m tests.frontend.fuzz_import --count $(or $(COUNT),100000) \
	    --seed $(or $(SEED),0)

mutants: $(VENV)/.installed
	$(IN_VENV) python -m tests.mutants.run

operators: $(VENV)/.installed
	$(IN_VENV) python -m tests.frontend.operator_table
	$(IN_VENV) python -m tests.frontend.node_suite_page

bench: $(VENV)/.installed
	$(BIN)/pip install -q -e ".[bench]" --no-build-isolation
	$(BIN)/python -m benchmarks.cpu --growth

# The records and the cost model that come with dlc, made on this machine for its family of CPUs.
records: $(VENV)/.installed
	$(BIN)/pip install -q -e ".[bench]" --no-build-isolation
	$(BIN)/python -m benchmarks.tuning.ship $(wildcard $(MODELS)/*.onnx) --budget $(or $(BUDGET),8m)

# The tuner with the oldest XGBoost of both distributions.
test-xgboost: $(VENV)/.installed
	for old in xgboost-cpu==2.1.1 xgboost==1.7.6; do \
	    $(BIN)/pip install -q --no-deps --target build/$$old $$old && \
	    PYTHONPATH=build/$$old $(BIN)/pytest -q tests/autotune tests/cli/test_tune.py || exit 1; done

gpu: $(VENV)/.installed
	$(BIN)/python -m benchmarks.gpu_session $(wildcard $(MODELS)/*.onnx)

lint: $(VENV)/.installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

check: test

sanitize: $(VENV)/.installed
	$(IN_VENV) sh dlc/runtime/cpp/tests/sanitize.sh address thread

format: $(VENV)/.installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix --select I

demo: $(DEMO)/digits.so $(DEMO)/classify $(DEMO)/resnet18.so
	@echo; echo "--- handwritten digits, read by a C++ program"
	$(DEMO)/classify $(DEMO)/digits.so examples/digits/digits_test.bin
	@echo; echo "--- ResNet-18, beside onnxruntime"
	$(BIN)/python examples/latency.py $(DEMO)/resnet18.onnx $(DEMO)/resnet18.so

$(DEMO)/digits.so: examples/digits/digits.onnx $(VENV)/.installed $(PY_SOURCES)
	@mkdir -p $(@D)
	$(BIN)/dlc build $< --target native -o $@

$(DEMO)/classify: examples/cpp/classify.cpp $(VENV)/.installed
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(CXXFLAGS) $< -o $@ -I "$$($(BIN)/python -m dlc.runtime --include-dir)" \
	    "$$($(BIN)/python -m dlc.runtime --library)" -pthread -ldl

$(DEMO)/resnet18.onnx: examples/resnet18.py $(VENV)/.installed
	$(BIN)/python $< $@

$(DEMO)/resnet18.so: $(DEMO)/resnet18.onnx $(PY_SOURCES)
	$(BIN)/dlc build $< --target native -o $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
