"""Golden reports: `python -m tests.golden` writes them anew; look at the difference before committing it."""

import functools
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gpubench.analysis.advice import answer as advise
from gpubench.analysis.analyse import Analysis, machine_runs
from gpubench.analysis.contenders import Key
from gpubench.base.plugins import sections, wings
from gpubench.compare.two_runs import noise
from gpubench.report import analyse_runs, charts, draw_report
from gpubench.report import screen as final_screen
from gpubench.report.advice import render as draw_advice
from gpubench.report.comparison import render as draw_comparison
from gpubench.report.comparison import render_noise
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set, draw_spec
from gpubench.report.renderers import html
from gpubench.report.sections.machines import history_chart
from gpubench.report.sections.map import lane_specs, map_picture, map_view, overlay_view
from gpubench.result.case import QUEUED
from gpubench.result.run import Run, RunWarning
from tests.unit.report.answer_runs import (
    ALWAYS,
    BY_DEVICE,
    ENDS,
    LOSES,
    SCREENS,
    SECOND,
    WAITED,
    WINS,
    WRITTEN,
    answer_run,
    beside,
    function_run,
    named_run,
    no_gpu_run,
    one_op_run,
    op_case,
    op_rows,
    seconds,
    suite_run,
    two_backends,
)
from tests.unit.report.builders import CPU, GPU, NETWORK, case, failed, measured, run_of
from tests.unit.report.parts import (
    CONTEST,
    HERE,
    PARTS,
    SHARED,
    SMALL_PEAKS,
    THERE,
    contest,
    days_of,
    made_for_peaks,
)
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
from tests.unit.report.sides import CASES as SIDES
from tests.unit.report.sides import COMPARISONS, pair, with_first
from tests.unit.report.test_decisions import absent, compiled, crossing_once, gpu_alone, on_host, twins

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


def network_run() -> Run:
    """Networks whose sizes are rows or tokens."""
    return answer_run([row for name in NETWORK for row in op_rows(name, {WAITED: {16: 0.5, 4096: 3.0}})])


# One section of networks alone.
SECTIONS = {
    "stages": (stages_run, "stages"),
    "assignment": (assignment_run, "hybrid"),
    "answer": (network_run, "answer"),
}
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
NETWORK_CASES += [("answer", "plain")]


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
    make, format, look = PARTS[name]
    return draw_report(_analyses(make), format, RenderOptions(**look))


def comparison(name: str) -> str:
    make, format, look = COMPARISONS[name]
    return draw_comparison(make(), format, RenderOptions(**look))


def as_lines(*parts: Any) -> str:
    """Specs as JSON, a line for each: one without its parts, then those; a data set as its name and its rows."""

    def lines(part: Any) -> list[Any]:
        if not isinstance(part, dict):
            return [part]
        inner = [*part.get("hconcat", ()), *part.get("layer", ()), *part.get("datasets", {}).items()]
        rest = {key: part[key] for key in part if key not in ("hconcat", "layer", "datasets", "$schema")}
        return [rest, *(line for each in inner for line in lines(each))]

    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for part in parts for line in lines(part))


def chart_of(run: Run, chart_id: str) -> str:
    """A chart with the data of its first picture."""
    (shown,) = [
        chart for chart in chart_set(*analyse_runs([run]), RenderOptions()).charts if chart.id == chart_id
    ]
    return as_lines(draw_spec(shown, next(iter(shown.rows)), ["a line"]) | {"config": shown.caption})


def two_gpus() -> Any:
    """The map of one op on two GPUs, in two situations on one of them."""
    first = {WAITED: {1024: 0.2, 65536: 5.0, 131072: 40.0}, ALWAYS: dict.fromkeys(ENDS, 0.2)}
    run = two_backends(first, {WAITED: {1024: 1.0, 131072: 3.0}}, device=SECOND)
    return map_view(*analyse_runs([run]))


def history(*seconds: float) -> str:
    return as_lines(history_chart(*machine_runs(analyse_runs(days_of(seconds))), "A").spec)  # type: ignore[union-attr]


