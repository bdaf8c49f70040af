"""The weight of each package in tokens, beside its budget.

    python benchmarks/weight.py            # package, tokens, budget
    python benchmarks/weight.py --write    # the budgets anew: what each weighs now

Tokens, not lines, so that no line grows longer to please a counter. Comments and docstrings are free. A string of more
than three lines, an f-string too, weighs its words: kernels and pages are texts; any other string is one token. Pages
(.js .css .html) weigh their words. tests/architecture/test_budgets.py holds each package to its budget.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpubench"
BUDGETS = ROOT / "tests" / "architecture" / "budgets.json"
PAGES = {".js", ".css", ".html", ".j2"}
_WORD = re.compile(r"\w+|[^\w\s]")
_FREE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
# Python 3.12 and later make several tokens of an f-string.
_BEGIN, _END = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
_LONG = 3  # lines after the first from which on a string is a text


def weigh(text: str) -> int:
    """Return the number of tokens of a Python module, the same on every Python."""
    free, lines = _docstrings(text), text.splitlines(keepends=True)
    total, begins = 0, list[tuple[int, int]]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == _BEGIN:
            begins.append(token.start)
        elif token.type == _END:
            first = begins.pop()
            if not begins:
                total += _string("".join(lines[first[0] - 1 : token.end[0]]), token.end[0] - first[0])
        elif begins or token.type in _FREE or (token.type == tokenize.STRING and token.start in free):
            continue
        elif token.type == tokenize.STRING:
            total += _string(token.string, token.end[0] - token.start[0])
        else:
            total += 1
    return total


def _string(text: str, more_lines: int) -> int:
    return len(_WORD.findall(text)) if more_lines >= _LONG else 1


def _docstrings(text: str) -> set[tuple[int, int]]:
    """Return where the docstrings of a module begin."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None
    }


def packages() -> Counter[str]:
    """Return the tokens of each package; `.` counts the modules that are in no package."""
    weights: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*")):
        parts = path.relative_to(PACKAGE).parts
        name = parts[0] if len(parts) > 1 else "."
        if path.suffix == ".py":
            weights[name] += weigh(path.read_text(encoding="utf-8"))
        elif path.suffix in PAGES:
            weights[name] += len(_WORD.findall(path.read_text(encoding="utf-8")))
    return weights


def budgets() -> dict[str, int]:
    """Return the most tokens that each package may have."""
    limits: dict[str, int] = json.loads(BUDGETS.read_text(encoding="utf-8"))
    return limits


def main() -> int:
    weights = packages()
    if "--write" in sys.argv[1:]:
        BUDGETS.write_text(json.dumps(dict(sorted(weights.items())), indent=2) + "\n", encoding="utf-8")
    limits = budgets()
    for name, tokens in weights.most_common():
        print(f"{name:12} {tokens:8} of {limits.get(name, 0):8}")
    print(f"{'all':12} {weights.total():8} of {sum(limits.values()):8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
