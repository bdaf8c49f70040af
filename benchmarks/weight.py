"""The number of tokens in each package, compared with its budget.

    python benchmarks/weight.py            # print the package, its tokens and its budget
    python benchmarks/weight.py --write    # set each budget to the present number

Tokens are counted instead of lines, so that longer lines gain nothing. Comments and docstrings do not count. A
string counts as one token. A string or f-string of more than three lines contains a kernel or a page, and
counts its words. So do pages (.js .css .html). tests/architecture/test_budgets.py checks each package against
its budget.
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
# Python 3.12 and later divide an f-string into several tokens.
_BEGIN, _END = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
_LONG = 3  # from this number of lines after the first, the words of a string count


def weigh(text: str) -> int:
    """Return the number of tokens of a Python module, which is the same on every version of Python."""
    free, lines = _docstrings(text), text.splitlines(keepends=True)
    total, begins = 0, list[tuple[int, int]]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == _BEGIN:
            begins.append(token.start)
        elif token.type == _END:
            first = begins.pop()
            if not begins:
                rest = len(lines[token.end[0] - 1]) - token.end[1]
                string = "".join(lines[first[0] - 1 : token.end[0]])[first[1] : -rest]
                total += _string(string, token.end[0] - first[0])
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
    """Return the positions (line, column) at which the docstrings of a module begin."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None
    }


def packages() -> Counter[str]:
    """Return the number of tokens of each package. The key `.` counts the modules that are in no package."""
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
    """Return the largest number of tokens that each package may have."""
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
