# Two commands for a newcomer: `make demo` runs the main job, `make test` proves the installation.
# Both start from a fresh clone with only python3 (>= 3.10) and make; a second call installs nothing.

# Without an NVIDIA card, torch comes without the CUDA packages (0.2 instead of 5 GB) when its index for this
# can be reached; `make CPU= demo` installs them all the same, `make CPU=1 demo` does not where there is a card.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPU ?= $(if $(shell command -v nvidia-smi),,1)
TORCH_CPU := https://download.pytorch.org/whl/cpu
REACHED = $(PYTHON) -c 'import urllib.request as web; web.urlopen("$(TORCH_CPU)/torch/", timeout=9)' 2> /dev/null
INDEX = $(if $(CPU),$(shell $(REACHED) && echo --extra-index-url $(TORCH_CPU)))
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt $(INDEX)

PYTHONS ?= $(shell for n in 10 11 12 13; do command -v python3.$$n; done)

.PHONY: demo test lint docs notebooks hashes wheels clean

demo: $(VENV)/.installed-run
	$(BIN)/scenemem demo

test: $(VENV)/.installed-dev lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --cov --cov-report=term --cov-fail-under=90

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

# run again and stored with what they show; 'make test' compares
notebooks: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

# what pip would install beside the checksums in constraints.sha256; nothing is installed
hashes: $(BIN)/python
	$(PIP) --dry-run --ignore-installed --report $(VENV)/report.json '.[dev]'
	$(BIN)/python tools/hashes.py check $(VENV)/report.json

# the wheel in an empty environment for every Python; `make wheels FULL=python3.11` takes torch along for one
wheels:
	$(PYTHON) tools/wheels.py $(PYTHONS) $(if $(FULL),--full $(FULL))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "error: SceneMem needs Python 3.10 or newer; name one with: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }

$(VENV)/.installed-run: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing SceneMem into $(VENV) (once, about a minute) ..."
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing SceneMem and its test tools into $(VENV) (once, about two minutes) ..."
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed-run

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .coverage* .hypothesis
