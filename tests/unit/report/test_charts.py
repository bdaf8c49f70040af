"""Charts, the map and histories: the numbers are those of the analysis, the specs compile and are drawn."""

import itertools
import json
import math
import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.analysis.analyse import analyse, machine_runs
from gpubench.analysis.winners import STRAIGHT, ratio_map
from gpubench.base import processes
from gpubench.base.errors import GpubenchError, InputError
from gpubench.base.plugins.sections import usual
from gpubench.report import analyse_runs, plots
from gpubench.report.layout import RenderOptions
from gpubench.report.plots import chart_set
from gpubench.report.sections.machines import history_chart, history_text
from gpubench.report.sections.map import map_picture, map_view, overlay_view
from tests.unit.report.answer_runs import (
    ALWAYS,
    SECOND,
    VECTOR,
    WAITED,
    answer_run,
    no_gpu_run,
    op_case,
    op_rows,
    rising,
    suite_run,
    two_backends,
)
from tests.unit.report.builders import CPU, GPU, curve, failed, run_of
from tests.unit.report.parts import THERE, of_machine
from tests.unit.report.samples import analysed, full_run, hybrid_run

SVG = "{http://www.w3.org/2000/svg}"


def validate(spec):
    import altair  # each worker of pytest would import it to collect this file

    altair.Root.validate(spec)


def charts(make, sections=None):
    found = chart_set(analysed(make)[0], RenderOptions(sections=sections or usual()))
    return {chart.id: chart for chart in found.charts}


def test_the_fastest_implementation_of_every_case_is_a_point_of_the_time_chart():
    points, fastest = [row for rows in charts(full_run)["time"].rows.values() for row in rows], {}
    for row in analysed(full_run)[0].cases:
        if row.time and row.case.group != "overhead" and not row.case.variant:
            key = (row.case.workload, row.case.regime_id, row.case.device_id)
            fastest[key] = min(fastest.get(key, row.time.estimate), row.time.estimate)
    assert sorted(row["value"] for row in points) == sorted(float(f"{s:.5g}") for s in fastest.values())
    assert all(row["low"] <= row["value"] <= row["high"] for row in points)


@pytest.mark.slow  # all at once, since what draws them takes a second to start
def test_every_spec_is_valid_and_draws_the_sides_the_machine_and_the_date():
    """Vega-Lite's schema allows the spec of every picture, which holds a mark for each row."""
    analyses, specs = [*analysed(full_run, hybrid_run), analyse(THERE)], []
    for analysis in analyses:
        for chart in chart_set(analysis, RenderOptions()).charts:
            validate(chart.spec)
            specs += [(chart.id, plots.draw_spec(chart, name)) for name in chart.rows]
    drawn = plots.plots(analyses, "svg", RenderOptions())
    for (chart_id, spec), (name, svg) in zip(specs, [*drawn.items()][-len(specs) :], strict=True):
        assert re.match(rf"(\d-)?{chart_id}-", name)
        assert len(ElementTree.fromstring(svg).findall(f".//{SVG}path")) >= len(spec["datasets"]["rows"]), name
    for name, content in drawn.items():
        said = "".join(ElementTree.fromstring(content).itertext())
        words = ("NumPy", "OpenBLAS", "2026-01-02", "Test CPU, 2 CPUs", "gpubench 0.")
        assert name[0].isdigit() or name == "machines.svg" or all(word in said for word in words), name
    assert "machines.svg" in drawn


