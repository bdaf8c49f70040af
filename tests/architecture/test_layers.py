"""Who may import whom, beside the contracts that `make lint` checks, and how large a module may be."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpubench"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 600  # a file is as long as its noun


@pytest.mark.parametrize("folder", ["kernels", "backends"])
@pytest.mark.check
def test_siblings_do_not_know_each_other(folder: str) -> None:
    """Ops share the templates, backends what is in `shared`: so a new one is one file.

    A contract of import-linter would have to list every shared module by name.
    """
    package = "gpubench." + folder.replace("/", ".")
    here, shared = (PACKAGE / folder).iterdir(), ("__init__", "contract", "templates", "shared")
    built = (path for path in here if path.suffix == ".py" or (path / "__init__.py").is_file())
    siblings = {f"{package}.{path.stem}" for path in built if path.stem not in shared}
    assert len(siblings) >= 3
    depth = package.count(".") + 2
    for path in (PACKAGE / folder).glob("**/*.py"):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts[:depth])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            found = {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                found = {str(node.module), *(f"{node.module}.{name}" for name in found)}
            others = (siblings - {own}) & {".".join(name.split(".")[:depth]) for name in found}
            assert not others, f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.check
def test_modules_stay_small() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    too_long = {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > MAX_LINES}
    assert not too_long


@pytest.mark.check
def test_every_test_is_in_a_file_that_pytest_collects() -> None:
    holders = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    hidden = [path for path in holders if "\ndef test_" in path.read_text(encoding="utf-8")]
    assert not hidden, "tests in files whose name does not start with test_"
