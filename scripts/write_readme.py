"""Write what pages show of real results: text blocks and tables. Run by `make docs`.

A block stands between `<!-- gpubench report ARGUMENTS -->` (or `advise`) and `<!-- end -->` and is what that command
prints. Between `<!-- rates FILE OP,... -->` and `<!-- end -->` stand the device rates of one op by size, or of several
at their largest, and the command that measured them.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from gpubench import store
from gpubench.analysis.analyse import analyse
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.roofline import RoofShare
from gpubench.units import format_size

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "advice.md")
_BLOCK = re.compile(
    r"(<!-- gpubench (?P<command>report|advise) (?P<arguments>[^\n]*) -->\n)```\n.*?```\n<!-- end -->",
    re.DOTALL,
)
_RATES = re.compile(
    r"(<!-- rates (?P<file>\S+) (?P<ops>\S+) -->\n).*?<!-- end -->",
    re.DOTALL,
)
# Kernels by their language, in the order of the rows.
KERNELS = {
    ("wgpu", "tuned"): "WGSL through wgpu", ("cupy", "tuned"): "CUDA through CuPy, tuned",
    ("cupy", "library"): "CuPy as one writes it",
}  # fmt: skip
LIBRARY = "cuBLAS, as CuPy calls it"


def page(text: str) -> str:
    """A page with its blocks printed anew."""
    text = _BLOCK.sub(
        lambda found: f"{found[1]}```\n{_printed(found['command'], found['arguments'])}```\n<!-- end -->", text
    )
    return _RATES.sub(lambda found: f"{found[1]}{rates(found['file'], found['ops'])}\n<!-- end -->", text)


def rates(file: str, ops: str) -> str:
    """The device rates of these ops in one result, by the largest size of each; of a single op by all sizes."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.performance_page import command

    run = store.load(ROOT / file)
    names = ops.split(",")
    rows = [row for row in analyse(run).roofline.rows if row.case.case.op in names and _kernel(row)]
    one = len(names) == 1
    return "\n".join([f"`{command(run.argv)}`", "", *(_by_size(rows) if one else _by_op(rows, names))])


def _by_op(rows: list[RoofShare], names: list[str]) -> list[str]:
    """TB/s: a column for each op, a row for each kernel."""
    largest = {op: max(_n(row.case) for row in rows if row.case.case.op == op) for op in names}
    found = {
        (_kernel(row), row.case.case.op): f"{row.case.bytes / row.time_s / 1e12:.2f}"
        for row in rows
        if _n(row.case) == largest[row.case.case.op]
    }
    usual = max(largest.values())
    heads = [op if largest[op] == usual else f"{op} {largest[op]}²" for op in names]
    body = [(kernel, *(found.get((kernel, op), "") for op in names)) for kernel in KERNELS.values()]
    return _table((f"TB/s, n = {format_size(usual, table=True)}", *heads), body)


def _by_size(rows: list[RoofShare]) -> list[str]:
    """TFLOP/s: a column for each size; WGSL, the vendor library, and their ratio."""
    ours = {_n(row.case): row for row in rows if row.case.case.device_id.startswith("wgpu")}
    theirs = {_n(row.case): row for row in rows if row.case.case.device_id.startswith("cupy")}
    sizes = sorted(ours.keys() & theirs.keys())

    def line(name: str, text: Callable[[int], str]) -> tuple[str, ...]:
        return (name, *map(text, sizes))

    return _table(
        line("TFLOP/s, n =", str),
        [
            line(KERNELS["wgpu", "tuned"], lambda n: f"{ours[n].case.flops / ours[n].time_s / 1e12:.1f}"),
            line(LIBRARY, lambda n: f"{theirs[n].case.flops / theirs[n].time_s / 1e12:.1f}"),
            line("ratio", lambda n: f"{theirs[n].time_s / ours[n].time_s:.2f}"),
        ],
    )


def _kernel(row: RoofShare) -> str | None:
    case = row.case.case
    return None if case.variant else KERNELS.get((case.device_id.partition(":")[0], case.form))


def _n(row: CaseResult) -> int:
    return row.case.params["n"]


def _table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *body]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _printed(command: str, arguments: str) -> str:
    """What the command prints with these arguments; files are named from the root."""
    import contextlib
    import os

    from gpubench.cli import main

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(out):
            plain = ["--format", "plain"] if command == "report" else []
            code = main([command, *shlex.split(arguments), *plain])
    finally:
        os.chdir(before)
    if code:
        raise SystemExit(f"gpubench {command} {arguments}: exit {code}")
    out.flush()
    data = out.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode()


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(", ".join(str(file.relative_to(ROOT)) for file in PAGES) + "\n")