@pytest.mark.slow
def test_pictures_of_both_formats_and_one_that_holds_the_map_and_all_charts():
    ops, rises = ("matmul", "f.größe", "f.grüße"), {64: 0.25, 256: 0.5, 1024: 4.0, 4096: 9.0}
    rising = analysed(lambda: run_of([row for op in ops for row in curve(rises, op=op)]))
    pictures = plots.plots(rising * 2, "svg", RenderOptions())
    again = {name: pictures.pop(name) for name in list(pictures) if name.startswith("2-")}
    assert {"speedup-matmul-float32.svg", "roofline-float32.svg"} <= {*pictures}
    assert {f"time-{op}-float32.svg" for op in ops} <= {*pictures}, "one file for each"
    for name in pictures.keys() - {"map.svg"}:  # gradients are numbered from the first map on
        assert again[f"2-{name}"] == pictures[name], "the same bytes again"
    for name, picture in plots.plots(rising, "png", RenderOptions(sections=["roofline"])).items():
        assert (name.partition("-")[0], picture[:4]) == ("roofline", b"\x89PNG")
        width = float(ElementTree.fromstring(pictures[name.replace(".png", ".svg")]).get("width"))
        assert int.from_bytes(picture[16:20], "big") == pytest.approx(2 * width, abs=2), "sharp on fine screens"
    whole = ElementTree.fromstring(plots.picture(rising, "svg", RenderOptions()))
    inner = whole.findall(f"{SVG}svg")
    assert len(inner) == len({name.split("-")[0] for name in pictures})
    assert "queued on the GPU" in "".join(inner[0].itertext())
    boxes = [[float(one.get(name)) for name in ("x", "y", "width", "height")] for one in inner]
    assert float(whole.get("height")) == max(y + height for _, y, _, height in boxes)
    for before, (x, y, _width, _) in itertools.pairwise(boxes):
        beside = x == before[0] + before[2] and y == before[1]
        assert beside or (x == 0 and y >= before[1] + before[3]), "no picture covers another"
    names = [one.get("id") for one in whole.iter() if one.get("id")]
    assert len(names) == len(set(names)), "no chart is clipped by another's frame"
    with pytest.raises(InputError, match="nothing to draw"):
        plots.picture(rising, "svg", RenderOptions(sections=["warnings"]))


@pytest.mark.slow
def test_run_writes_the_page_and_the_pictures_that_report_writes(gpubench, tmp_path):
    what = "--ops add --sizes 1k,4k --devices fake:cpu --quick --min-samples 3 --max-time 20ms"
    where = "-o page.html -o all.svg -o result.json --plots pictures"
    done = gpubench("run", *what.split(), *where.split(), status=0)
    assert "wrote 2 charts to pictures" in done.stderr
    assert gpubench("report", "result.json", "-o", "again.html", "--plots", "again", "--quiet").stderr == ""
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    for picture in (tmp_path / "pictures").iterdir():
        assert (tmp_path / "again" / picture.name).read_bytes() == picture.read_bytes()
    assert (tmp_path / "all.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("status", "output", "errors", "why"), [
    (None, "", "", "vl_convert did not answer within 80 s"),
    (0, "x", "", f"vl_convert gave no picture: {processes.foreign('x')}"),
    (0, "", "", "vl_convert gave no picture"), (7, "", "", "vl_convert exited with status 7"),
    (-6, "", f"first\n{'x' * 301}", f"vl_convert was ended by SIGABRT: {'x' * 300}"),
])  # fmt: skip
def test_what_becomes_of_the_child_that_draws_is_a_reason(monkeypatch, status, output, errors, why):
    asked = []
    ended = processes.Ended(status, output, errors, 0.1)
    monkeypatch.setattr(processes, "run", lambda *words, **options: asked.append((words[1], options)) or ended)
    with pytest.raises(GpubenchError) as caught:
        plots.results([("svg_to_png", ["<svg>"], {})] * 2)
    assert caught.value.why == why
    ((limit_s, options),) = asked
    assert (limit_s, options["most_output"], json.loads(options["stdin"])[0][0]) == (80.0, 2**28, "svg_to_png")


