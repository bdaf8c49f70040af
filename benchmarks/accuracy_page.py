"""The tables of docs/accuracy.md. Text outside the markers belongs to people and stays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.accuracy_record import LONG_S, LONG_SHARE, SHORT_S, SHORT_SHARE, Agreement, Pairing

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
_FILE = re.compile(r"<!-- file: (?P<file>\S+) -->")
_BLOCK = re.compile(r"<!-- begin: tables -->\n.*?<!-- end: tables -->", re.DOTALL)


def rewrite(file: Path | None = None, page: Path = PAGE) -> int:
    """Make the page's tables anew from `file`, else from the file that it names. Returns the exit code."""
    text = page.read_text(encoding="utf-8")
    page.write_text(rewritten(text, file), encoding="utf-8")
    return 0


def rewritten(text: str, file: Path | None = None, root: Path = ROOT) -> str:
    """The page's text with its tables made anew. Raises ValueError if neither it nor the caller names a file."""
    named = _FILE.search(text)
    if file is None and named is None:
        raise ValueError("the page has no line <!-- file: ... -->; give a file")
    path = file.resolve() if file is not None else root / named["file"]  # type: ignore[index]
    found = msgspec.json.decode(path.read_bytes(), type=Agreement)
    name = path.relative_to(root) if path.is_relative_to(root) else path
    text = _FILE.sub(f"<!-- file: {name} -->", text, count=1)
    block = f"<!-- begin: tables -->\n{tables(found)}\n<!-- end: tables -->"
    return _BLOCK.sub(lambda _: block, text)


def tables(found: Agreement) -> str:
    """Markdown: what was measured with what, one row for each tool and clock, then one table for each."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    parts = [
        f"{found.device}, driver {found.driver}, {found.measured_at}; {versions}.",
        _overview(found.pairings),
    ]
    parts += [f"Left out: {tool} ({why})." for tool, why in found.absent.items()]
    for tool, clock in _kinds(found.pairings):
        rows = [one for one in found.pairings if (one.tool, one.clock) == (tool, clock)]
        parts.append(f"**{tool}**, beside gpubench's `{clock}`\n\n{_rows(rows)}")
    parts.append("**Launches without work**, by gpubench's device clock and by ncu\n\n" + _floors(found))
    return "\n\n".join(parts)


def _kinds(pairings: Iterable[Pairing]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((one.tool, one.clock) for one in pairings))


def _overview(pairings: Sequence[Pairing]) -> str:
    head = (
        "tool", "gpubench's clock", f"over {LONG_S * 1e6:.0f} us: within {LONG_SHARE:.0%}", "largest",
        f"shorter: within {SHORT_SHARE:.0%} or {SHORT_S * 1e6:.1f} us", "largest",
    )  # fmt: skip
    lines = []
    for tool, clock in _kinds(pairings):
        rows = [one for one in pairings if (one.tool, one.clock) == (tool, clock)]
        cells: list[str] = []
        for part in ([r for r in rows if r.ours > LONG_S], [r for r in rows if r.ours <= LONG_S]):
            judged = [one for one in part if one.agrees is not None]
            worst = max(part, key=lambda one: abs(one.excess), default=None)
            cells.append(
                f"{sum(one.agrees is True for one in judged)} of {len(judged)}" if judged else "no target"
            )
            cells.append(f"{worst.excess:+.1%}" if worst else "-")
        lines.append((tool, f"`{clock}`", *cells))
    return _table(head, lines)


def _rows(rows: Sequence[Pairing]) -> str:
    host = any(one.host_s is not None for one in rows)
    head = (
        "kernel",
        "n",
        "gpubench",
        "tool",
        "difference",
        "",
        "within",
        *(["tool's host time"] if host else []),
    )
    return _table(
        head,
        [
            (
                f"{one.library} {one.op}", _size(one.n), _us(one.ours), _us(one.theirs), f"{one.excess:+.1%}",
                f"{(one.ours - one.theirs) * 1e6:+.2f} us",
                {True: "yes", False: "**no**", None: "-"}[one.agrees],
                *([_us(one.host_s) if one.host_s is not None else "-"] if host else []),
            )
            for one in rows
        ],
    )  # fmt: skip


def _floors(found: Agreement) -> str:
    return _table(("launch", "per launch"), [(name, _us(seconds)) for name, seconds in found.floors.items()])


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.4f} ms"


def _size(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n > 8192 and n & (n - 1) == 0 else str(n)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
