"""The roofline: the roofs of each piece of hardware, and how near every case with resident data comes to them."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.case import beside_size
from gpubench.model.machine import WRITE_ALLOCATE
from gpubench.report.analysis.roofline import measures_roofs
from gpubench.report.analysis.types import Analysis, CaseResult, Roof, RoofShare
from gpubench.report.formats._document import Cell, Column, Section, Table, Tone, cells, printable
from gpubench.report.formats._names import FORMS, devices_text, size_text
from gpubench.report.formats._numbers import legend as marks_legend
from gpubench.report.formats._numbers import mark, share_text
from gpubench.units import format_bytes, format_rate

TITLE = "Roofline: share of what the hardware was measured to do"
HINT = "gpubench run --ops roofline"
_MEANING = (
    "Measured, in this run: memory by copy, computing by matmul. A case with i FLOP per byte can reach the lower of "
    "the two; GB/s or FLOP/s names the one that limits it. GB/s are payload: each input read once, the output written "
    "once."
)
_LARGEST = "The largest size of each op; all sizes: --sections roofline or --format markdown."
_WEAK = (
    "Left out: cases below a roof of small sizes alone (*), which is none yet; --sections roofline has them, and "
    f"{HINT} measures the roofs."
)
_TRAFFIC = (
    "traffic: of that copy; a CPU reads each line before it writes it, so half as much again as the payload"
)
_SMALL = "* of small sizes: no copy left the caches, or no matmul had sides of 2048 (on a CPU 512)"
_CACHE = "c: in cache, as far as the size tells; memory is no limit then"
_WALL = "w: wall time, without the device's clock"
_DERIVED = "d: derived from wall times, the device has no clock"
_LIBRARY = "x lib: device time of the vendor library's case / of this one"
GOOD, BAD = 0.9, 0.5


def roofline_section(analysis: Analysis, *, full: bool) -> Section:
    """`full`: every size; else the largest of each op, device and form."""
    found = analysis.roofline
    measured = [roof for roof in found.roofs if roof.bytes_per_s is not None or roof.flops_per_s is not None]
    if not measured:
        hint = (f"not measured: {HINT}",) if found.rows else ()
        return Section(key="roofline", title=TITLE, lines=hint, folded=True)
    full = full or measures_roofs(analysis.run)
    rows = list(found.rows) if full else [row for row in largest(found.rows) if _tells(row, found.rows)]
    kept = [row for row in rows if full or not row.weak_roof or _on_a_ladder(row, found.rows)]
    weak = len(kept) < len(rows)
    rows = kept
    dtypes = dict.fromkeys(row.case.case.dtype for row in rows)
    tables = [_roofs_table(analysis, measured)]
    tables += [_table(dtype, [row for row in rows if row.case.case.dtype == dtype]) for dtype in dtypes]
    notes = [_WEAK] if weak else []
    notes += [_LARGEST] if rows and not full and len(largest(found.rows)) < len(found.rows) else []
    lines = (_MEANING, *_missing(found.roofs), *notes)
    return Section(key="roofline", title=TITLE, lines=lines, tables=tuple(tables), folded=True)


def largest(rows: Sequence[RoofShare]) -> list[RoofShare]:
    """Of each op, dtype, device and form the rows of its largest size."""
    most: dict[tuple[str, ...], int] = {}
    for row in rows:
        most[_kind(row)] = max(most.get(_kind(row), 0), row.case.case.params.get("n", 0))
    return [row for row in rows if row.case.case.params.get("n", 0) == most[_kind(row)]]


def _tells(row: RoofShare, rows: Sequence[RoofShare]) -> bool:
    return row.share is not None or _on_a_ladder(row, rows)


def _on_a_ladder(row: RoofShare, rows: Sequence[RoofShare]) -> bool:
    """Whether named variants of this op, dtype and device were measured. They were asked for and have no row
    elsewhere, and a rung says something beside the others only: all of them are shown, whatever the roof."""
    return any(other.case.case.variant is not None and _kind(other)[:3] == _kind(row)[:3] for other in rows)


def rate(row: RoofShare) -> str:
    """`4.05 TB/s` or `51.2 TFLOP/s`: that of the roof which limits the case."""
    compute = row.bound == "compute" or (row.bound is None and row.case.flops > 4 * row.case.bytes)
    amount = row.case.flops if compute else row.case.bytes
    return format_rate(amount / row.seconds, "FLOP/s" if compute else "B/s")


def form_text(row: CaseResult) -> str:
    """`lib`, `tuned`, or with a variant `tuned naive`."""
    return FORMS[row.case.form] + (f" {row.case.variant}" if row.case.variant else "")


def roof_texts(roof: Roof) -> tuple[str, str, str]:
    """Memory roof, compute roof and ridge point; `-` for what was not measured."""
    memory = "-" if roof.bytes_per_s is None else format_rate(roof.bytes_per_s, "B/s")
    compute = "-" if roof.flops_per_s is None else format_rate(roof.flops_per_s, "FLOP/s")
    return memory, compute, "-" if roof.ridge is None else f"{roof.ridge:.3g}"


def _kind(row: RoofShare) -> tuple[str, ...]:
    case = row.case.case
    return (case.op, case.dtype, case.device_id, case.form_id)


def _missing(roofs: Sequence[Roof]) -> list[str]:
    """What has no roof, and the command that measures it."""
    words = {(True, False): "memory roof", (False, True): "compute roof", (True, True): "roofs"}
    lacks: dict[str, list[Roof]] = {}
    for roof in roofs:
        lacking = (roof.bytes_per_s is None, roof.flops_per_s is None)
        if any(lacking):
            lacks.setdefault(words[lacking], []).append(roof)
    return [
        f"{name} not measured on {', '.join(_place(roof) for roof in found)}: {HINT} --dtypes "
        + ",".join(dict.fromkeys(roof.dtype for roof in found))
        for name, found in lacks.items()
    ]


def _place(roof: Roof) -> str:
    return f"{'+'.join(roof.device_ids)} {roof.dtype}"


def _roofs_table(analysis: Analysis, roofs: Sequence[Roof]) -> Table:
    copied = any(roof.copy is not None for roof in roofs)
    columns = (
        Column("device"), Column("dtype"), Column("memory", right=True),
        *([Column("traffic", right=True, rank=2)] if copied else []), Column("compute", right=True),
        Column("ridge, FLOP/byte", right=True, rank=1), Column("by copy of", right=True, rank=4),
        Column("by matmul", right=True, rank=3),
    )  # fmt: skip
    body = []
    for roof in roofs:
        size = format_bytes(roof.copy.bytes) if roof.copy else "-"
        side = size_text(roof.matmul) if roof.matmul else "-"
        memory, compute, ridge = roof_texts(roof)
        memory += (mark(roof.copy.label) if roof.copy else "") + (" *" if roof.cache_sized else "")
        compute += (mark(roof.matmul.label) if roof.matmul else "") + (" *" if roof.small_matmul else "")
        traffic = [_traffic(roof)] if copied else []
        body.append(cells("+".join(roof.device_ids), roof.dtype, memory, *traffic, compute, ridge, size, side))
    devices = list(dict.fromkeys(device_id for roof in roofs for device_id in roof.device_ids))
    small = any(roof.cache_sized or roof.small_matmul for roof in roofs)
    labels = {row.label for roof in roofs for row in (roof.copy, roof.matmul) if row is not None}
    words = [
        "ridge: from so many FLOP per byte on, computing is the limit",
        _TRAFFIC if any(roof.copy is not None and roof.copy.device_kind == "cpu" for roof in roofs) else "",
        _SMALL if small else "",
        marks_legend(labels),
    ]
    legend = "; ".join(filter(None, words))
    return Table(
        columns, tuple(body), title="Roofs", note=printable(devices_text(analysis, devices)), legend=legend
    )


def _traffic(roof: Roof) -> str:
    """What the copy behind the memory roof moves with what its device reads besides."""
    if roof.copy is None or roof.bytes_per_s is None:
        return "-"
    return format_rate(roof.bytes_per_s * (WRITE_ALLOCATE if roof.copy.device_kind == "cpu" else 1.0), "B/s")


def _table(dtype: str, rows: Sequence[RoofShare]) -> Table:
    library = any(row.to_library is not None for row in rows)
    columns = (
        Column("op"), Column("n", right=True), Column("device"), Column("form"), Column("rate", right=True),
        Column("of roof", right=True), Column("bound", rank=2),
        *([Column("x lib", right=True, rank=1)] if library else []),
    )  # fmt: skip
    body = []
    before: tuple[str, str] = ("", "")
    for row in sorted(rows, key=_order):
        head = (row.case.case.op, size_text(row.case))
        shown = [head[0] if head[0] != before[0] else "", head[1] if head != before else ""]
        before = head
        ratio = "-" if row.to_library is None else f"{row.to_library:.2f}"
        body.append(
            cells(
                *shown, row.case.case.device_id, form_text(row.case), rate(row) + mark(row.case.label), _of_roof(row),
                row.bound or "-", *([ratio] if library else []),
            )
        )  # fmt: skip
    return Table(columns, tuple(body), title=dtype, legend=_legend(rows, library=library))


def _order(row: RoofShare) -> tuple[object, ...]:
    case = row.case.case
    rest = beside_size(case.params)
    return (case.op, case.params.get("n", 0), rest, row.case.device_kind != "cpu", case.device_id, case.form_id)


def _of_roof(row: RoofShare) -> Cell:
    if row.share is None:
        return Cell("-")
    marks = (" c" if row.in_cache else "") + (" w" if _by_wall(row) else " d" if row.clock == "derived" else "")
    tone: Tone = (
        "muted" if row.in_cache else "good" if row.share >= GOOD else "bad" if row.share < BAD else "plain"
    )
    return Cell(share_text(row.share) + marks, tone)


def _by_wall(row: RoofShare) -> bool:
    return row.clock == "wall" and row.case.device_kind != "cpu"


def _legend(rows: Sequence[RoofShare], *, library: bool) -> str:
    parts = [_CACHE] if any(row.in_cache for row in rows) else []
    parts += [_WALL] if any(_by_wall(row) and row.share is not None for row in rows) else []
    parts += [_DERIVED] if any(row.clock == "derived" and row.share is not None for row in rows) else []
    parts += [_LIBRARY] if library else []
    marks = marks_legend({row.case.label for row in rows})
    return "; ".join([*parts, *([marks] if marks else [])])
