"""The report of a fleet: its first line tells the truth, everything that is missing has a name and a reason."""

import random
from pathlib import Path

import msgspec
import pytest

from gpubench.fleet.nodes import Fleet, Node
from gpubench.fleet.survey import FleetReport, survey_fleet
from gpubench.fleet.tables import fleet_document, headline
from gpubench.report import renderers
from gpubench.report.layout import RenderOptions
from gpubench.result.store import dumps
from tests.unit.fleet.fleets import fleet_of, fleet_runs, node_run
from tests.unit.fleet.samples import TEXTS, uuids


def report_of(fleet: Fleet) -> FleetReport:
    return survey_fleet(fleet.nodes, expected=fleet.nodes_expected)


def text_of(report: FleetReport) -> str:
    return renderers.draw_lines([fleet_document(report)], RenderOptions(), plain=True)


def test_the_first_line_counts_and_names_what_is_wrong():
    gone = Node(key="c.json", status="failed", reason="unusable", error="c.json: it is empty")
    runs = [
        node_run("a", uuids("A")), node_run("b", uuids("B"), slow={"B2": 1.3}),
        node_run("d", uuids("D"), broken=["D1"]), node_run("e", uuids("E"), complete=False),
    ]  # fmt: skip
    runs[1] = msgspec.structs.replace(runs[1], tool={**runs[1].tool, "gpubench": "0.0.9"})
    report = report_of(fleet_of(runs, [gone], expected=7, names=["a", "f"]))
    (drift,) = report.drift
    assert (drift.what, drift.usual, drift.others) == ("gpubench", "0.1.0", {"0.0.9": ["b"]})
    assert headline(report) == (
        "Fleet: 2 of 7 nodes complete, 15 of 16 GPUs compared; 1 missing (f); 1 unusable (c.json); 2 partial (d, e); "
        "nothing is known of 1 more; 1 slow GPU"
    )
    assert (report.ok_nodes, report.bad_nodes) == (["a"], ["b", "c.json", "f"])
    text = text_of(report)
    assert text.startswith("Fleet: 2 of 7 nodes complete")
    for part in ("c.json: it is empty", "no file of it was named", "its run ended early", "4 cases failed"):
        assert part in " ".join(text.split())
    assert ("cupy:2" in text, "D1" in {one.gpu for one in report.peers.not_compared}) == (True, True)


def test_a_node_that_lost_a_gpu_keeps_its_history_and_names_it():
    before = node_run("a", uuids("A"), number=1)
    after = node_run("a", ["A0", "A2", "A3"], number=2, slow={"A3": 1.5}, labelled=False)
    fleet = fleet_of([after, before, *fleet_runs(2, 4)])
    node = next(node for node in fleet.nodes if node.result and node.result.id == after.id)
    assert (len(fleet.nodes), [run.id for run in node.others]) == (3, [before.id])
    report = report_of(fleet)
    lost = [one for one in report.peers.not_compared if one.gpu == "A1"]
    assert [one.reason for one in lost] == ["the newest run does not see it"]
    assert {one.gpu for one in report.peers.verdicts} == {"A3"}


def test_two_runs_that_see_one_gpu_each_are_one_node_and_a_gpu_without_figures_is_named():
    one = node_run("a", ["A0"], known=["A1"], number=1)
    fleet = fleet_of([one, node_run("a", ["A1"], known=["A0"], number=2)])
    assert len(fleet.nodes) == 1
    whole = report_of(fleet_of([node_run("a", uuids("A"), known=["A9"])]))
    few = "1 peers, and a verdict takes 3"
    for report, reasons in (
        (report_of(fleet), {"A0": few, "A1": few}), (whole, {"A9": "nothing was measured on it"}),
    ):  # fmt: skip
        assert [(gpu.gpu, gpu.reason) for gpu in report.peers.not_compared] == [*reasons.items()]
    assert "4 of 5 GPUs compared" in headline(whole)


def test_the_report_does_not_depend_on_the_order_of_files_and_merges():
    runs = [*fleet_runs(4, 4), node_run("gpu-0002", ["U0002-0", "U0002-3"], number=2)]
    whole = fleet_of(runs)
    for seed in range(3):
        random.Random(seed).shuffle(runs)
        assert dumps(fleet_of(runs)) == dumps(whole)
    assert report_of(fleet_of(runs)) == report_of(whole)
    few = " ".join(text_of(report_of(fleet_of([node_run("a", uuids("A", 2), slow={"A1": 1.25})]))).split())
    assert "the slowest of 2 GPUs is 20% below the fastest; a verdict takes 4" in few
    assert headline(report_of(whole)) == "Fleet: 4 of 4 nodes complete, 14 of 16 GPUs compared; no slow GPUs"
    wide = report_of(fleet_of(fleet_runs(8, 4, cv=0.03)))
    chances = [group.expected_by_chance for group in wide.peers.groups]
    assert pytest.approx(sum(chances)) == wide.expected_by_chance > max(chances) > 0


@pytest.mark.parametrize("nodes", [3, 60])
def test_a_report_has_at_most_300_lines(nodes):
    slow = {f"U{i:04}-0": 1.5 for i in range(0, nodes, 12)}
    names = [f"lost-{i}" for i in range(nodes)]
    runs = fleet_runs(nodes, 4, slow=slow, broken=[f"U{i:04}-1" for i in range(nodes)])
    assert len(text_of(report_of(fleet_of(runs, names=names))).splitlines()) <= 300


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name):
    """If a difference is wanted: python -m tests.golden, and look at it."""
    assert TEXTS[name]() == (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")
