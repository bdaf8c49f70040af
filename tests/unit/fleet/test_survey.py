"""The report and the inventory of a fleet: what is missing has a name and a reason, and so has a slow GPU."""

import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.curves.stats import FEWEST_PEERS
from gpubench.fleet import survey
from gpubench.fleet.nodes import Fleet
from gpubench.fleet.survey import Figure, FleetReport
from gpubench.fleet.tables import fleet_document, headline, inventory_document, inventory_headline
from gpubench.result.run import fingerprint
from gpubench.result.store import dumps
from tests.unit.fleet.fleets import anonymous, fleet_of, fleet_runs, node_run
from tests.unit.fleet.samples import TEXTS, fleet_report, lines, listed, uuids
from tests.unit.report.builders import case, measured


def report_of(fleet: Fleet) -> FleetReport:
    return survey.survey_fleet(fleet.nodes, expected=fleet.nodes_expected)


def test_nodes_are_whole_or_bad_or_on_neither_list():
    """A slow GPU makes a node bad. A suspect does not, and a partial node is on neither list."""
    report = fleet_report()
    bad = ["b", "gone.json", *uuids("x", 5), "z"]
    assert (report.ok_nodes, report.bad_nodes) == (["a", "e", "f0", "f1"], bad)


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
    assert headline(report_of(whole)) == "Fleet: 4 of 4 nodes complete, 14 of 16 GPUs compared; no slow GPUs"
    wide = report_of(fleet_of(fleet_runs(8, 4, cv=0.03)))
    chances = [group.expected_by_chance for group in wide.peers.groups]
    assert pytest.approx(sum(chances)) == wide.expected_by_chance > max(chances) > 0


