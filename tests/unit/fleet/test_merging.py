"""Merging: no session is lost, none counts twice, and only what was measured alike is joined."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from gpubench.analysis.samples import seconds_of
from gpubench.base.errors import InputError
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.two_runs import compare
from gpubench.fleet.nodes import Node, merge_runs
from gpubench.result import run as results
from gpubench.result.identity import foreign_gpus
from gpubench.result.machine import Fact
from gpubench.result.run import Environment, Fingerprints, Run, SessionRecord, Settings, fingerprint
from gpubench.result.store import dumps, loads
from tests.examples import examples
from tests.raising import raised
from tests.unit.fleet.fleets import anonymous, fleet_of, node_run
from tests.unit.report.builders import case, curve, failed, machine, measured, planned, run_of, skipped

PRINTS = Fingerprints(
    machine=fingerprint({"cpu": "Test CPU"}), device=fingerprint({"numpy:0": "CPU"}),
    software=fingerprint({"numpy": "2.1.0"}),
)  # fmt: skip


def run(number, outcomes=None, *, started=None, sessions=1, prints=PRINTS, gpu="GPU-1", **changes):
    """A run with an id and a start of its own; its samples are `number` per cent slower than others'."""
    outcomes = outcomes or curve({64: 0.5, 256: 4.0}, cpu_s=1e-3 * (1 + number / 100), sessions=sessions)
    hour = started if started is not None else number
    begins = f"2026-01-{1 + hour // 24:02}T{hour % 24:02}"
    found = run_of(outcomes, sessions=sessions)
    gpus = [replace(machine().gpus[0], uuid=Fact(gpu, "ok", "nvml"))]
    return replace(
        found, id=f"{number:032x}", started_at=f"{begins}:00:00Z",
        machine=replace(found.machine, gpus=gpus), fingerprint=prints,
        sessions=[SessionRecord(index=i, started_at=f"{begins}:{i:02}:00Z") for i in range(sessions)],
        **changes,
    )  # fmt: skip


def content(found: Run) -> list[object]:
    """What each session holds, whatever its number."""

    def blocks(index: int) -> list[object]:
        known = [(outcome.id, block) for outcome in found.outcomes for block in getattr(outcome, "blocks", [])]
        own = [(id, replace(block, session=0)) for id, block in known if block.session == index]
        return sorted([id, msgspec.to_builtins(block)] for id, block in own)

    return sorted(json.dumps([session.started_at, blocks(session.index)]) for session in found.sessions)


ANY_RUN = st.builds(run, st.integers(1, 10_000), started=st.integers(0, 100), sessions=st.integers(1, 3))
runs = st.lists(ANY_RUN, min_size=3, max_size=5, unique_by=lambda made: made.id)


@settings(max_examples=examples(30), deadline=None)
@given(runs)
def test_merging_is_associative_up_to_order_and_loses_no_session(found):
    whole = merge_runs(found)
    left, right = merge_runs([merge_runs(found[:2]), *found[2:]]), merge_runs([found[0], merge_runs(found[1:])])
    turned = merge_runs(list(reversed(found)))
    assert whole.id == left.id == right.id == turned.id
    assert content(whole) == content(left) == content(right) == content(turned)
    assert content(whole) == sorted(one for part in found for one in content(part))
    assert len(whole.sessions) == sum(len(part.sessions) for part in found)
    assert [session.index for session in whole.sessions] == list(range(len(whole.sessions)))
    assert whole.merged == sorted(part.id for part in found)
    starts = [session.started_at for session in whole.sessions]
    assert starts == sorted(starts)
    assert dumps(turned) == dumps(whole) == dumps(loads(dumps(whole), "test"))
    assert merge_runs(found[:1]) == found[0]
    for again in (found[1], merge_runs(found[1:])):
        with pytest.raises(InputError, match=f"{found[1].id} is there twice"):
            merge_runs([*found[:2], again])


def test_the_energy_of_each_run_stays_with_its_session():
    def count_energy(number, power_w):
        window = results.EnergyWindow(session=0, source="rapl", window_s=2.0, calls=100, power_w=power_w)
        return run(number, [replace(measured(case(), 1e-3), energy=[window])])

    (outcome,) = merge_runs([count_energy(2, 20.0), count_energy(1, 10.0)]).outcomes
    windows = [(window.session, window.power_w) for window in outcome.energy]
    assert windows == [(0, 10.0), (3, 20.0)]  # of three sessions each


