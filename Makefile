# Some virtual machines trap AMX, and torch's bf16 products then die with an illegal instruction.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint docs format clean

demo: .venv/.data,serve,gate,ablate
	rm -rf runs/demo
	$(BIN)/gradproof train --out runs/demo
	$(BIN)/gradproof verify --html runs/demo/verify.html --json runs/demo/verify.json
	$(BIN)/gradproof diagnose runs/demo --html runs/demo/diagnose.html --json runs/demo/diagnose.json

# Two workers of one thread each; where a test asks for two threads, one that waits sleeps instead of keeping a core busy.
test: .venv/.test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist loadfile

test-slow: .venv/.test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -m slow -n 2 --dist loadfile

lint: .venv/.lint
	$(BIN)/ruff check gradproof tests docs benchmarks examples
	$(BIN)/ruff format --check gradproof tests docs benchmarks examples
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python docs/architecture.py --check
	$(BIN)/python benchmarks/readme_table.py --check

# The site lands in site/; a broken link or a page outside the navigation is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet
	@echo "site/index.html"

format: .venv/.lint
	$(BIN)/ruff check --fix gradproof tests docs benchmarks examples
	$(BIN)/ruff format gradproof tests docs benchmarks examples

clean:
	rm -rf .venv runs site

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.%: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	touch $@
