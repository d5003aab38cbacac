# Two commands, with nothing but Python (3.11 or newer) and make:
#   make lab     JupyterLab on the course            ARGS=--no-browser passes through
#   make test    the whole test suite
# A CPU-only Linux laptop avoids PyTorch's CUDA build with TORCH_INDEX=<address>, see README.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
PIP    := $(RUN) -m pip install -c constraints.txt
MODEL  := smollm2-135m

.PHONY: lab test model notebooks lint clean

lab: $(VENV)/.lab model
	$(RUN) -m jupyter lab --notebook-dir=notebooks $(ARGS)

test: $(VENV)/.test model
	$(RUN) course/build.py --check
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check -q src tests course
	$(RUN) -m pytest $(ARGS)

model: $(VENV)/.lab
	$(RUN) -m tokenpace fetch $(MODEL)

notebooks: $(VENV)/.lab
	$(RUN) course/build.py

lint: $(VENV)/.test
	$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format src tests course

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tokenpace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make lab PYTHON=python3.12, for instance")'
	@echo "Into $(VENV) (make clean removes it) go the course's packages: about 2 GB on disk, most of it PyTorch; about 7 GB with the CUDA build that Linux gets by default (a download of about 3 GB)."
	@echo "Then the model SmolLM2-135M, a download of 93 MB. Later calls download nothing."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.lab: $(VENV)/.python pyproject.toml constraints.txt
	$(if $(TORCH_INDEX),$(PIP) torch --index-url $(TORCH_INDEX))
	$(PIP) -e ".[course]"
	@touch $@

$(VENV)/.test: $(VENV)/.lab
	$(PIP) -e ".[course,test]"
	@touch $@

clean:
	rm -rf $(VENV)
