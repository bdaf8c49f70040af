"""Docstrings begin with a verb or a noun, functions are named by verbs, and names say what they hold."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import house

pytestmark = pytest.mark.check

ROOT = Path(__file__).parents[2]
FOLDERS = ("gpubench", "benchmarks", "scripts")
# First words that leave the reader without a subject, or without a verb.
ELLIPTIC = re.compile(r"(Of|What|Whatever|That|Those|By|Who|As|The same|For who|None|Where|Beside)\b")
PARTICIPLE = re.compile(
    r"[a-z]*(ed|drawn|told|said|chosen|taken|given|kept|built|held|known|left|found|made|written|shown)"
)
VERBS = {
    "need", "seed", "feed", "speed", "embed", "exceed", "proceed", "rebuild", "unified", "embedded", "hundred",
}  # fmt: skip
# Names that say nothing of what they hold.
EMPTY = {
    "found", "one", "ours", "theirs", "wanted", "kept", "given", "known", "told", "said", "asked", "row", "left",
}  # fmt: skip


Definition = tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]


@functools.cache
def definitions() -> list[Definition]:
    """Return the place and the node of each module, class and function."""
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", node)
        for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for node in ast.walk(house.tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]  # fmt: skip


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    return ((place, node) for place, node in definitions() if isinstance(node, ast.FunctionDef))


def is_property(node: ast.FunctionDef) -> bool:
    names = (getattr(item, "id", getattr(item, "attr", "")) for item in node.decorator_list)
    return any(name in ("property", "cached_property") for name in names)


def held_names(function: ast.FunctionDef) -> set[str]:
    """Return the parameters and variables of a function, with those of functions inside it."""
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    texts = {place: ast.get_docstring(node) or "" for place, node in definitions()}
    elliptic = [f"{place}: {text.splitlines()[0]}" for place, text in texts.items() if ELLIPTIC.match(text)]
    assert not elliptic, "\n".join(elliptic)


def test_functions_are_named_by_verbs() -> None:
    participles = []
    for place, node in functions():
        words = node.name.strip("_").split("_")
        participle = len(words) <= 2 and PARTICIPLE.fullmatch(words[-1]) and words[-1] not in VERBS
        if participle and not is_property(node):
            participles.append(f"{place}: {node.name}")
    assert not participles, "\n".join(participles)


def test_names_say_what_they_hold() -> None:
    empty = [f"{place}: {name}" for place, node in functions() for name in sorted(held_names(node) & EMPTY)]
    assert not empty, "\n".join(empty)


STRUCTS = {"Struct", "NamedTuple", "Record"}


def structs() -> Iterator[tuple[str, ast.ClassDef]]:
    """Return the classes that are structs, by their bases or by those of these, with their places."""
    classes = [(place, node) for place, node in definitions() if isinstance(node, ast.ClassDef)]
    names = {node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} for _, node in classes}
    known = set(STRUCTS)
    while more := {name for name, bases in names.items() if bases & known} - known:
        known |= more
    return ((place, node) for place, node in classes if node.name in known)


def test_a_struct_says_of_each_field_on_its_line_what_it_holds():
    silent = []
    for place, node in structs():
        path = place.partition(":")[0]
        if not path.startswith("gpubench/"):
            continue
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                above, *own = lines[field.lineno - 2 : field.end_lineno]
                if not above.lstrip().startswith("#") and "#" not in "".join(own):
                    silent.append(f"{path}:{field.lineno}: {node.name}.{ast.unparse(field.target)}")
    assert not silent, "\n".join(silent)