# What charts are drawn from.
CHARTS = {
    **{name: (lambda name=name: chart_of(HERE, name)) for name in ("time", "speedup")}, "hybrid": lambda: chart_of(hybrid_run(), "hybrid"),
    "roofline": lambda: chart_of(made_for_peaks(asked=False), "roofline"), "a roofline of small sizes": lambda: chart_of(run_of(SMALL_PEAKS, devices=SHARED), "roofline"),
    "a map": lambda: as_lines(map_picture(two_gpus())), "lanes": lambda: as_lines(lane_specs(two_gpus())[0]),
    "maps of two machines": lambda: as_lines(map_picture(overlay_view(analyse_runs([HERE, THERE]), ["A: here", "B: there"]))),
    "a history": lambda: history(*[1e-3] * 6, *[1.3e-3] * 6), "a short history": lambda: history(1e-3, 1.01e-3),
    "themes": lambda: as_lines(charts.theme(), charts.theme(dark=True), charts.page_colors()),
}  # fmt: skip
# What of a page is packed, drawn or of style.
OTHER = re.compile(r"(?s)<style>.*?</style>|(<script[^>]*>).*?</script>|<svg.*?</svg>|'sha256-[^']*'|(?<=Written by gpubench )\S+")  # fmt: skip
PAGES = {name: (lambda make=make: OTHER.sub(r"\1", make())) for name, make in {
    "of a run": lambda: draw_report(_analyses(tool_run), "html"), "in a notebook": lambda: html.notebook(_analyses(one_op_run)[0]),
    "of three machines": lambda: draw_report(analyse_runs([HERE, THERE, *days_of((1e-3, 2e-3))[1:]]), "html"),
    "of noise": lambda: render_noise(noise(with_first(pair(k=10, sigma=0.06, seed=3)[0], failed(SIDES[0]))), "html", RenderOptions()),
    "of little noise": lambda: render_noise(noise(pair(k=10, sigma=0.001)[0]), "html", RenderOptions()),
    "of a comparison": lambda: draw_comparison(COMPARISONS["a change"][0](), "html", RenderOptions()),
}.items()}  # fmt: skip


def view(run: Run) -> str:
    """The answer as a page has it, without the maps."""
    shown = html.views(*analyse_runs([run]), RenderOptions(full=True), "r0-", draws=False, maps=True)
    fields = [
        (key, json.dumps(msgspec.to_builtins(each[key]), ensure_ascii=False)) for each in shown for key in each
    ]
    return "".join(f"{key}: {text}\n" for key, text in fields)


VIEWS = {name: (lambda make=make: view(make())) for name, make in {
    "suite": suite_run, "one op": one_op_run, "named": named_run, "no GPU": no_gpu_run, "nothing": lambda: run_of([]),
    **{name: SCREENS[name] for name in (
        "thresholds by their certainty", "the CPU of both, copied of one", "a tie at the top", "half is unknown", "the sentence of 2 of 5",
        "wrong results", "no GPU, three sizes", "named, two ops at two sizes", "equal GPUs, and others", "interrupted")},
    "two backends": BY_DEVICE["two backends by device"],
    "dtypes that differ": lambda: answer_run([*op_rows("add", {WAITED: WINS}), *op_rows("add", {WAITED: LOSES}, dtype="float64")]),
}.items()}  # fmt: skip


def advice(run: Run, op: str, n: int, regime: str = QUEUED) -> str:
    given = advise([run], Key(op, "float32"), n, regime)
    looks = (("table", 120), ("table", 60), ("env", 80))
    return "".join(draw_advice(given, format, width) for format, width in looks)


