# Two commands on a fresh Debian or Ubuntu with python3 >= 3.11:
#   make run     sets up .venv, measures what this machine has, prints the answer   (make run ARGS="--quick")
#   make test    sets up all that the tests need, a software Vulkan adapter included, and runs every test but long fuzzing
# While you work: make check    lint, types, layers, unit tests, and a test per command and kind of failure
# Long fuzzing:   make fuzz     more spoiled documents and machines, and ten times as many examples of each property
# All paths are relative, so the checkout may lie in a folder whose name has a space.

PYTEST_ARGS ?=
# Workers of pytest-xdist: one more than CPUs, since a test often waits for what it started; beyond eight the longest decide.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8)))
# Each worker takes neighbours, so that what the tests of a file share is made once, and takes over what another has left.
PYTEST = TESTS_EXPECT="vulkan consumers chromium torch" .venv/bin/python -m pytest -n $(JOBS) --dist worksteal

# Tests start gpubench thousands of times; without kept bytecode each start compiles the whole package, four times the work.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help run test check fuzz coverage lint docs release clean

help:
	@sed -n '1,6s/^# *//p' Makefile

run:
	@sh scripts/setup.sh run
	@.venv/bin/python -m gpubench run $(ARGS)

# The tests run even when lint fails, and pytest has the last word; either failing fails the target.
test:
	@sh scripts/setup.sh test
	@lint=0; $(MAKE) --no-print-directory lint || lint=1; $(PYTEST) -m "not fuzz" $(PYTEST_ARGS) && exit $$lint

check:
	@sh scripts/setup.sh test
	@lint=0; $(MAKE) --no-print-directory lint || lint=1; $(PYTEST) -m check --hypothesis-profile=check $(PYTEST_ARGS) && exit $$lint

# `hypothesis` marks what Hypothesis finds examples for. A failure prints what it takes to repeat it.
fuzz:
	@sh scripts/setup.sh test
	@$(PYTEST) -m "fuzz or hypothesis" --hypothesis-profile=fuzz $(PYTEST_ARGS)

# Every test once more, with each process counted: lines and branches of gpubench that ran, module by module. Kernels that
# earlier runs compiled are forgotten, since what compiles them is counted too. The tests that are left out look at what a
# program imports and at the size of its files, and would see coverage itself.
coverage:
	@sh scripts/setup.sh test
	@rm -rf .setup/cache
	@$(PYTEST) -m "not fuzz" --cov --cov-report=term --deselect tests/architecture/test_imports.py \
		--deselect tests/faults/test_failing_disk.py::test_a_limit_on_the_size_of_files $(PYTEST_ARGS)

lint:
	@sh scripts/setup.sh test
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check --quiet .
	@.venv/bin/python -m mypy
	@.venv/bin/lint-imports
	@.venv/bin/actionlint .github/workflows/*.yml examples/github-workflow.yml

docs:
	@sh scripts/setup.sh test
	@.venv/bin/python scripts/write_cli_docs.py
	@.venv/bin/python scripts/write_troubleshooting.py
	@.venv/bin/python scripts/write_readme.py
	@.venv/bin/python benchmarks/house.py --write
	@.venv/bin/python benchmarks/performance.py
	@.venv/bin/python benchmarks/accuracy.py

# Builds, checks the files in a clean environment, then commits and tags; pushes nothing. ARGS=--dry-run changes nothing.
release:
	@sh scripts/setup.sh test
	@.venv/bin/python scripts/release.py $(VERSION) $(ARGS)

clean:
	rm -rf .venv .setup build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
