"""The tables of docs/performance.md. Text outside the markers is written by hand and stays unchanged.

A block is between `<!-- begin: NAME -->` and `<!-- end: NAME -->`. The line `<!-- files: A B -->` names the
result files of the page, relative to the repository.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpubench.analysis.analyse import Analysis, analyse
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.roofline import OUT_OF_CACHE_BYTES, PeakShare, overheads, roofline
from gpubench.base.units import format_bytes, format_size
from gpubench.report.sections.roofline import implementation_text, peak_texts, rate
from gpubench.report.sections.time_breakdown import pool_share, what
from gpubench.report.sections.time_breakdown import rate as transfer_rate
from gpubench.report.wording import share_text, time_interval_text, time_text
from gpubench.result import store

ROOT = Path(__file__).parents[1]
NOTHING = "Not measured in these files."
# The sizes over which the ratio to the vendor's matmul is averaged, as in the definition of the target.
GEOMETRIC = (512, 1024, 2048, 4096, 8192)
_FILES = re.compile(r"<!-- files:(?P<files>[^>]*)-->")
_BLOCK = re.compile(r"<!-- begin: (?P<name>[a-z]+) -->\n.*?<!-- end: (?P=name) -->", re.DOTALL)
# The options that affect the output but not the measurement.
_PLUMBING = frozenset({"--results-dir", "--format", "--tag", "--output", "-o", "--no-progress", "--quiet"})
_FLAGS = frozenset({"--no-progress", "--quiet"})
Row = tuple[Analysis, PeakShare]
Keep = Callable[[PeakShare], bool]


def files_of(page: str) -> list[str]:
    """Return the result files that the page names. Raises ValueError if it names none."""
    line = _FILES.search(page)
    if line is None or not line["files"].split():
        raise ValueError("the page has no line <!-- files: ... -->; give result files")
    return line["files"].split()


def rewrite(page: str, files: Sequence[str]) -> str:
    """Return `page` with new blocks that are made from `files` (relative to the repository), in the order of their
    measurement. Raises ValueError if the page has a block with an unknown name."""
    pairs = [(analyse(store.load(ROOT / name)), name) for name in files]
    pairs.sort(key=lambda pair: pair[0].run.started_at)
    analyses = [analysis for analysis, _ in pairs]
    named = {analysis.run.id: name for analysis, name in pairs}
    blocks = {name: make(analyses) for name, make in _BLOCKS.items()}
    blocks["runs"] = _runs(analyses, named)

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in blocks:
            raise ValueError(f"the page has a block {name!r}; there are {', '.join(sorted(blocks))}")
        return f"<!-- begin: {name} -->\n{blocks[name]}\n<!-- end: {name} -->"

    page = _FILES.sub(f"<!-- files: {' '.join(named.values())} -->", page, count=1)
    return _BLOCK.sub(block, page)


def command(argv: Sequence[str]) -> str:
    """Return the command `gpubench run ...` that repeats the measurement, without options of its output."""
    words, rest = [], iter(argv)
    for word in rest:
        name = word.partition("=")[0]
        if name in _PLUMBING:
            if name not in _FLAGS and "=" not in word:
                next(rest, None)
            continue
        words.append(word)
    return shlex.join(["gpubench", *words])


def _runs(analyses: Sequence[Analysis], named: dict[str, str]) -> str:
    machines = dict.fromkeys(analysis.machine for analysis in analyses)
    tools = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(analysis.run.tool.items()))
        for analysis in analyses
    )
    rows = [
        (f"`{command(analysis.run.argv)}`", analysis.run.started_at, f"[{Path(name).name}](../{name})")
        for analysis in analyses
        for name in [named[analysis.run.id]]
    ]
    lines = [f"Machine: {_plain(machine)}." for machine in machines] + [
        f"Software: {_plain(text)}." for text in tools
    ]
    return "\n".join([*lines, "", _table(("command", "measured", "file"), rows)])


def _peaks(analyses: Sequence[Analysis]) -> str:
    """Return a table with the most telling peak for each set of devices and dtype."""
    best: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {}
    order: dict[tuple[tuple[str, ...], str], float] = {}
    for analysis in analyses:
        for peak in roofline(analysis).peaks:
            key = (peak.device_ids, peak.dtype)
            limits = (peak.bytes_per_s is not None) + (peak.flops_per_s is not None)
            # In this order: both limits are known, the data fits into no cache, the matmul is large, the most
            # bytes/s. The shares in the other tables refer to the peak of their own file.
            rank = limits - 0.4 * peak.cache_sized - 0.2 * peak.small_matmul + (peak.bytes_per_s or 0.0) / 1e18
            if limits and rank > order.get(key, -1.0):
                memory, compute, ridge = peak_texts(peak)
                memory += " (cache-sized)" if peak.cache_sized else ""
                compute += " (small)" if peak.small_matmul else ""
                order[key], best[key] = rank, ("+".join(peak.device_ids), peak.dtype, memory, compute, ridge)
    head = ("device", "dtype", "memory (copy)", "compute (matmul)", "ridge, FLOP/byte")
    return _table(head, [best[key] for key in sorted(best)])


def _rows(analyses: Iterable[Analysis], keep: Keep) -> list[Row]:
    """Return the newest row of each case and machine that `keep` accepts, without hybrid cases."""
    newest: dict[tuple[str, str], Row] = {}
    for analysis in analyses:
        for share in roofline(analysis).rows:
            if keep(share) and share.case.device_kind != "hybrid":
                newest[analysis.machine, share.case.id] = (analysis, share)
    return list(newest.values())


def _pivot(analyses: Sequence[Analysis], keep: Keep, labels: Sequence[str]) -> str:
    """Return a table for each machine, with a row for each set of labels and a column for each implementation."""
    rows = _rows(analyses, keep)
    machines = dict.fromkeys(analysis.machine for analysis, _ in rows)
    columns = sorted({_column(share) for _, share in rows}, key=_column_order)
    tables = []
    for machine in machines:
        works: dict[tuple[str, ...], dict[str, str]] = {}
        for _, share in sorted(
            (pair for pair in rows if pair[0].machine == machine), key=lambda pair: _order(pair[1])
        ):
            works.setdefault(tuple(_label(share.case, name) for name in labels), {})[_column(share)] = _cell(
                share
            )
        body = [(*work, *(cells.get(column, "") for column in columns)) for work, cells in works.items()]
        tables += [f"**{_plain(machine)}**"] if len(machines) > 1 else []
        tables.append(_table((*labels, *columns), body))
    return "\n\n".join(tables) if rows else NOTHING


def _cell(share: PeakShare) -> str:
    parts = [rate(share)]
    if share.share is not None:
        parts.append(share_text(share.share) + (" c" if share.in_cache else ""))
    if share.to_library is not None:
        parts.append(f"{share.to_library:.2f} x")
    return ", ".join(parts)


def _column(share: PeakShare) -> str:
    return f"{share.case.case.device_id} {implementation_text(share.case)}"


def _column_order(name: str) -> tuple[bool, bool, str]:
    return (not name.startswith("numpy"), not name.startswith("cupy"), name)


def _label(case: CaseResult, name: str) -> str:
    if name == "op":
        return case.case.op
    if name == "dtype":
        return case.case.dtype
    if name == "shape":
        return " ".join(f"{key}={value}" for key, value in sorted(case.case.params.items()) if key != "n")
    value = case.case.params.get(name)
    return "" if value is None else format_size(value)


def _order(share: PeakShare) -> tuple[object, ...]:
    case = share.case.case
    params = tuple(sorted((name, value) for name, value in case.params.items() if name != "n"))
    return (case.op, case.dtype, case.params["n"], params)


def _square(share: PeakShare) -> bool:
    return (
        share.case.case.op == "matmul"
        and list(share.case.case.params) == ["n"]
        and share.case.case.dtype == "float32"
    )


def _matmul(analyses: Sequence[Analysis]) -> str:
    def keep(share: PeakShare) -> bool:
        return _square(share) and share.case.case.variant is None

    lines = [_pivot(analyses, keep, ("n",))]
    ratios: dict[str, dict[int, float]] = {}
    for _, share in _rows(analyses, keep):
        n = share.case.case.params["n"]
        if share.to_library is not None and n in GEOMETRIC:
            ratios.setdefault(_column(share), {})[n] = share.to_library
    for column, by_size in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, by_size.values())) / len(by_size))
        worst = min(by_size, key=lambda n: by_size[n])
        sizes = ", ".join(map(str, sorted(by_size)))
        lines.append(
            f"{column} against the vendor library: geometric mean {mean:.3f} over {sizes}; "
            f"lowest {by_size[worst]:.3f} at {worst}."
        )
    return "\n\n".join(lines)


def _ladder(analyses: Sequence[Analysis]) -> str:
    """Return a table of all kernels on GPUs, including variants, at the sizes at which variants were
    measured."""
    rungs = [share for _, share in _rows(analyses, lambda share: share.case.case.variant is not None)]
    works = {share.case.case.workload for share in rungs}
    rows = [share for _, share in _rows(analyses, lambda share: share.case.case.workload in works)]
    rows = [share for share in rows if share.case.device_kind != "cpu"]
    body = [
        (
            share.case.case.op, format_size(share.case.case.params["n"]), share.case.case.device_id,
            implementation_text(share.case), rate(share), "" if share.share is None else share_text(share.share),
            "" if share.to_library is None else f"{share.to_library:.2f} x",
        )
        for share in sorted(rows, key=lambda share: (*_order(share), share.case.case.device_id, share.time_s * -1))
    ]  # fmt: skip
    head = ("op", "n", "device", "kernel", "rate", "of peak", "x library")
    return _table(head, body) if body else NOTHING


def _memory(analyses: Sequence[Analysis]) -> str:
    """Return the table of the float32 ops except matmul, at the sizes whose data fit into no cache."""
    computing = [analysis for analysis in analyses if not overheads(analysis).rows]
    rows = [share for _, share in _rows(computing, _plain_op)]
    large = {share.case.case.op for share in rows if share.case.bytes >= OUT_OF_CACHE_BYTES}

    def keep(share: PeakShare) -> bool:
        case = share.case.case
        # An op without such a size is shown at all its sizes.
        beyond = share.case.bytes >= OUT_OF_CACHE_BYTES or case.op not in large
        return _plain_op(share) and case.dtype == "float32" and beyond

    return _pivot(computing, keep, ("op", "n"))


def _plain_op(share: PeakShare) -> bool:
    case = share.case.case
    return case.op != "matmul" and case.variant is None and list(case.params) == ["n"]


def _widths(analyses: Sequence[Analysis]) -> str:
    return _pivot(analyses, lambda point: "columns" in point.case.case.params, ("op", "n", "columns", "dtype"))


def _shapes(analyses: Sequence[Analysis]) -> str:
    def keep(share: PeakShare) -> bool:
        return share.case.case.op == "matmul" and len(share.case.case.params) > 1

    return _pivot(analyses, keep, ("op", "n", "shape", "dtype"))


def _dtypes(analyses: Sequence[Analysis]) -> str:
    def keep(share: PeakShare) -> bool:
        case = share.case.case
        return case.dtype != "float32" and (
            _plain_op(share) or (case.op == "matmul" and list(case.params) == ["n"])
        )

    return _pivot(analyses, keep, ("op", "dtype", "n"))


def _overheads(analyses: Sequence[Analysis]) -> str:
    rows = {overhead.id: overhead for analysis in analyses for overhead in overheads(analysis).rows}
    body = [
        (
            overhead.case.device_id, what(overhead),
            format_bytes(overhead.case.params["n"]) if overhead.case.params["n"] > 1 else "",
            time_text(overhead.time), time_interval_text(overhead.time) if overhead.time else "",
            transfer_rate(overhead).strip("-"),
        )
        for overhead in rows.values()
    ]  # fmt: skip
    pools = [
        f"{pool.op.case.device_id}: {format_bytes(pool.allocate.case.params['n'])} from the pool take "
        f"{pool_share(pool)} of {pool.op.case.op} at 1 M elements."
        for analysis in analyses
        for pool in overheads(analysis).pools
    ]
    head = ("device", "what", "size", "time", "95 % interval", "rate")
    return "\n\n".join([*dict.fromkeys(pools), _table(head, body)]) if body else NOTHING


_BLOCKS: dict[str, Callable[[Sequence[Analysis]], str]] = {
    "peaks": _peaks, "matmul": _matmul, "shapes": _shapes, "ladder": _ladder, "memory": _memory, "rows": _widths,
    "dtypes": _dtypes, "overheads": _overheads,
}  # fmt: skip


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or a sentence if nothing was measured."""
    if not body:
        return NOTHING
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
