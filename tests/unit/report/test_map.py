"""The map: every colour is of a ratio that was measured, or lies between two; nothing is said beyond them."""

import itertools
import math
import re

import altair
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from gpubench import kernels
from gpubench.analysis.winners import FULL, STRAIGHT, ratio_map, tint
from gpubench.report import analyse_runs, draw_report, render
from gpubench.report.layout import RenderOptions
from gpubench.report.sections.map import (
    axis_text,
    draw_map,
    map_picture,
    map_specs,
    map_view,
    overlay_view,
    ticks,
)
from tests.unit.report.answer_runs import (
    ALWAYS,
    SECOND,
    VECTOR,
    WAITED,
    WEBGPU,
    answer_run,
    named_run,
    no_gpu_run,
    op_case,
    op_rows,
    rising,
    suite_run,
)
from tests.unit.report.builders import CPU, GPU, failed, measured
from tests.unit.report.samples import analysed

RATIOS = st.floats(1e-3, 1e3)


def mapped(outcomes, **more):
    return ratio_map(analyse_runs([answer_run(outcomes, **more)])[0])


def viewed(run):
    return map_view(analyse_runs([run])[0])


def suite():
    return analysed(suite_run)[0]


def strip(found, op="add", device="cupy:0", regime=WAITED):
    return next(lane for lane in found.lanes if lane.row.op == op).strips[device, regime]


@pytest.mark.parametrize(("curve", "broken"), [
    (rising(VECTOR, 3e4), ()), (rising(VECTOR, 3e4), (2**17,)), ({4096: 0.01, 6000: 200.0, 2**27: 0.3}, (2**20,)),
    ({1024: 1.0}, (4096,)),
])  # fmt: skip
def test_every_colour_is_that_of_both_curves_and_none_is_beyond_them(curve, broken):
    """At any size of a lane: the ratio of the curves, but between measured sizes around one that gave no number."""
    gone = [failed(op_case("add", n, WAITED, "cupy:0"), "crashed", "gone") for n in broken if n not in curve]
    analysis = analyse_runs([answer_run([*op_rows("add", {WAITED: curve}), *gone])])[0]
    found = ratio_map(analysis)
    lane, ours, sizes = found.lanes[0], strip(found), sorted(curve)
    assert {point.size for point in ours.points} == curve.keys()
    assert [part.start for part in ours.stretches[1:]] == pytest.approx(
        [part.end for part in ours.stretches[:-1]]
    )
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
    assert (lane.start, lane.end) == (
        min(sizes[0], kernels.load("add").sizes.low),
        max(sizes[-1], kernels.load("add").sizes.high),
    )


def test_a_cpu_size_without_the_gpu_changes_the_colour_there():
    """Times of one side alone count: the CPU was timed at 64 K too, where its cache ends."""
    curve = {1024: 0.1, 4096: 0.3, 16777216: 20.0}
    rows = op_rows("add", {WAITED: curve})
    both = mapped(rows), mapped([*rows, measured(op_case("add", 65536), 3e-3, sessions=5)])
    plain, known = (strip(found).ratio_between(65000, 66000) for found in both)
    assert known > plain * 1.3


def test_where_either_side_may_win_is_a_stretch_of_its_own():
    """That is where the threshold may lie; of a device that never wins it is nowhere."""
    crossing = strip(mapped(op_rows("add", {WAITED: rising(VECTOR, 3e4)})))
    (pale,) = [part for part in crossing.stretches if part.kind == "unsure"]
    assert (pale.start, pale.end) == pytest.approx((crossing.cell.low, crossing.cell.high), rel=0.13)
    never = strip(mapped(op_rows("add", {WAITED: dict.fromkeys(VECTOR, 0.1)})))
    assert [part.kind for part in never.stretches] == ["known"]


def test_the_colour_follows_the_logarithm_up_to_32x_without_an_edge():
    assert tint(1.0) == 0
    assert tint(FULL) == tint(FULL * 100) == 1
    for ratio in (1.2, 3.0, 17.0, 400.0):
        assert tint(1 / ratio) == pytest.approx(-tint(ratio))
    shades = [tint(math.exp(i / 100)) for i in range(-400, 400)]
    assert max(b - a for a, b in itertools.pairwise(shades)) < 0.01


