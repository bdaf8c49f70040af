# Two commands on a fresh Debian or Ubuntu with python3 >= 3.11:
#   make run     sets up .venv, measures what this machine has, prints the report   (make run ARGS="--quick")
#   make test    sets up all that the tests need, a software Vulkan adapter included, and runs every test
# All paths are relative, so the checkout may lie in a folder whose name has a space.

PYTEST_ARGS ?=

.PHONY: help run test lint docs clean

help:
	@sed -n '1,4s/^# *//p' Makefile

run:
	@sh scripts/setup.sh run
	@.venv/bin/python -m gpubench run $(ARGS)

# The tests run even when lint fails, and pytest has the last word; either failing fails the target.
test:
	@sh scripts/setup.sh test
	@lint=0; $(MAKE) --no-print-directory lint || lint=1; \
	TESTS_EXPECT="vulkan consumers chromium" .venv/bin/python -m pytest $(PYTEST_ARGS) && exit $$lint

lint:
	@sh scripts/setup.sh test
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m ruff format --check --quiet .
	@.venv/bin/python -m mypy
	@.venv/bin/lint-imports

docs:
	@sh scripts/setup.sh test
	@.venv/bin/python scripts/write_cli_docs.py
	@.venv/bin/python scripts/write_troubleshooting.py
	@.venv/bin/python scripts/write_readme.py
	@.venv/bin/python benchmarks/performance.py
	@.venv/bin/python benchmarks/accuracy.py

clean:
	rm -rf .venv .setup build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
