"""The map: every colour is of a ratio that was measured, or lies between two; nothing is said beyond them."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpubench import kernels
from gpubench.analysis.answer import EQUAL
from gpubench.analysis.ratio_map import FIRST_TINT, FULL, SPARSE, ratio_map, tint
from gpubench.report import analysed, render
from gpubench.report.sections.map import axis_text, drawn, map_view, overlay_view, ticks
from gpubench.report.sections.map_svg import DARK, LIGHT, map_svg
from tests.examples import examples
from tests.unit.report.answer_runs import (
    ALWAYS,
    QUEUED,
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
from tests.unit.report.builders import CPU, GPU, failed

SVG = "{http://www.w3.org/2000/svg}"
RATIOS = st.floats(1e-3, 1e3)
SIZES = st.lists(st.integers(1, 2**26), min_size=1, max_size=8, unique=True)


def mapped(outcomes, **more):
    return ratio_map(analysed([answer_run(outcomes, **more)])[0])


def strip(found, op="add", device="cupy:0", regime=WAITED):
    return next(lane for lane in found.lanes if lane.row.op == op).strips[device, regime]


@st.composite
def curves(draw):
    """A ratio for each of a few sizes of an op."""
    return {n: draw(RATIOS) for n in sorted(draw(SIZES))}


@given(curves(), st.sets(st.integers(0, 8), max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_every_colour_lies_between_the_ratios_of_the_measured_sizes_around_it(curve, gaps):
    """At any size of a lane: the two neighbours that were measured bound the ratio, or there is none."""
    sizes = sorted(curve)
    broken = sorted({sizes[i] + 1 for i in gaps if i < len(sizes)} - curve.keys())
    gone = [failed(op_case("add", n, WAITED, "cupy:0"), "crashed", "gone") for n in broken]
    found = mapped([*op_rows("add", {WAITED: curve}), *gone])
    lane, ours = found.lanes[0], strip(found)
    assert {point.size for point in ours.points} == curve.keys()
    assert [part.start for part in ours.stretches[1:]] == [part.end for part in ours.stretches[:-1]]
    for part in ours.stretches:
        inside = math.sqrt(part.start * part.end)
        ratio = part.ratio_at(inside)
        if part.kind in ("measured", "sparse"):
            ends = sorted([curve[part.start], curve[part.end]])
            assert ends[0] * 0.98 <= ratio <= ends[1] * 1.02
            assert (part.kind == "sparse") == (part.end > part.start * SPARSE)
        else:
            assert ratio is None
            assert part.tints() == ()
    # Nothing is extrapolated: outside the measured sizes no stretch has a ratio.
    for part in ours.stretches:
        assert part.ratios is None or (sizes[0] <= part.start and part.end <= sizes[-1])
    assert (lane.start, lane.end) == (
        min(sizes[0], kernels.load("add").sizes.low),
        max(sizes[-1], kernels.load("add").sizes.high),
    )


@given(curves())
@example({1: 2.0, 2: EQUAL})
@example({1: EQUAL, 2: 1 / EQUAL})
@settings(max_examples=examples(60), deadline=None)
def test_between_its_edges_a_tint_is_that_of_the_ratio(curve):
    """What a renderer draws, linear over log(size) between the edges, is what the ratio there says."""
    for part in strip(mapped(op_rows("add", {WAITED: curve}))).stretches:
        edges = part.tints()
        assert [edge.size for edge in edges] == sorted(edge.size for edge in edges)
        for a, b in itertools.pairwise(edges):
            if b.size <= a.size * (1 + 1e-6):
                continue
            middle = math.sqrt(a.size * b.size)
            ratio = part.ratio_at(middle)
            assert (a.ratio + b.ratio) / 2 == pytest.approx(tint(ratio), abs=2e-3)


def test_the_colour_follows_the_logarithm_from_a_step_at_ten_percent_to_32x():
    assert tint(1.0) == tint(EQUAL) == tint(1 / EQUAL) == 0
    assert tint(EQUAL * 1.0001) == pytest.approx(FIRST_TINT, abs=1e-3)
    assert tint(FULL) == tint(FULL * 100) == 1
    for ratio in (1.2, 3.0, 17.0, 400.0):
        assert tint(1 / ratio) == pytest.approx(-tint(ratio))
    middle = math.sqrt(EQUAL * FULL)
    assert tint(middle) == pytest.approx((1 + FIRST_TINT) / 2)


def test_a_lane_is_hatched_up_to_the_ladders_top_and_where_a_size_gave_no_number():
    curve = {1024: 0.5, 4096: 2.0, 65536: 4.0}
    found = mapped(
        [*op_rows("add", {WAITED: curve}), failed(op_case("add", 16384, WAITED, "cupy:0"), "crashed", "gone")]
    )
    kinds = [(part.kind, part.start, part.end) for part in strip(found).stretches]
    assert kinds == [
        ("measured", 1024, 4096), ("failed", 4096, 65536), ("unmeasured", 65536, kernels.load("add").sizes.high),
    ]  # fmt: skip


def test_a_wrong_result_has_no_colour_and_no_gain():
    found = mapped([*op_rows("add", {WAITED: {1024: 0.5}}), failed(op_case("add", 4096, WAITED, "cupy:0"))])
    assert [part.kind for part in strip(found).stretches] == ["failed"]
    assert strip(found).points == ()


def test_a_matrix_counts_its_elements():
    found = mapped(op_rows("matmul", {WAITED: {64: 0.5, 1024: 8.0}}))
    assert [point.size for point in strip(found, "matmul").points] == [64**2, 1024**2]


def test_lanes_are_a_staircase_of_waited_thresholds():
    found = ratio_map(analysed([suite_run()])[0])
    marks = [lane.row.elements(lane.strips["cupy:0", WAITED].cell.n) for lane in found.lanes]
    assert marks == sorted(marks)
    assert found.situations == (WAITED, ALWAYS)
    assert found.others == (QUEUED,)
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
    for op, curve in wide.items():
        (part,) = [part for part in strip(found, op).stretches if part.ratios]
        assert part.ratio_at(strip(found, op).last_crossing()) == pytest.approx(1)
        assert part.ratios == tuple(curve.values())


def test_every_gpu_has_strips_and_equal_ones_are_shown_once():
    curve, later = rising(VECTOR, 3e4), rising(VECTOR, 3e6)
    rows = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: later}, device="wgpu:0", cpu=False)]
    found = mapped(rows, devices=(CPU, GPU, WEBGPU))
    assert found.devices == ("cupy:0", "wgpu:0")
    assert found.shown == ("cupy:0",)
    twins = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: curve}, device="cupy:1", cpu=False)]
    assert mapped(twins, devices=(CPU, GPU, SECOND)).shown == ("cupy:0",)
    apart = [*op_rows("add", {WAITED: curve}), *op_rows("add", {WAITED: later}, device="cupy:1", cpu=False)]
    assert mapped(apart, devices=(CPU, GPU, SECOND)).shown == ("cupy:0", "cupy:1")


def test_without_a_gpu_there_is_no_map():
    assert not ratio_map(analysed([no_gpu_run()])[0]).lanes
    assert "nothing for --sections map" in render([no_gpu_run()], "plain", sections=("map",))


@pytest.mark.parametrize(("ops", "counts"), [
    (["add"], "elements of one array (of a matrix: side²)"), (["ffn"], "the op's size: rows, tokens or images"),
    (["add", "ffn"], "elements of one array (of a matrix: side²); else the op's size: rows, tokens or images"),
])  # fmt: skip
def test_the_axis_says_what_it_counts(ops, counts):
    run = answer_run([row for op in ops for row in op_rows(op, {WAITED: {64: 2.0, 1024: 9.0}})])
    analysis = analysed([run])[0]
    assert axis_text(map_view(analysis, ratio_map(analysis)).panels[0].lanes) == counts


# ---------------------------------------------------------------- in characters


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_drawing_in_characters_keeps_to_its_width(width):
    for ascii_only in (False, True):
        text = render([suite_run()], "plain", sections=("map",), width=width, ascii_only=ascii_only)
        assert max(map(len, text.splitlines())) <= width
        assert "data on the GPU" in text
        assert "copied at every call" in text
        assert text.isascii() or not ascii_only
        assert "?" not in text, "every sign has a form in ASCII"


def test_a_sign_says_the_factor_at_its_size():
    ratios = {1024: 0.2, 16384: 1.0, 262144: 2.0, 4194304: 5.0, 16777216: 40.0}
    analysis = analysed([answer_run(op_rows("add", {WAITED: ratios}))])[0]
    found = ratio_map(analysis)
    (row,) = [
        line
        for line in drawn(map_view(analysis, found), 120, ascii_only=True)
        if line[0].text.startswith("add")
    ]
    text = "".join(cell.text for cell in row)[5:]
    assert re.fullmatch(r"\.+=+-+\++\*+#+", text), text


def test_what_was_not_measured_is_blank():
    analysis = analysed([answer_run(op_rows("add", {WAITED: {1024: 8.0, 4096: 8.0}}))])[0]
    (row,) = [
        line
        for line in drawn(map_view(analysis, ratio_map(analysis)), 80, ascii_only=False)
        if line[0].text.startswith("add")
    ]
    signs = "".join(cell.text for cell in row[1:])
    assert 5 < len(signs) < 15
    assert set(signs) == {"▄"}


# ---------------------------------------------------------------- as SVG


def drawn_svg(run, **more):
    analysis = analysed([run])[0]
    return ElementTree.fromstring(map_svg(map_view(analysis, ratio_map(analysis)), **more))


def test_the_picture_has_a_lane_for_each_op_a_mark_for_each_threshold_and_the_names():
    root = drawn_svg(suite_run())
    lanes = [one for one in root.findall(f"{SVG}svg") if one.find(f"{SVG}title") is not None]
    assert len(lanes) == 2 * 14
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    for said in ("data on the GPU", "copied at every call", "gelu", "about equal", "16 M"):
        assert said in texts
    assert any("Test GPU (CuPy) against 2 CPU threads" in text for text in texts)
    assert any("float32" in text and "2026-01-02" in text and "gpubench" in text for text in texts)
    analysis = analysed([suite_run()])[0]
    with_mark = sum(
        lane.strips["cupy:0", regime].cell.n is not None
        for lane in ratio_map(analysis).lanes
        for regime in (WAITED, ALWAYS)
    )
    thick = [line for lane in lanes for line in lane.iter(f"{SVG}line") if line.get("stroke-width") == "3"]
    assert len(thick) == with_mark > 14


def test_ids_are_one_of_a_kind_and_every_reference_has_its_aim():
    root = drawn_svg(suite_run())
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    used = {one.get("fill")[5:-1] for one in root.iter() if (one.get("fill") or "").startswith("url(#")}
    assert used <= set(ids)


def test_a_size_alone_is_a_block_and_the_rest_is_hatched():
    root = drawn_svg(answer_run(op_rows("matmul", {WAITED: {1024: 8.0}}), named={"matmul": [1024]}))
    hatched = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == "url(#hatch)"]
    assert len(hatched) == 2, "what lies below it, and above"
    assert [rect.get("width") for rect in root.iter(f"{SVG}rect") if rect.get("transform")] == ["6", "6"]
    assert drawn_svg(named_run()) is not None


def test_dark_colours_follow_the_reader():
    text = ElementTree.tostring(drawn_svg(suite_run(), dark=DARK), encoding="unicode")
    light, _, dark = text.partition("prefers-color-scheme:dark")
    assert LIGHT.gpu in light
    assert DARK.gpu not in light
    assert DARK.gpu in dark


def test_the_axis_names_its_ends_and_powers_of_eight_between():
    found = ratio_map(analysed([suite_run()])[0])
    texts = [text for _, text in ticks(found)]
    assert texts == ["1 K", "32 K", "256 K", "16 M"]
    places = [place for place, _ in ticks(found)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 1.0)


def test_machines_share_a_lane():
    slower = suite_run()
    analyses = analysed(
        [suite_run(), msgspec.structs.replace(slower, id="00000000-0000-4000-8000-000000000009")]
    )
    view = overlay_view(analyses, ["A: one", "B: other"])
    assert view.names == ("A", "B")
    assert all(len(lane.strips) == 2 for panel in view.panels for lane in panel.lanes)
    assert {strip.name for panel in view.panels for lane in panel.lanes for strip in lane.strips} == {"A", "B"}
    assert overlay_view(analyses[:1], ["A: one"]) is None
    assert overlay_view([analyses[0], analysed([no_gpu_run()])[0]], ["A: one", "B: none"]) is None