@pytest.mark.parametrize(
    ("wide", "places", "size"), [(640, [(0, 0), (640, 0), (0, 300)], (1280, 350)), (641, [(0, 0), (0, 100), (640, 100)], (1140, 400))]
)  # fmt: skip
def test_pictures_stand_beside_each_other_as_far_as_they_fit(wide, places, size):
    svg = '<svg width="{}" height="{}"><a id="clip1" href="#clip1" fill="url(#clip1)"/></svg>'
    whole = plots.stack([svg.format(wide, 100), svg.format(640, 300), svg.format(500, 50)])
    assert [(int(x), int(y)) for x, y in re.findall(r'<svg x="(\d+)" y="(\d+)"', whole)] == places
    assert 'width="{0}" height="{1}" viewBox="0 0 {0} {1}"'.format(*size) in whole
    assert all(f'id="p{i}-clip1" href="#p{i}-clip1" fill="url(#p{i}-clip1)"' in whole for i in range(3))


# ---------------------------------------------------------------- the map: no colour lies beyond what was measured
def mapped(run):
    return ratio_map(analyse_runs([run])[0])


def viewed(run):
    return map_view(analyse_runs([run])[0])


def suite():
    return analysed(suite_run)[0]


@pytest.mark.parametrize(("curve", "broken"), [
    (rising(VECTOR, 3e4), ()), (rising(VECTOR, 3e4), (2**17,)), ({4096: 0.01, 6000: 200.0, 2**27: 0.3}, (2**20,)),
    ({1024: 1.0}, (4096,)),
])  # fmt: skip
def test_every_colour_is_that_of_both_curves_and_none_is_beyond_them(curve, broken):
    """At any size of a lane: the ratio of the curves, but between measured sizes around one that gave no number."""
    gone = [failed(op_case("add", n, WAITED, "cupy:0"), "crashed", "gone") for n in broken if n not in curve]
    analysis = analyse_runs([answer_run([*op_rows("add", {WAITED: curve}), *gone])])[0]
    found = ratio_map(analysis)
    lane, ours, sizes = found.lanes[0], found.lanes[0].strips["cupy:0", WAITED], sorted(curve)
    assert {point.size for point in ours.points} == curve.keys()
    starts, ends = ([getattr(part, name) for part in ours.stretches] for name in ("start", "end"))
    assert starts[1:] == pytest.approx(ends[:-1])
    around = [(a, b) for a, b in itertools.pairwise(sizes) if any(a < n < b and n not in curve for n in broken)]
    (row,) = analysis.break_even
    for margin in row.threshold.margins:
        n = math.exp(margin.x)
        ratio = next((r for part in ours.stretches if (r := part.ratio_at(n)) is not None), None)
        if any(a * 1.12 < n < b / 1.12 for a, b in around):
            assert ratio is None
        elif not any(a / 1.12 <= n <= b * 1.12 for a, b in around) and len(curve) > 1:
            assert abs(math.log(ratio) - margin.log_ratio) <= STRAIGHT * (1 + 1e-9)
    for part in ours.stretches:
        assert (part.kind in ("known", "unsure")) == bool(part.points)
        assert not part.points or (sizes[0] <= part.start * 1.001 and part.end * 0.999 <= sizes[-1])
    ladder = kernels.load("add").sizes
    assert (lane.start, lane.end) == (min(sizes[0], ladder.low), max(sizes[-1], ladder.high))


def test_every_gpu_has_strips_and_equal_ones_are_shown_once():
    curve, later = {WAITED: rising(VECTOR, 3e4)}, {WAITED: rising(VECTOR, 3e6)}
    found = mapped(two_backends(curve, later))
    assert {device for lane in found.lanes for device, _ in lane.strips} == {"cupy:0", "wgpu:0"}
    assert found.shown == ("cupy:0",)
    assert mapped(two_backends(curve, curve, SECOND)).shown == ("cupy:0",)
    gpus = [replace(GPU, id=f"cupy:{i}") for i in range(4)]
    rows = [
        op_rows("add", {WAITED: rising(VECTOR, 3e4 * 8**i)}, device=gpu.id, cpu=not i)
        for i, gpu in enumerate(gpus)
    ]
    run = answer_run([row for each in rows for row in each], devices=(CPU, *gpus))
    assert mapped(run).shown == ("cupy:0", "cupy:1", "cupy:2"), "a lane has room for three"


def layers(spec, **look):
    """The rows of the layers whose mark looks like this."""
    parts = [part for part in spec["layer"] if look.items() <= part["mark"].items()]
    return [row for part in parts for row in part["data"]["values"]]


