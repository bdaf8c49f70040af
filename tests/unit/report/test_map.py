"""The map: every colour is of a ratio that was measured, or lies between two; nothing is said beyond them."""

import itertools
import math
import re

import altair
import pytest
from msgspec.structs import replace

from gpubench import kernels
from gpubench.analysis.winners import STRAIGHT, ratio_map
from gpubench.report import analyse_runs
from gpubench.report.sections.map import draw_map, map_picture, map_view, overlay_view
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
)
from tests.unit.report.builders import failed
from tests.unit.report.samples import analysed
from tests.unit.report.screens import two_backends


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
    assert mapped(two_backends(curve, later, SECOND)).shown == ("cupy:0", "cupy:1")


# ---------------------------------------------------------------- in characters


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


def tints(spec):
    return [row for row in layers(spec, type="rect") if "tint" in row]


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
    altair.Root.validate(map_picture(view))
    (spec,) = map_picture(view)["hconcat"]
    (domain,) = {tuple(part["encoding"]["x"]["scale"]["domain"]) for part in spec["layer"]}
    assert (view.ends.low, view.ends.high, domain) == (4096, 4096, (2048, 8192)), "it stands in the middle"


def test_machines_share_a_lane():
    analyses = [suite(), analyse_runs([replace(suite().run, id="00000000-0000-4000-8000-000000000009")])[0]]
    view = overlay_view(analyses, ["A: one", "B: other"])
    for rows in view.panels.values():
        assert len(rows) == 2 * len(view.ends.lanes)
        assert {row.side for row in rows} == {"A", "B"}
    none = analyse_runs([no_gpu_run()])[0]
    assert overlay_view([*analyses, none], ["A: one", "B: other", "C: none"]).origin == ("A: one", "B: other")
    assert overlay_view([analyses[0], none], ["A: one", "B: none"]) is None