ADVICE = {
    **{f"{op} at {n} of a {name}": (lambda make=make, op=op, n=n: advice(make(), op, n)) for name, make, op, sizes in (
        ("full run", full_run, "matmul", (32, 300, 1024, 2**14)), ("full run", full_run, "relu", (2**18,)), ("CPU", cpu_run, "matmul", (1024,)),
        ("split", hybrid_run, "matmul", (1024, 2000, 4096)), ("contest", lambda: CONTEST, "relu", (65536,))) for n in sizes},
    "one call": lambda: advice(full_run(), "matmul", 300, ALWAYS), "20 calls a copy": lambda: advice(full_run(), "matmul", 1024, "transfer-once-20"),
}  # fmt: skip
COMPILED, ON_GPU = ("numpy:0", "tuned", 1e-6, 1e-9), ("cupy:0", "tuned", 2e-5, 1e-10)


def function(*more: tuple[str, str, float, float], sizes: tuple[int, ...] = ()) -> Run:
    """A user's function, as it is written and by other code, in both situations; at sizes that were named, if any."""
    code = WRITTEN | {(device, implementation): seconds(*times) for device, implementation, *times in more}
    rows = {row.id: row for regime in (WAITED, ALWAYS) for row in function_run(code, regime).outcomes}
    kept = [row for row in rows.values() if not sizes or row.case.params["n"] in sizes]
    return answer_run(kept, named={"mine.f": list(sizes)} if sizes else None)


def screen_of(*runs: Run, width: int = 80, height: int = 24, saved: Sequence[str] = (), files: Sequence[str] = (), **look: Any) -> str:  # fmt: skip
    """The screen at the end of a run, or the lines of several."""
    return final_screen(
        analyse_runs(runs), "plain", RenderOptions(width=width, **look), height=height, saved=saved, files=files
    )


def sections_of(runs: Sequence[Run], *keys: str, format: str = "plain", width: int = 80, **look: Any) -> str:
    return draw_report(analyse_runs(runs), format, RenderOptions(sections=keys, width=width, **look))