def tints(spec):
    return [row for row in layers(spec, type="rect") if "tint" in row]


def test_the_picture_has_a_lane_for_each_op_a_mark_for_each_threshold_and_the_names():
    view = map_view(suite())
    whole = map_picture(view)
    validate(whole)
    assert [spec["title"]["text"] for spec in whole["hconcat"]] == ["data on the GPU", "copied at every call"]
    for spec in whole["hconcat"]:
        lanes = spec["encoding"]["y"]["scale"]["domain"]
        assert len(set(lanes)) == 14
        assert any(lane.split("\t")[1] == "gelu" for lane in lanes)
        (x,) = {str(part["encoding"]["x"]["axis"]["labelExpr"]) for part in spec["layer"]}
        assert "'16 M'" in x
        for _, lane in itertools.groupby(tints(spec), key=lambda row: row["lane"]):
            rows = list(lane)
            assert all(b["x"] <= a["x2"] for a, b in itertools.pairwise(rows)), "no paper between its pieces"
            assert max(row["x2"] for row in rows) <= 2**24 * 1.001
    lanes = view.ends.lanes
    waited, copied = ([lane.strips["cupy:0", regime].cell for lane in lanes] for regime in (WAITED, ALWAYS))
    marks = [row.row.elements(cell.n) for row, cell in zip(lanes, waited, strict=True)]
    assert marks == sorted(marks), "lanes are a staircase of waited thresholds"
    with_mark = sum(cell.n is not None for cell in (*waited, *copied))
    assert sum(len(layers(spec, thickness=3)) for spec in whole["hconcat"]) == with_mark > 14


def test_a_size_alone_is_a_block_and_the_rest_is_dotted():
    view = viewed(answer_run(op_rows("matmul", {WAITED: {1024: 8.0}}), named={"matmul": [1024]}))
    (spec,) = map_picture(view)["hconcat"]
    assert len(layers(spec, strokeDash=[1.5, 5])) == 2, "what lies below it, and above"
    (block,) = tints(spec)
    assert block["x"] <= 1024**2 <= block["x2"]
    view = viewed(answer_run(op_rows("own", {WAITED: {4096: 8.0}}), named={"own": [4096]}))
    validate(map_picture(view))
    (spec,) = map_picture(view)["hconcat"]
    (domain,) = {tuple(part["encoding"]["x"]["scale"]["domain"]) for part in spec["layer"]}
    assert (view.ends.low, view.ends.high, domain) == (4096, 4096, (2048, 8192)), "it stands in the middle"
    # A machine without a GPU has no lane beside others.
    other, none = analyse_runs([replace(suite().run, id="00000000-0000-4000-8000-000000000009"), no_gpu_run()])
    view = overlay_view([suite(), other, none], ["A: one", "B: other", "C: none"])
    assert view.origin == ("A: one", "B: other")
    assert overlay_view([suite(), none], ["A: one", "B: none"]) is None


# ---------------------------------------------------------------- several files: machines side by side, and the history of one
def test_the_dates_of_a_history_are_text_in_its_axis():
    hostile = "2026-01-01T'+x//"
    (side,) = machine_runs([analyse(of_machine({1024: 4.0}, started=at)) for at in (hostile, hostile + "2")])
    ends = history_chart(side, "A").spec["encoding"]["x"]["axis"]["labelExpr"]
    assert ends == """datum.value > 0 ? "2026-01-01 '+x//2" : "2026-01-01 '+x//" """.strip()


@pytest.mark.parametrize(("times", "bars"), [
    ((1.0, 2.0, 3.0), "▁▅█"), ((1.0, 1.01, 0.99), "▄▄▄"), ((1.0, None, 2.0), "▁ █"), ((2.0, 1.0), "█▁"),
])  # fmt: skip
def test_bars(times, bars):
    assert history_text(times, RenderOptions()) == bars
    assert history_text(times, RenderOptions(ascii_only=True)).isascii()
