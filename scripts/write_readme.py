"""Write the parts of pages that show real results: text blocks, sentences and tables. `make docs` runs it.

python scripts/write_readme.py [--default FILE] [--claims FILE] [--stages FILE]

A block between `<!-- gpubench report ARGUMENTS -->` (or `advise`) and `<!-- end -->` is the output of that
command. A block between `<!-- words NAME -->` and `<!-- end -->` has sentences about the default run. The block
with the answer names the file of that run.

The script also draws the map of the default run, and a chart of the stages of a workload from the result that
docs/workloads.md names. A FILE replaces the result that the pages showed in this role. With --default the
screenshots of the HTML report are made again (scripts/picture_report.py).
"""

from __future__ import annotations

import argparse
import io
import math
import re
import shlex
import sys
from pathlib import Path

from gpubench.analysis.analyse import analyse
from gpubench.analysis.answer import AnswerRow, MachineAnswer, answer
from gpubench.analysis.thresholds import ALWAYS, cell_text, size_text
from gpubench.base.units import list_words
from gpubench.report import plots
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.answer_text import factor_text
from gpubench.result import store
from gpubench.result.case import WAITED

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
WORKLOADS = ROOT / "docs" / "workloads.md"
CLAIMS = ROOT / "docs" / "claims.md"
PAGES = (
    README,
    *(ROOT / "docs" / name for name in ("index.md", "tutorial.md", "advice.md")),
    CLAIMS,
    WORKLOADS,
)
MAP = ROOT / "docs" / "images" / "map.svg"
STAGES = ROOT / "docs" / "images" / "stages.svg"
# Patterns of the places at which the pages name the result of each role.
ROLES = {
    "default": r"(<!-- gpubench report )(\S+)( --sections answer -->)",
    "claims": r"(<!-- gpubench report )(\S+)((?: \S+)? --claims builtin)",
    "stages": r"(<!-- gpubench report )(\S+)( [^\n]*--sections stages -->)",
}
_BLOCK = re.compile(
    r"(<!-- gpubench (?P<command>report|advise) (?P<arguments>[^\n]*) -->\n)```\n.*?```\n<!-- end -->",
    re.DOTALL,
)
_WORDS = re.compile(r"(<!-- words (?P<name>\S+) -->\n).*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """Return the text of a page with new blocks."""
    text = _BLOCK.sub(
        lambda match: f"{match[1]}```\n{_print(match['command'], match['arguments'])}```\n<!-- end -->", text
    )
    return _WORDS.sub(lambda match: f"{match[1]}{words(match['name'])}\n<!-- end -->", text)


def default_result() -> Path:
    """Return the path of the result whose answer README shows."""
    return _find_role(README, "default")


def _find_role(file: Path, role: str) -> Path:
    place = re.search(ROLES[role], file.read_text(encoding="utf-8"))
    if place is None:
        raise SystemExit(f"{file.name} names no result in the role {role}")
    return ROOT / place[2]


def stages_picture() -> bytes:
    """Return the chart of the workload whose stages docs/workloads.md shows."""
    # The name of the workload is the beginning of the table's filter.
    drawn = plots.plots(
        [analyse(store.load(_find_role(WORKLOADS, "stages")))], "svg", RenderOptions(sections=("stages",))
    )
    name_match = re.search(r"--filter (\w+)[^\n]*--sections stages", WORKLOADS.read_text(encoding="utf-8"))
    assert name_match is not None
    return next(picture for name, picture in drawn.items() if name_match[1] in name)


def words(name: str) -> str:
    """Return sentences about the default run in README.

    `lead` explains what the picture shows, and `reading` explains how to read the table.
    """
    analysis = analyse(store.load(default_result()))
    return _fill((_lead if name == "lead" else _reading)(answer(analysis)))


def _lead(shown: MachineAnswer) -> str:
    gains = [line.cells[WAITED].gain for line in shown.rows]
    ratios = sorted(gain.ratio for gain in gains if gain is not None and gain.winner == "gpu")
    copied = [
        line.op for line in shown.rows if (gain := line.cells[ALWAYS].gain) is not None and gain.winner == "gpu"
    ]
    who = f"only {list_words(copied)}" if len(copied) <= 4 else f"{len(copied)} of them"
    still = f"{who} {'is' if len(copied) == 1 else 'are'}" if copied else "none of them is"
    faster = f"{len(ratios)} of {len(shown.rows)} ops" if len(ratios) < len(shown.rows) else "every op"
    most, least = (factor_text(ratio).removesuffix("x") for ratio in (ratios[-1], ratios[0]))
    return (
        "Each lane is an operation (op), from small arrays on its left to large ones on its right. Orange: the CPU is "
        "faster. Blue: the GPU is faster. The black mark is where this changes. **In the left half the data is on the "
        f"GPU already: {faster} is faster on the GPU at its largest size, {least} to {most} times. In the right half "
        f"every call copies its data: {still} faster on the GPU.**"
    )


def _reading(shown: MachineAnswer) -> str:
    thresholds = [line for line in shown.rows if line.cells[WAITED].kind == "at"]
    thresholds = [line for line in thresholds if line.size_unit == "elements"] or thresholds
    best = min(thresholds, key=_width, default=None)
    rough = next((line for line in thresholds if line is not best and not line.cells[WAITED].sharp), None)
    none = next((line for line in shown.rows if line.cells[ALWAYS].kind == "no-size"), None)
    sentences = []
    if best is not None:
        cell, side = best.cells[WAITED], best.size_unit == "side"
        of = (
            "is the side of a square matrix"
            if side
            else "counts the elements of one array (K is 1024, M is 1024 K)"
        )
        off = "1.5 times smaller or larger at most" if cell.sharp else "up to 2 times smaller or larger"
        gain = cell.gain
        top = (
            f"; at {size_text(gain.n, best.size_unit)} the GPU is {factor_text(gain.ratio)[:-1]} times as fast"
            if gain is not None
            else ""
        )
        sentences.append(
            f"`{best.op}` is faster on the GPU from `{cell_text(cell, best.size_unit)}` on, *if the data "
            f"is already there*{top}. That number {of}. The true one is {off}."
        )
    if best is not None and best.cells[WAITED].sharp and rough is not None:
        sentences.append(
            f"`~` is less exact: `{cell_text(rough.cells[WAITED], rough.size_unit)}` may be off by 2 times."
        )
    if none is not None:
        gain = none.cells[ALWAYS].gain
        top = f", up to {size_text(gain.n, none.size_unit)}" if gain else ""
        sentences.append(
            f"**Copied at every call, `{none.op}` has `no size` at which the GPU wins{top}**: to copy the bytes takes "
            "longer than to compute with them."
        )
    for line in shown.rows:
        cell = line.cells[WAITED]
        if cell.kind == "range":
            text = f"`{cell_text(cell, line.size_unit)}`: the GPU is faster from a size on that lies between these two."
            return " ".join([*sentences, text])
    return " ".join(sentences)


def _width(line: AnswerRow) -> float:
    cell = line.cells[WAITED]
    return math.inf if not cell.low or not cell.high else cell.high / cell.low


def _fill(text: str) -> str:
    """Wrap the text to the line width of the pages."""
    import textwrap

    return "\n".join(textwrap.wrap(text, 128, break_long_words=False, break_on_hyphens=False))


def _print(command: str, arguments: str) -> str:
    """Return the output of the command with these arguments, whose paths are relative to the repository."""
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


def _take(roles: dict[str, str | None]) -> None:
    """Replace the names of results in the pages by the names in `roles`."""
    for file in (README, CLAIMS, WORKLOADS):
        text = file.read_text(encoding="utf-8")
        for role, name in roles.items():
            if name is not None:
                place = Path(name).resolve().relative_to(ROOT).as_posix()
                text = re.sub(ROLES[role], rf"\g<1>{place}\g<3>", text)
        file.write_text(text, encoding="utf-8")


def main() -> None:
    """Write all pages, with the results that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="FILE")
    roles = vars(parser.parse_args())
    _take(roles)
    for file in PAGES:
        file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
    MAP.write_bytes(
        plots.plots([analyse(store.load(default_result()))], "svg", RenderOptions(sections=("map",)))["map.svg"]
    )
    STAGES.write_bytes(stages_picture())
    sys.stdout.write(", ".join(str(file.relative_to(ROOT)) for file in PAGES) + "\n")
    if roles["default"] is not None:
        sys.path.insert(0, str(ROOT))
        from scripts import picture_report

        picture_report.main(default_result())


if __name__ == "__main__":
    main()
