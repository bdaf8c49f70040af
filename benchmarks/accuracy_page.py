"""The tables of docs/accuracy.md. Text outside the markers is written by hand and stays unchanged."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.accuracy_record import EVENTS, LONG_S, LONG_SHARE, SHORT_S, SHORT_SHARE, Agreement, Pairing

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
_FILE = re.compile(r"<!-- file: (?P<file>\S+) -->")
_BLOCK = re.compile(r"<!-- begin: tables -->\n.*?<!-- end: tables -->", re.DOTALL)


def rewrite(file: Path | None) -> None:
    """Write new tables into the page, from `file` or else from the file that the page names."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renew(text, file), encoding="utf-8")


def renew(text: str, file: Path | None = None) -> str:
    """Return the text of the page with new tables from `file`, or else from the file that the page names. Raises
    ValueError if there is none."""
    named = _FILE.search(text)
    if file is None and named is None:
        raise ValueError("the page has no line <!-- file: ... -->; give a file")
    path = file.resolve() if file is not None else ROOT / named["file"]  # type: ignore[index]
    agreement = msgspec.json.decode(path.read_bytes(), type=Agreement)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    text = _FILE.sub(f"<!-- file: {name} -->", text, count=1)
    block = f"<!-- begin: tables -->\n{tables(agreement)}\n<!-- end: tables -->"
    return _BLOCK.sub(lambda _: block, text)


def tables(agreement: Agreement) -> str:
    """Return Markdown: the device and versions, a table with a row for each tool and clock, and then a table of
    all values for each library and clock."""
    versions = ", ".join(f"{name} {version}" for name, version in agreement.versions.items())
    pairings = [*agreement.pairings, *without_events(agreement)]
    parts = [
        f"{agreement.device}, driver {agreement.driver}, {agreement.measured_at}; {versions}.",
        _overview(pairings),
    ]
    parts += [f"Left out: {tool} ({why})." for tool, why in agreement.absent.items()]
    for library, clock in dict.fromkeys((pairing.library, pairing.clock) for pairing in pairings):
        rows = [pairing for pairing in pairings if (pairing.library, pairing.clock) == (library, clock)]
        parts.append(f"**`{clock}`, kernels of {library}**\n\n{_rows(rows)}")
    parts.append("**Launches without work**, by gpubench's device clock and by ncu\n\n" + _floors(agreement))
    return "\n\n".join(parts)


def without_events(agreement: Agreement) -> list[Pairing]:
    """Return the pairings of ncu with the cold clock, after subtracting from gpubench's times what the cold clock's
    events measure if there is nothing between them. ncu uses no events."""
    zero = agreement.floors.get(EVENTS, 0.0)
    return [
        msgspec.structs.replace(
            pairing, clock="cold - events", ours_s=[seconds - zero for seconds in pairing.ours_s]
        )
        for pairing in agreement.pairings
        if pairing.clock == "cold" and pairing.tool.startswith("ncu")
    ]


def _kinds(pairings: Iterable[Pairing]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((pairing.tool, pairing.clock) for pairing in pairings))


def _overview(pairings: Sequence[Pairing]) -> str:
    head = (
        "tool", "gpubench's clock", f"over {LONG_S * 1e6:.0f} us: within {LONG_SHARE:.0%}", "largest",
        f"shorter: within {SHORT_SHARE:.0%} or {SHORT_S * 1e6:.1f} us", "largest",
    )  # fmt: skip
    lines = []
    for tool, clock in _kinds(pairings):
        rows = [pairing for pairing in pairings if (pairing.tool, pairing.clock) == (tool, clock)]
        cells: list[str] = []
        for part in ([r for r in rows if r.ours > LONG_S], [r for r in rows if r.ours <= LONG_S]):
            judged = [pairing for pairing in part if pairing.agrees is not None]
            worst = max(part, key=lambda pairing: abs(pairing.excess), default=None)
            cells.append(
                f"{sum(pairing.agrees is True for pairing in judged)} of {len(judged)}"
                if judged
                else "no target"
            )
            cells.append(f"{worst.excess:+.1%}, {(worst.ours - worst.theirs) * 1e6:+.2f} us" if worst else "-")
        lines.append((tool, f"`{clock}`", *cells))
    return _table(head, lines)


def _rows(rows: Sequence[Pairing]) -> str:
    """Return a table with a row for each kernel and a column for each tool."""
    tools = list(dict.fromkeys(pairing.tool for pairing in rows))
    kernels: dict[tuple[str, int], dict[str, Pairing]] = {}
    for pairing in rows:
        kernels.setdefault((pairing.op, pairing.n), {})[pairing.tool] = pairing
    return _table(
        ("kernel", "n", "gpubench", *tools),
        [
            (
                op, _size(n), _us(statistics.median(pairing.ours for pairing in by_tool.values())),
                *(_cell(by_tool[tool]) if tool in by_tool else "-" for tool in tools),
            )
            for (op, n), by_tool in kernels.items()
        ],
    )  # fmt: skip


def _cell(pairing: Pairing) -> str:
    difference = f"{pairing.excess:+.1%}" if abs(pairing.excess) >= 5e-4 else "0%"
    host = f", host {_us(pairing.host_s)}" if pairing.host_s is not None and pairing.clock == "single" else ""
    return f"{_us(pairing.theirs)}, {f'**{difference}**' if pairing.agrees is False else difference}{host}"


def _floors(agreement: Agreement) -> str:
    return _table(
        ("launch", "per launch"), [(name, _us(seconds)) for name, seconds in agreement.floors.items()]
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.4f} ms"


def _size(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n > 8192 and n & (n - 1) == 0 else str(n)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
