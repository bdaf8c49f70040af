"""Golden reports: `python -m tests.golden` writes them anew; look at the difference before committing it."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.base.plugins import sections, wings
from gpubench.report import analyse_runs, draw_report
from gpubench.report.comparison import render as draw_comparison
from gpubench.report.layout import RenderOptions
from gpubench.result.run import Run
from tests.unit.report.answer_runs import named_run, no_gpu_run, one_op_run, suite_run
from tests.unit.report.comparisons import COMPARISONS
from tests.unit.report.parts import PARTS
from tests.unit.report.samples import (
    assignment_run,
    cpu_run,
    full_run,
    hybrid_run,
    interrupted_run,
    software_run,
    stages_run,
    tool_run,
)
from tests.unit.report.screens import BY_DEVICE, SCREENS

FOLDER = Path(__file__).parent
NETWORKS = FOLDER.parent / "unit" / "workloads" / "golden"
SUFFIXES = {"table": "table.txt", "plain": "txt", "markdown": "md", "json": "json", "csv": "csv"}
# What other programs read, of a run that is short enough to be looked at.
TOOL_SUFFIXES = {
    "jsonl": "jsonl", "gha-smaller": "gha-smaller.json", "gha-bigger": "gha-bigger.json", "bmf": "bmf.json",
    "pytest-benchmark": "pytest-benchmark.json", "hyperfine": "hyperfine.json",
    "google-benchmark": "google-benchmark.json", "go": "go.txt",
}  # fmt: skip
RUNS = {
    "full": full_run, "cpu-only": cpu_run, "software-only": software_run, "interrupted": interrupted_run,
    "tools": tool_run, "hybrid": hybrid_run,
}  # fmt: skip
# One section of a network alone.
SECTIONS = {"stages": (stages_run, "stages"), "assignment": (assignment_run, "hybrid")}
# The final screen alone; many more of it, each of a small run, stand in one file.
ANSWERS = {
    "answer-suite": suite_run, "answer-one-op": one_op_run, "answer-named": named_run, "answer-no-gpu": no_gpu_run,
}  # fmt: skip
# Every format of the full run; of the others what people read.
CASES = [("full", name) for name in SUFFIXES]
CASES += [(run, "plain") for run in ("cpu-only", "software-only", "interrupted", "hybrid")]
CASES += [("tools", name) for name in TOOL_SUFFIXES]
CASES += [(screen, "plain") for screen in ANSWERS] + [("answer-suite", "markdown")]
NETWORK_CASES = [("stages", name) for name in ("table", "plain", "markdown", "json", "csv")]
NETWORK_CASES += [("assignment", name) for name in ("plain", "markdown", "json", "csv")]


# What a wing's own samples draw: their `TEXTS`, by file of the folder `golden` beside them.
WINGS = [
    name
    for name in ("tests.unit.multi.samples", "tests.unit.fleet.samples")
    if importlib.util.find_spec(name.rpartition(".")[0])
]


def wing_texts() -> dict[Path, Callable[[], str]]:
    modules = [importlib.import_module(name) for name in WINGS]
    return {
        Path(str(module.__file__)).with_name("golden") / name: text
        for module in modules for name, text in module.TEXTS.items()
    }  # fmt: skip


def path(run: str, format: str) -> Path:
    return (NETWORKS if run in SECTIONS else FOLDER) / f"{run}.{(SUFFIXES | TOOL_SUFFIXES)[format]}"


def text(run: str, format: str) -> str:
    if run in ANSWERS:
        return draw_report(_analyses(ANSWERS[run]), format, RenderOptions(sections=("answer",)))
    if run in SECTIONS:
        make, section = SECTIONS[run]
        return draw_report(_analyses(make), format, RenderOptions(sections=(section,)))
    found = draw_report(_analyses(RUNS[run]), format)
    return _without_wings(found) if (run, format) == ("full", "json") else found


def _without_wings(document: str) -> str:
    """The rows of the core: those of a wing are there with it alone, and empty here."""
    found = msgspec.json.decode(document)
    for rows in sections.all_rows():
        if rows.kind.__module__.split(".")[1] in wings.OWN:
            found.pop(rows.name.partition(".")[0], None)
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


@functools.cache
def _analyses(make: Callable[[], Run | list[Run] | list[Analysis]]) -> list[Analysis]:
    made = make()
    if not isinstance(made, list):
        made = [made]
    return made if isinstance(made[0], Analysis) else analyse_runs(made)


HEAD = "\n======== "


def screen(name: str) -> str:
    """The final screen of one of the small runs."""
    options = RenderOptions(sections=("answer",), by_device=name in BY_DEVICE)
    return draw_report(analyse_runs([(SCREENS | BY_DEVICE)[name]()]), "plain", options)


def part(name: str) -> str:
    """One section of one of the small runs."""
    make, format, look = PARTS[name]
    return draw_report(_analyses(make), format, RenderOptions(**look))


def comparison(name: str) -> str:
    make, format, look = COMPARISONS[name]
    return draw_comparison(make(), format, RenderOptions(**look))


# Files of many small texts: what draws each, and their names.
COLLECTIONS = {
    "screens": (screen, (*SCREENS, *BY_DEVICE)),
    "parts": (part, (*PARTS,)),
    "comparisons": (comparison, (*COMPARISONS,)),
}
SMALL = [(file, name) for file, (_, names) in COLLECTIONS.items() for name in names]


def small(file: str, name: str) -> str:
    return COLLECTIONS[file][0](name)


@functools.cache
def stored(file: str) -> dict[str, str]:
    """What such a file has for each name."""
    texts = f"\n{(FOLDER / f'{file}.txt').read_text(encoding='utf-8')}".split(HEAD)[1:]
    return {name: text for name, _, text in (each.partition("\n") for each in texts)}


def write_small() -> None:
    """Draw them all anew."""
    for file, (draw, names) in COLLECTIONS.items():
        text = "".join(f"{HEAD}{name}\n{draw(name)}" for name in names)
        (FOLDER / f"{file}.txt").write_text(text[1:], encoding="utf-8", newline="\n")