def test_a_lane_is_hatched_up_to_the_ladders_top_and_where_a_size_gave_no_number():
    curve = {1024: 0.5, 4096: 2.0, 65536: 4.0}
    found = mapped(
        [*op_rows("add", {WAITED: curve}), failed(op_case("add", 16384, WAITED, "cupy:0"), "crashed", "gone")]
    )
    parts = strip(found).stretches
    assert [part.kind for part in parts][-2:] == ["failed", "unmeasured"]
    assert {part.kind for part in parts[:-2]} == {"known", "unsure"}
    ends = (4096, 65536, kernels.load("add").sizes.high)
    assert [parts[-2].start, *(part.end for part in parts[-2:])] == pytest.approx(ends, rel=0.12)


def test_lanes_are_a_staircase_of_waited_thresholds():
    found = ratio_map(suite())
    marks = [lane.row.elements(lane.strips["cupy:0", WAITED].cell.n) for lane in found.lanes]
    assert marks == sorted(marks)
    assert found.situations == (WAITED, ALWAYS)
    none = mapped([*op_rows("add", {WAITED: rising(VECTOR, 9e9)}), *op_rows("mul", {WAITED: rising(VECTOR, 1e6)}),
                   *op_rows("relu", {WAITED: rising(VECTOR, 10)})])  # fmt: skip
    assert [lane.row.op for lane in none.lanes] == ["relu", "mul", "add"], "all sizes, a threshold, no size"


def test_a_range_stands_where_its_likely_threshold_is():
    """`mul` has a threshold between those of two wide ranges."""
    wide = {"add": {1024: 0.1, 1048576: 1.5}, "relu": {1024: 0.6, 1048576: 40.0}}
    rows = [row for op, curve in wide.items() for row in op_rows(op, {WAITED: curve})]
    found = mapped([*rows, *op_rows("mul", {WAITED: rising(VECTOR, 5e4)})])
    assert {strip(found, op).cell.kind for op in wide} <= {"range", "open"}
    assert strip(found, "relu").cell.n < strip(found, "mul").cell.n < strip(found, "add").cell.n
    assert [lane.row.op for lane in found.lanes] == ["relu", "mul", "add"]
    for op in wide:
        n = strip(found, op).cell.n
        assert strip(found, op).ratio_between(n * 0.99, n * 1.01) == pytest.approx(1, abs=0.2)


def test_every_gpu_has_strips_and_equal_ones_are_shown_once():
    curve, later = rising(VECTOR, 3e4), rising(VECTOR, 3e6)
    rows = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: later}, device="wgpu:0", cpu=False)]
    found = mapped(rows, devices=(CPU, GPU, WEBGPU))
    assert {device for lane in found.lanes for device, _ in lane.strips} == {"cupy:0", "wgpu:0"}
    assert found.shown == ("cupy:0",)
    peers = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: curve}, device="cupy:1", cpu=False)]
    assert mapped(peers, devices=(CPU, GPU, SECOND)).shown == ("cupy:0",)
    apart = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: later}, device="cupy:1", cpu=False)]
    assert mapped(apart, devices=(CPU, GPU, SECOND)).shown == ("cupy:0", "cupy:1")


def test_without_a_gpu_there_is_no_map():
    assert not ratio_map(analyse_runs([no_gpu_run()])[0]).lanes
    assert "nothing for --sections map" in render([no_gpu_run()], "plain", sections=("map",))


@pytest.mark.parametrize(("ops", "counts"), [
    (["add"], "elements of one array (of a matrix: side²)"), (["ffn"], "the op's size: rows, tokens or images"),
    (["add", "ffn"], "elements of one array (of a matrix: side²); else the op's size: rows, tokens or images"),
])  # fmt: skip
def test_the_axis_says_what_it_counts(ops, counts):
    run = answer_run([row for op in ops for row in op_rows(op, {WAITED: {64: 2.0, 1024: 9.0}})])
    assert {axis_text(rows) for rows in viewed(run).panels.values()} == {counts}


# ---------------------------------------------------------------- in characters


@pytest.mark.parametrize("width", [60, 120])
def test_the_drawing_in_characters_keeps_to_its_width(width):
    for ascii_only in (False, True):
        text = draw_report(
            [suite()], "plain", RenderOptions(sections=("map",), width=width, ascii_only=ascii_only)
        )
        assert max(map(len, text.splitlines())) <= width
        assert "data on the GPU" in text
        assert "copied at every call" in text
        assert text.isascii() or not ascii_only
        assert "?" not in text, "every sign has a form in ASCII"