# Texts that are longer than their place.
LONG = [
    RunWarning(code="unavailable", message=f"cupy: {'why ' * 30}", data={"backend": "cupy"}), RunWarning(code="unavailable", message="gone", data={"backend": "b" * 40}),
    RunWarning(code="software-device", message=f"wgpu:0 ({'llvmpipe' * 6} (LLVM 15)) is a software adapter, not a GPU: it was left out"),
]  # fmt: skip
LOST = [
    replace(failed(case("add", n, device="cupy:0"), detail="y" * 170), hint="z" * 170) for n in (7, 8, 1000)
]
ENDINGS = {
    **{f"{name} at {width}": (lambda name=name, width=width: screen_of((RUNS | ANSWERS)[name](), width=width, saved=[f"{name}.json", "a page.html"])) for name, width in (
        ("full", 60), ("full", 63), ("full", 64), ("full", 120), ("answer-suite", 60), ("answer-suite", 100), ("answer-one-op", 60), ("answer-one-op", 79), ("answer-named", 60),
        ("answer-no-gpu", 60), ("cpu-only", 100), ("interrupted", 60), ("hybrid", 80), ("tools", 60))},
    **{name: (lambda make=make: screen_of(make(), saved=["x.json"])) for name, make in {
        "a peaks run": lambda: made_for_peaks(asked=True), "a dtypes run": SCREENS["four dtypes"],
        "a function, compiled": lambda: function(COMPILED, ON_GPU), "a function, on PyTorch": lambda: function(("torch:cpu", "library", 1e-6, 5e-9)),
        "a function, at named sizes": lambda: function(COMPILED, ON_GPU, sizes=(2**12, 2**20)), "a function, faster on the GPU alone": lambda: function(("cupy:0", "tuned", 2e-5, 1e-11)),
    }.items()},
    "many rows": lambda: screen_of(SCREENS["four dtypes"](), height=20), "every row by its device": lambda: screen_of(SCREENS["equal GPUs, and others"](), by_device=True),
    "a wrong result at named sizes": lambda: screen_of(answer_run(
        [*op_rows("add", {WAITED: {1024: 2.0}, ALWAYS: {1024: 0.5}}), *op_rows("mul", {WAITED: {1024: 2.0}}), measured(op_case("gelu", 1024), 1e-3), failed(op_case("gelu", 1024, WAITED, "cupy:0"))],
        named={op: [1024] for op in ("add", "gelu", "mul")})),
    "several runs": lambda: screen_of(full_run(), named_run(), gpu_alone(), cpu_run(), HERE, THERE, run_of([]), one_op_run(), SCREENS["checked"](), width=70, files=[*(f"results/{i}.json" for i in range(6)), "b", "c", ""]),
    "a second GPU in one more situation": lambda: screen_of(
        answer_run([*op_rows("add", {WAITED: WINS}), *beside({WAITED: WINS, ALWAYS: LOSES}, "cupy:1")], devices=(CPU, GPU, SECOND)), cpu_run(), files=["a", "b"]),
    "a long name": lambda: screen_of(full_run(), cpu_run(), width=60, files=["x" * 50, "y"]), "long reasons": lambda: screen_of(replace(no_gpu_run(), warnings=LONG)),
    **{f"a GPU of a long name at {width}": (lambda width=width: screen_of(contest(gpu=replace(GPU, name="x" * 50)), width=width)) for width in (60, 80, 100, 120, 140)},
    **{f"long details in {name}": (lambda name=name: sections_of([run_of([*full_run().outcomes, *LOST], devices=(CPU, replace(GPU, name="n" * 40, driver="d" * 40)))],
                                                                 "skipped", "warnings", "environment", format=name, width=120)) for name in ("plain", "markdown")},
    "a history of long labels": lambda: sections_of(days_of([1e-3] * 6 + [1.3e-3] * 6, label="a label of more than thirty letters "), "history", width=120),
    "a map of a long label": lambda: sections_of([replace(one_op_run(), label="l" * 40)], "map", width=120),
    **{f"a map at {width}": (lambda width=width: sections_of([suite_run()], "map", "answer", width=width, ascii_only=width == 100)) for width in (60, 66, 100, 119)},
    "a map of two GPUs": lambda: sections_of([SCREENS["equal GPUs, and others"]()], "map"), "a map with wrong results": lambda: sections_of([SCREENS["wrong results"]()], "map"),
    "a map in Markdown": lambda: sections_of([SCREENS["a wrong size among right ones"]()], "map", format="markdown"),
}  # fmt: skip

LOOKS = (
    ("plain", {"width": 66, "by_device": True, "full": True}), ("markdown", {"time_unit": "us", "sort": "-speedup"}), ("csv", {"ascii_only": True}),
)  # fmt: skip
ODD = {
    f"{make.__name__} as {format}": lambda make=make, format=format, look=look: draw_report(analyse_runs([make()]), format, RenderOptions(**look))
    for make in (crossing_once, compiled, twins, gpu_alone, absent, on_host) for format, look in LOOKS
}  # fmt: skip

# Files of many small texts, by name.
COLLECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "screens": {name: functools.partial(screen, name) for name in (*SCREENS, *BY_DEVICE)}, "parts": {name: functools.partial(part, name) for name in PARTS},
    "comparisons": {name: functools.partial(comparison, name) for name in COMPARISONS},
    "charts": CHARTS, "pages": PAGES, "views": VIEWS, "advice": ADVICE, "endings": ENDINGS, "odd": ODD,
}  # fmt: skip
SMALL = [(file, name) for file, texts in COLLECTIONS.items() for name in texts]


@functools.cache
def stored(file: str) -> dict[str, str]:
    """What such a file has for each name."""
    texts = f"\n{(FOLDER / f'{file}.txt').read_text(encoding='utf-8')}".split(HEAD)[1:]
    return {name: text for name, _, text in (each.partition("\n") for each in texts)}


def write_small() -> None:
    for file, texts in COLLECTIONS.items():
        text = "".join(f"{HEAD}{name}\n{draw()}" for name, draw in texts.items())
        (FOLDER / f"{file}.txt").write_text(text[1:], encoding="utf-8", newline="\n")