@pytest.mark.parametrize(("one", "other", "both"), [
    ((["add"], ["mul"]), (["add"], ["mul"]), (["add"], ["mul"])),
    ((["add"], ["mul", "dot"]), (["sub"], ["dot"]), (["add", "sub"], ["dot"])),
    ((["add"], ["mul"]), ([], []), ([], [])),
])  # fmt: skip
def test_a_merged_selection_leaves_out_what_no_run_selected(one, other, both):
    chosen = [replace(run(1).selection, filter=keep, skip=skip) for keep, skip in (one, other)]
    found = merge_runs([run(number, selection=own) for number, own in enumerate(chosen)]).selection
    assert (found.filter, found.skip) == both


@settings(max_examples=examples(10), deadline=None)
@given(st.permutations(range(3)))
def test_the_time_between_merged_runs_is_a_pause_whatever_is_merged_first(order):
    """Three runs, an hour apart, of ten minutes each; the second paused for three of them."""
    pauses = {1: UNSET, 2: 180.0, 3: UNSET}
    parts = [run(h, finished_at=f"2026-01-01T{h:02}:10:00Z", paused_s=pause) for h, pause in pauses.items()]
    first, second, last = (parts[place] for place in order)
    whole = merge_runs([merge_runs([first, second]), last])
    assert (whole.started_at, whole.finished_at) == (parts[0].started_at, parts[2].finished_at)
    assert (whole.paused_s, seconds_of(whole)) == (2 * 3000.0 + 180.0, 3 * 600.0 - 180.0)
    assert merge_runs([first, second, last]).paused_s == whole.paused_s


def test_what_equal_gpus_did_together_stays_and_the_last_look_at_identical_gpus():
    at_once = results.TogetherTimes(session=0, case_id="add", device_id="cupy:0", phase="together", gpus=2)
    old, new = (results.IdenticalGpuTimes(case_id="add", device_id="cupy:1", blocks_s=[s]) for s in (1.0, 2.0))
    parts = (run(number, together=[at_once], identical_gpus=[times]) for number, times in ((2, new), (1, old)))
    whole = merge_runs([*parts, run(3)])
    assert ([times.session for times in whole.together], whole.identical_gpus) == ([0, 1], [new])


def split(share):
    one = measured(case(n=64, device="hybrid:cupy:0"), 1e-3, sessions=1)
    return replace(one, blocks=[replace(block, gpu_share=share) for block in one.blocks])


def altered(name, found):
    return {"prints": replace(PRINTS, **{name: fingerprint(found)})}


OTHER_OP = replace(measured(case(n=64), 1e-3, sessions=1), op_hash="1" * 12)


@pytest.mark.parametrize(("other", "field"), [
    (altered("machine", {"cpu": "Another CPU"}), "machine cpu differs"),
    (altered("device", {"numpy:0": "other"}), "device numpy:0 differs"),
    (altered("software", {"numpy": "1.26"}), "software numpy differs"),
    ({"settings": Settings(inputs="zeros")}, "protocol inputs differs"),
    ({"settings": Settings(threads=1)}, "protocol threads differs"),
    ({"outcomes": [OTHER_OP]}, "op_hash"), ({"outcomes": [split(0.6)]}, "what each side does differs"),
])  # fmt: skip
def test_what_was_measured_otherwise_is_refused_by_name(other, field):
    refused = raised(InputError, merge_runs, [run(1), run(3, [split(0.5)]), run(2, **other)])
    assert ("cannot be merged" in str(refused), field in refused.message) == (True, True)
    first, second = refused.why.partition(" in another,")[0].split(" in one, ")
    assert first != second


def test_compare_notices_what_both_sides_hold():
    for base, codes in ((run(1), {"same-run"}), (run(3), set())):
        result = compare(("base", base), [("new", merge_runs([run(1), run(2)]))], CompareOptions())
        assert {notice.code for notice in result.warnings} & {"same-run"} == codes