def test_a_sign_says_the_factor_at_its_size():
    ratios = {1024: 0.2, 16384: 1.0, 262144: 2.0, 4194304: 5.0, 16777216: 40.0}
    view = viewed(answer_run(op_rows("add", {WAITED: ratios})))
    (row,) = [line for line in draw_map(view, 120, ascii_only=True) if line[0].text.startswith("add")]
    text = "".join(cell.text for cell in row)[5:]
    assert re.fullmatch(r"\.+=+-+\++\*+#+", text), text


# ---------------------------------------------------------------- as Vega-Lite


def layers(spec, **look):
    """The rows of the layers whose mark looks like this."""
    parts = [part for part in spec["layer"] if look.items() <= part["mark"].items()]
    return [row for part in parts for row in part["data"]["values"]]


def test_the_picture_has_a_lane_for_each_op_a_mark_for_each_threshold_and_the_names():
    view = map_view(suite())
    whole = map_picture(view)
    altair.Root.validate(whole)
    assert "Test GPU (CuPy) against 2 CPU threads" in whole["title"]["text"]
    said = " ".join(whole["title"]["subtitle"])
    assert all(word in said for word in ("float32", "2026-01-02", "gpubench", "Thick mark"))
    assert [spec["title"]["text"] for spec in whole["hconcat"]] == ["data on the GPU", "copied at every call"]
    for spec in whole["hconcat"]:
        lanes = spec["encoding"]["y"]["scale"]["domain"]
        assert len(set(lanes)) == 14
        assert any(lane.split("\t")[1] == "gelu" for lane in lanes)
        (x,) = {str(part["encoding"]["x"]["axis"]["labelExpr"]) for part in spec["layer"]}
        assert "'16 M'" in x
    with_mark = sum(
        lane.strips["cupy:0", regime].cell.n is not None
        for lane in view.ends.lanes
        for regime in (WAITED, ALWAYS)
    )
    assert sum(len(layers(spec, thickness=3)) for spec in map_specs(view)) == with_mark > 14


def test_the_pieces_of_a_lane_leave_no_paper_between_them_and_end_where_it_does():
    for spec in map_specs(map_view(suite())):
        pieces = [row for row in layers(spec, type="rect") if "tint" in row]
        for _, lane in itertools.groupby(pieces, key=lambda row: row["lane"]):
            rows = list(lane)
            assert all(b["x"] <= a["x2"] for a, b in itertools.pairwise(rows))
            assert max(row["x2"] for row in rows) <= 2**24 * 1.001
        assert all(-1 <= row["tint"] <= 1 for row in pieces)


def test_a_size_alone_is_a_block_and_the_rest_is_dotted():
    (spec, *_) = map_specs(
        viewed(answer_run(op_rows("matmul", {WAITED: {1024: 8.0}}), named={"matmul": [1024]}))
    )
    assert len(layers(spec, strokeDash=[1.5, 5])) == 2, "what lies below it, and above"
    (block,) = [row for row in layers(spec, type="rect") if "tint" in row]
    assert block["x"] <= 1024**2 <= block["x2"]
    assert map_specs(viewed(named_run()))


def test_a_map_of_one_size_has_an_axis():
    view = viewed(answer_run(op_rows("own", {WAITED: {4096: 8.0}}), named={"own": [4096]}))
    altair.Root.validate(map_picture(view))
    (domain,) = {
        tuple(part["encoding"]["x"]["scale"]["domain"]) for spec in map_specs(view) for part in spec["layer"]
    }
    assert (view.ends.low, view.ends.high, domain) == (4096, 4096, (2048, 8192)), "it stands in the middle"


def test_the_axis_names_its_ends_and_powers_of_eight_between():
    found = ratio_map(suite())
    texts = [text for _, text in ticks(found)]
    assert texts == ["1 K", "32 K", "256 K", "16 M"]
    places = [place for place, _ in ticks(found)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 1.0)


def test_machines_share_a_lane():
    analyses = [suite(), analyse_runs([replace(suite().run, id="00000000-0000-4000-8000-000000000009")])[0]]
    view = overlay_view(analyses, ["A: one", "B: other"])
    for rows in view.panels.values():
        assert len(rows) == 2 * len(view.ends.lanes)
        assert {row.side for row in rows} == {"A", "B"}
    others = [*analyses, analyse_runs([no_gpu_run()])[0]]
    assert overlay_view(others, ["A: one", "B: other", "C: none"]).origin == ("A: one", "B: other")
    assert overlay_view(analyses[:1], ["A: one"]) is None
    assert overlay_view([analyses[0], analyse_runs([no_gpu_run()])[0]], ["A: one", "B: none"]) is None
