"""Figures about the structure of the source code: the number of modules, their sizes, and the longest path of
imports.

    python benchmarks/house.py             # print the figures, and the names behind them
    python benchmarks/house.py --write     # also write the figures into the table of docs/architecture.md

A *room* is a package or a top-level module of gpubench. `tests/architecture/test_house.py` checks the figures
that must hold for every file, and docs/architecture.md shows all of them.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a script has its own folder there instead

from benchmarks import weight  # noqa: E402
from gpubench.base.plugins.wings import OWN  # noqa: E402

PACKAGE = ROOT / "gpubench"
PAGE, TESTS = ROOT / "docs" / "architecture.md", ROOT / "tests"
# A module with fewer lines is only justified if no module or several modules import it.
SMALL = 60
MOST_PARAMETERS = 6


def modules() -> dict[str, Path]:
    """Return the path of every module of gpubench by its dotted name."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imports() -> dict[str, set[str]]:
    """Return the modules of gpubench that each module imports, also inside functions and for type checking."""
    product = modules()
    return {name: set(_imports_of(tree(path), product)) - {name} for name, path in product.items()}


def _imports_of(module: ast.Module, product: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (name for name in (whole if whole in product else node.module,) if name in product)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in product)


def small_with_one_importer() -> list[str]:
    """Return the short modules that exactly one other module imports. The `__init__` modules of packages do not
    count."""
    importers = Counter(target for targets in imports().values() for target in targets)
    return [
        name
        for name, path in modules().items()
        if importers[name] == 1 and lines(path) < SMALL and path.name != "__init__.py"
    ]


def types_defined_twice() -> list[str]:
    """Return the names of public classes that two modules define."""
    homes = Counter(
        node.name
        for path in modules().values()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in homes.items() if count > 1)


def long_signatures() -> list[str]:
    """Return the functions with more than `MOST_PARAMETERS` parameters, not counting `self`."""
    long = []
    for module, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len([name for name in names if name not in ("self", "cls")]) > MOST_PARAMETERS:
                    long.append(f"{module}.{node.name}")
    return long


def longest_path() -> list[str]:
    """Return the rooms on the longest path of imports from `cli` down to `base`."""
    rooms: dict[str, set[str]] = {}
    for name, targets in imports().items():
        rooms.setdefault(_room(name), set()).update(map(_room, targets))

    @functools.cache
    def below(room: str) -> tuple[str, ...]:
        if room == "base":
            return ("base",)
        ways = [below(target) for target in sorted(rooms.get(room, ())) if target not in (room, "gpubench")]
        longest = max((way for way in ways if way), key=len, default=())
        return (room, *longest) if longest else ()

    return list(below("cli"))


def _room(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def table() -> str:
    """Return a table with one row for each figure."""
    product, weights = modules(), weight.packages()
    rows = [
        ("modules of the product", len(product)),
        ("tokens of the product, in thousands", round(weights.total() / 1000)),
        ("the same without the wings", round(sum(n for name, n in weights.items() if name not in OWN) / 1000)),
        ("lines of the tests, in thousands", round(sum(map(lines, TESTS.rglob("*.py"))) / 1000)),
        ("lines of the longest module", max(map(lines, product.values()))),
        ("public type names defined twice", len(types_defined_twice())),
        (f"modules under {SMALL} lines with one importer", len(small_with_one_importer())),
        (f"functions of more than {MOST_PARAMETERS} parameters", len(long_signatures())),
        ("rooms on the longest way from `cli` to `base`", len(longest_path())),
    ]
    return "\n".join(["| figure | count |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in rows)])


def page() -> str:
    """Return the text of docs/architecture.md with a new table."""
    begin, end = "<!-- house: generated by make docs -->", "<!-- /house -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    return f"{before}{begin}\n\n{table()}\n\n{end}{rest.partition(end)[2]}"


def main() -> int:
    print(table())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    for title, names in (
        ("defined twice", types_defined_twice()),
        ("small, one importer", small_with_one_importer()),
        ("many parameters", long_signatures()),
        ("longest way", longest_path()),
    ):
        print(f"{title}: {', '.join(names) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