@pytest.mark.parametrize(("old", "new", "known", "apart"), [
    (["U1", "U2"], ["U1", "U2"], True, 0), (["U1", "U2"], ["U2", "U1"], True, 2), (["U1"], ["U2"], True, 1),
    (["U1"], ["U2"], False, 0), (["U1", "U2"], ["U2", "U1"], False, 2),
])  # fmt: skip
def test_an_id_that_means_another_gpu_is_named(old, new, known, apart):
    """As with CUDA_VISIBLE_DEVICES in another order; without uuids an address may change with the slots in use."""
    runs = [node_run("a", uuids) for uuids in (old, new)]
    runs = runs if known else [*map(anonymous, runs)]
    assert len([*foreign_gpus(*runs)]) == apart
    assert not [*foreign_gpus(replace(runs[0], machine=replace(runs[0].machine, gpus=[])), runs[1])]
    found = compare(("old", runs[0]), [("new", runs[1])], CompareOptions())  # of the same model: not refused
    assert [difference.scope for difference in found.differences] == ["card"] * apart


def test_a_run_that_measured_other_devices_or_ops_joins():
    more, noted = altered("device", {"numpy:0": "CPU", "cupy:0": "Test GPU"}), Environment(context={"day": "2"})
    lost = [results.SessionFailure(session=1, reason="timeout", detail="it hangs")]
    beside = replace(measured(case("relu", 64, device="cupy:0"), 1e-5, sessions=1), failures=lost)
    other = run(2, [beside], **more)
    sessions = [*other.sessions, SessionRecord(index=1, started_at="3", repeats=0)]
    whole = merge_runs([run(1), replace(other, sessions=sessions, environment=noted)])
    assert [session.planned_index for session in whole.sessions] == [0, 1, 1]
    assert (whole.fingerprint.device, whole.environment.context) == (more["prints"].device, {})
    assert {outcome.case.op for outcome in whole.outcomes} == {"matmul", "relu"}
    assert [*map(results.failures_of, whole.outcomes)][-1] == [replace(lost[0], session=2)]


def test_a_failure_stays_one_and_a_skip_gives_way():
    what = case(n=64, device="cupy:0")
    good = measured(what, 1e-4, sessions=1)
    for outcomes, kind in [
        ((good, failed(what)), "Failure"), ((skipped(what), good), "Measurement"),
        ((planned(what), skipped(what)), "Skip"), ((planned(what), good), "Measurement"),
    ]:  # fmt: skip
        whole = merge_runs([run(i + 1, [outcome]) for i, outcome in enumerate(outcomes)])
        assert [type(outcome).__name__ for outcome in whole.outcomes] == [kind]


def test_a_fleet_holds_each_machine_once_and_a_node_that_is_missing_makes_it_incomplete():
    fleet = fleet_of([run(1), run(2, gpu="GPU-2"), run(3)])
    assert (fleet.nodes_expected, fleet.nodes_collected, fleet.complete) == (2, 2, True)
    assert [len(node.result.sessions) for node in fleet.nodes] == [2, 1]
    gone = Node(key="c.json", status="failed", error="c.json: there is no such file")
    fleet = fleet_of([run(1), run(2, gpu="GPU-2")], [gone], expected=3)
    assert (fleet.nodes_collected, fleet.complete, len(fleet.nodes)) == (2, False, 3)
    lost = replace(gone, key="c", label="c", error="a longer story")
    assert fleet_of([run(1)], [lost], names=["c"]).nodes[-1] == lost, "its reason is kept"
    parts = [run(1), run(2, gpu="GPU-2"), run(3, gpu="GPU-3")]
    whole = fleet_of(parts, [gone], expected=3)
    assert (whole.complete, len(whole.nodes)) == (True, 3)
    assert dumps(whole) == dumps(fleet_of(parts[::-1], [gone], expected=3))
    for number, name in enumerate("ab", 4):  # machines that look alike and have names
        environment = replace(run(number).environment, context={"node": name})
        parts.append(replace(run(number), environment=environment, machine=machine()))
    assert len({node.key for node in fleet_of(parts).nodes}) == 5


def test_sessions_that_a_run_does_not_list_are_listed_and_the_worst_ending_is_the_ending():
    whole = merge_runs([replace(run(1), sessions=[]), run(2)])
    assert len(whole.sessions) == len(content(whole)) == 2
    whole = merge_runs([run(1), run(2, exit_reason="budget", exit_code=124), run(3, complete=False)])
    assert (whole.exit_reason, whole.exit_code, whole.complete) == ("budget", 124, False)