@pytest.mark.parametrize("nodes", [3, 60])
def test_a_report_has_at_most_300_lines(nodes):
    slow = {f"U{i:04}-0": 1.5 for i in range(0, nodes, 12)}
    names = [f"lost-{i}" for i in range(nodes)]
    runs = fleet_runs(nodes, 4, slow=slow, broken=[f"U{i:04}-1" for i in range(nodes)])
    document = fleet_document(report_of(fleet_of(runs, names=names)))
    assert len(lines(document).splitlines()) <= 300


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name):
    """If a difference is wanted: python -m tests.golden, and look at it."""
    assert TEXTS[name]() == (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- who answered, which nodes are equal, which software differs
def test_an_inventory_does_not_depend_on_the_order_of_its_nodes():
    """And a node that is lost comes before one that is busy."""
    absent = [survey.list_node(name=name, reason=name, why="") for name in ("busy", "hung")]
    nodes = [listed("b"), listed("a"), *absent]
    assert survey.inventory_of(nodes, expected=8) == survey.inventory_of(nodes[::-1], expected=8)
    assert "4 GPUs; 1 hung (hung); 1 busy (busy);" in inventory_headline(survey.inventory_of(nodes, expected=8))
    assert inventory_headline(survey.inventory_of([listed("a", 8)])) == "Fleet: 1 of 1 nodes answered, 8 GPUs"
    nodes = [listed(f"n{i}", memory=16 + i, kernel=f"6.{i}", lost=1) for i in range(100)]
    absent = [survey.list_node(name=f"x{i}", reason="busy", why="others hold it") for i in range(900)]
    found = survey.inventory_of([*nodes, *absent])
    assert (len(lines(inventory_document(found)).splitlines()) <= 300, len(found.nodes)) == (True, 1000)


# ---------------------------------------------------------------- the slow GPU: judged by enough peers, and not by chance
def figure(gpu, *rates, case="matmul", reason=None, size=8192, driver="1", started="a") -> Figure:
    return Figure(
        node=f"node of {gpu}", gpu=gpu, device="cupy:0", started_at=started, bdf=None, case=case, group=case,
        driver=driver, size=size, rates=rates, reason=reason,
    )  # fmt: skip


def healthy(count: int, *, spread: float = 0.001, sessions: int = 2, case: str = "matmul") -> list[Figure]:
    return [figure(f"{i:03}", *[100 * (1 + spread * (i % 5 - 2))] * sessions, case=case) for i in range(count)]


def words(found: list[Figure], **options: object) -> dict[str, str]:
    return {one.gpu: one.word for one in survey.compare_gpus(found, **options).verdicts}  # type: ignore[arg-type]


@pytest.mark.parametrize(("rates", "word"), [
    ((94.0, 94.0), "slow"), ((70.0, 70.0), "severe"), ((94.0, 99.0), None), ((80.0, 99.0), "suspect"),
    ((94.0,), "suspect"), ((96.0, 96.0), None),
])  # fmt: skip
def test_a_gpu_is_slow_when_two_sessions_say_so(rates, word):
    found = [figure("bad", 50.0, 50.0, started="0"), *healthy(7), figure("bad", *rates)]  # the newer one counts
    assert words(found) == words(found[::-1]) == ({"bad": word} if word else {})
    assert words([*healthy(8, spread=0), figure("bad", 94.9, 94.9)], tolerance=0.1) == {}


def test_queued_calls_of_telling_ops_on_gpus_have_figures():
    cases = [case("copy", 64, device="cupy:0", regime="resident-waited"), case("relu", 64, device="cupy:0"), case("upload", 64, device="numpy:0"),
             case("download", 64, device="cupy:0", regime="resident-waited"), case("matmul", 64, device="cupy:0")]  # fmt: skip
    run = replace(node_run("a", ["A0"]), outcomes=[measured(what, 1e-3) for what in cases])
    assert [figure.case.partition("/")[0] for figure in survey.figures(run, "a")] == ["download", "matmul"]


def test_fewer_peers_than_a_verdict_takes_give_none():
    few = [*healthy(FEWEST_PEERS - 2), figure("bad", 50.0, 50.0)]
    found = survey.compare_gpus(few)
    assert (found.verdicts, found.groups[0].threshold, found.groups[0].uneven) == ((), None, True)
    assert "verdict takes" in found.not_compared[0].reason
    assert words([*few, figure("one more", 100.0, 100.0)]) == {"bad": "severe"}
    found = survey.compare_gpus([*healthy(5), figure("other", 20.0, 20.0, size=4096)])
    assert (found.verdicts, found.groups[0].peers) == ((), 5)
    assert found.not_compared[0].reason == "its peers measured another size"
    half = survey.compare_gpus([*healthy(10), *(figure(f"s{i}", 70.0, 70.0) for i in range(7))])
    group = half.groups[0]
    assert (half.verdicts, group.uniform, group.uneven, group.suspects) == ((), False, True, 7)


def test_a_known_good_fleet_sees_one_that_is_slow_as_a_whole():
    good = healthy(8)
    now = [msgspec.structs.replace(one, rates=(90.0, 90.0), driver="2") for one in good[1:]]
    found = survey.compare_gpus([*now, figure("new", 90.0, 90.0, driver="2")], known_good=good)
    assert {one.gpu for one in found.verdicts} == {one.gpu for one in good[1:]}
    assert all(one.known_good and one.word == "slow" for one in found.verdicts)
    assert (found.new, found.gone) == (("new",), ("000",))
    assert found.groups[0].known_good_change == pytest.approx(-0.1, abs=0.002)
    alone = survey.compare_gpus(now)
    assert (alone.verdicts, alone.new, alone.gone) == ((), (), ())


@pytest.mark.parametrize("cpus", ["CPU", "Other"], ids=["one machine", "two of one name"])
def test_gpus_without_a_uuid_are_counted_once_each(cpus):
    """An address that moved is no other GPU, and the same name and address on another host is one."""
    first, second = (node_run("a", ["U0", "U1"], number=number) for number in (1, 2))
    first, second = anonymous(first), anonymous(second, "moved-" if cpus == "CPU" else "")
    if cpus == "Other":
        second = replace(second, fingerprint=replace(second.fingerprint, machine=fingerprint({"cpu": cpus})))
    count = 2 if cpus == "CPU" else 4
    report = report_of(fleet_of([first, second]))
    assert (report.gpus, {group.peers for group in report.peers.groups}) == (count, {count})
