"""What tests hold against a text among the golden files: `python -m tests.golden` writes these texts anew.

The tests of a folder share a file, as `golden/detect.txt`, in which each test that calls `hold` has a part."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

HEAD = "======== "
WRITES = "TESTS_WRITE_HELD"
SILENT = ("absent", "not_probed", "null", "[]", "{}", '""')
OTHERS = ("took_s", "sysroot", "live", "providers")  # of a detection, not of the machine


def hold(document: Any, usual: Any = None) -> None:
    """Assert that a text, or the fields of a document that are not those of `usual`, are as the file of the test's
    folder has them."""
    place, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    module = Path(place)
    text, file, name = (
        document if isinstance(document, str) else _text(document, usual),
        _file(module),
        f"{module.name}::{name}",
    )
    if WRITES in os.environ:
        with file.open("a", encoding="utf-8", newline="\n") as parts:
            parts.write(f"{HEAD}{name}\n{text}")
    else:
        assert text == _stored(file)[name]


def write() -> None:
    modules = [
        path for path in Path("tests").rglob("test_*.py") if "import hold" in path.read_text(encoding="utf-8")
    ]
    for file in {_file(module) for module in modules}:
        file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=line", *map(str, modules)]
    subprocess.run(command, env=os.environ | {WRITES: "1"}, check=True)


def _file(module: Path) -> Path:
    return Path(__file__).parent / "golden" / f"{module.parts[1]}.txt"


@functools.cache
def _stored(file: Path) -> dict[str, str]:
    parts = file.read_text(encoding="utf-8").split(HEAD)[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def _text(document: Any, usual: Any) -> str:
    known, own = {} if usual is None else dict(_facts(usual)), dict(_facts(document))
    lines = [f"{path} = {stated}" for path, stated in own.items()
             if (known[path] != stated if path in known else stated.split("  ")[0] not in SILENT)]  # fmt: skip
    return "".join(f"{line}\n" for line in [*lines, *(f"no {path}" for path in known if path not in own)])


def _facts(document: Any) -> Iterator[tuple[str, str]]:
    """Yield each path with its value, and a fact with the last part of its source. Texts for people are left out."""
    todo = [("", msgspec.to_builtins(document))]
    while todo:
        path, node = todo.pop()
        if isinstance(node, dict) and {"value", "status", "source"} <= node.keys():
            stated = node["status"] if node["value"] is None else _json(node["value"])
            words = [
                stated,
                (node["source"] or "").rpartition("/")[2],
                *["conflict"] * (node["status"] == "conflict"),
            ]
            words += [f"or {_json(other['value'])}" for other in node.get("alternatives") or ()]
            yield path, "  ".join(words).rstrip()
        elif isinstance(node, dict) or (isinstance(node, list) and any(map(_has_facts, node))):
            inner = node.items() if isinstance(node, dict) else enumerate(node)
            todo += reversed([(f"{path}.{key}".strip("."), child) for key, child in inner])
        elif not path.endswith(".text") and path.partition(".")[0] not in OTHERS:
            yield path, _json(node)


def _has_facts(node: Any) -> bool:
    return isinstance(node, dict) and any(isinstance(child, dict) for child in node.values())


def _json(node: Any) -> str:
    """Return JSON without texts for people and what is empty."""
    if isinstance(node, list):
        return f"[{', '.join(map(_json, node))}]"
    if isinstance(node, dict):
        return f"{{{', '.join(f'{key}: {_json(child)}' for key, child in node.items() if key != 'text' and child)}}}"
    return json.dumps(node, ensure_ascii=False)
