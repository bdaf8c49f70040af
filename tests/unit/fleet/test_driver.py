"""The driver of a fleet, without an engine: each accident gives its row, and what arrived stays."""

import json

import msgspec
import pytest

from gpubench.fleet import node as wire
from gpubench.fleet.driver import EARLIER, Arrival, FleetDriver, FleetJournal, FleetLimits, NodeClocks
from gpubench.result import store
from gpubench.result.store import Journal
from tests.unit.fleet.engines import HELLO, FakeEngine, ended, event, pieces, placed, whole
from tests.unit.fleet.fleets import node_run

SILENCE = FleetLimits(queue_s=60, silence_s=30, deadline_s=1800)


def measured(name: str):
    return node_run(name, [f"GPU-{name}"])


@pytest.fixture
def part(tmp_path):
    """The bytes of the `.part` of a run that is under way."""
    journal = Journal(tmp_path / "child.json.part")
    journal.write(measured("a"))
    journal.close()
    return (tmp_path / "child.json.part").read_bytes()


@pytest.fixture
def lead(tmp_path):
    """Lead a fleet of scripted nodes; the ends by name, the journal and the engine."""

    def run(scripts, *names, retries=0, interrupt_at=None):
        engine = FakeEngine(scripts)
        engine.interrupt_at = interrupt_at
        journal = FleetJournal(tmp_path / "fleet.json")
        driver = FleetDriver(engine, journal, SILENCE, retries=retries, clock=engine.clock)
        ends = driver.run(placed(*names))
        journal.close()
        return {end.name: end for end in ends}, journal, engine, driver

    return run


def test_one_accident_costs_no_other_node(lead, part):
    sent = [wire.PART_BEGINS, *pieces(wire.PART, part)]
    scripts = {
        "died": [HELLO, event("case-start", id="copy"), *sent, Arrival("died", reason="died", why="its process ended")],
        "hung": [HELLO, *sent], "busy": [], "failed": [HELLO, ended(5, "error: there is no cupy")], "good": whole(measured("good")),
        "other": [wire.HELLO + msgspec.json.encode(wire.NodeIdentity("9.9", "abc")), event("run-start"), 1e9],
    }  # fmt: skip
    ends, journal, engine, _ = lead(lambda node: scripts[node], *scripts)
    assert {name: end.reason for name, end in ends.items()} == {
        "died": "died", "hung": "hung", "busy": "busy", "other": "version-skew", "failed": "failed", "good": None
    }  # fmt: skip
    assert engine.now == pytest.approx(60, abs=0.01), "the queue's clock is the last"
    [left] = (path for path in journal.folder.iterdir() if "died" in path.name)  # as `merge fleet.d/*` reads it
    assert store.load(left).outcomes == store.load(journal.path("hung")).outcomes != []
    lines = [json.loads(line) for line in journal.folder.with_suffix(".jsonl").read_text().splitlines()]
    words = [line.get("event", {}).get("reason", line.get("ended")) for line in lines if line["node"] == "good"]
    assert words == ["run-start", "case-start", "ok"]
    assert ("9.9" in ends["other"].error, "no cupy" in ends["failed"].error) == (True, True)
    assert set(engine.cancelled) == {"died", "hung", "busy", "other"}
    assert ends["died"].last_event == "case-start copy"


@pytest.mark.parametrize("bad", [
    event("run-start"), HELLO + b"}", HELLO[:1] + b"[]", b"", wire.EVENT + b"\xff", wire.ENDED + b"{}",
    wire.EVENT + b"x" * (wire.PIECE_BYTES + 1), wire.RESULT + b"no result", b"?what",
])  # fmt: skip
def test_whatever_a_node_sends_costs_that_node_alone(lead, bad):
    scripts = {"bad": [bad, ended()], "good": whole(measured("good"))}
    ends, *_ = lead(lambda node: scripts[node], *scripts)
    assert (ends["bad"].reason, ends["good"].reason) == ("failed", None)


def test_a_node_may_send_no_more_than_a_result_may_hold(lead, monkeypatch):
    piece = wire.PART + b"x" * wire.PIECE_BYTES
    monkeypatch.setattr("gpubench.fleet.driver.MOST_BYTES", 4 * wire.PIECE_BYTES)
    ends, journal, _, _ = lead(lambda _: [HELLO, wire.PART_BEGINS, *[piece] * 9], "a")
    assert ends["a"].reason == "failed"
    assert sum(path.stat().st_size for path in journal.folder.iterdir()) <= 4 * wire.PIECE_BYTES


def test_a_part_that_is_written_anew_replaces_the_old_one_once_it_comes(lead, part):
    steps = [HELLO, wire.PART_BEGINS, *pieces(wire.PART, part), wire.PART_BEGINS]
    for sent in (steps, [*steps, *pieces(wire.PART, part)]):
        ends, journal, _, _ = lead(lambda _, sent=sent: sent, "a")
        assert (ends["a"].reason, store.load(journal.path("a")).id) == ("hung", "a-1")
    assert len(list((journal.folder / EARLIER).iterdir())) == 1, "what the first run of the node brought"


def test_a_retry_keeps_both_attempts(lead, part):
    begun = [HELLO, event("run-start"), wire.PART_BEGINS, *pieces(wire.PART, part)]
    attempts = iter([begun, whole(measured("a"))])
    ends, journal, *_ = lead(lambda _: next(attempts), "a", retries=1)
    assert (ends["a"].reason, ends["a"].last_event) == (None, "case-start matmul")
    assert [(attempt.reason, attempt.last_event) for attempt in ends["a"].attempts] == [("hung", "run-start")]
    assert len(list((journal.folder / EARLIER).iterdir())) == 1
    for steps, reason, before in (([], "busy", 1), ([HELLO, ended(5, "no")], "failed", 0)):
        ends, *_ = lead(lambda _, steps=steps: steps, "b", retries=1)
        assert (ends["b"].reason, len(ends["b"].attempts)) == (reason, before)


def test_a_heartbeat_keeps_a_node_alive_and_the_deadline_ends_it(lead):
    beats = [HELLO, *[step for _ in range(500) for step in (wire.HEARTBEAT, 5.0)]]
    ends, _, engine, _ = lead(lambda _: [*beats[:1], event("run-start"), *beats[1:]], "a")
    assert (ends["a"].reason, ends["a"].cut, 1800 <= engine.now < 1802) == ("partial", "deadline", True)


def test_each_node_has_a_clock_for_its_queue_then_for_its_silence_and_the_fleet_has_one():
    clocks = NodeClocks(FleetLimits(queue_s=10, silence_s=5, deadline_s=100), 50)
    assert (clocks.wait_s(50), clocks.wait_s(149.75), clocks.wait_s(151)) == (1.0, 0.25, 0.0)
    assert (clocks.over(149.9), clocks.over(150)) == (False, True)
    clocks.ask("a", 50)
    clocks.ask("b", 52)
    assert (clocks.overdue(59.9), clocks.overdue(60), clocks.wait_s(59.5)) == ([], [("a", "busy")], 0.5)
    clocks.hear("a", 58)
    clocks.hear("nobody", 58)
    assert (clocks.overdue(62.9), clocks.overdue(63)) == ([("b", "busy")], [("a", "hung"), ("b", "busy")])
    clocks.stop("b")
    assert clocks.overdue(200) == [("a", "hung")]
    clocks.ask("b", 149)
    assert clocks.wait_s(149.5) == 0.0, "somebody is overdue"


def test_what_a_node_says_is_kept_up_to_a_length(lead):
    longest = wire.EVENT + b'{"reason": "' + b"x" * (wire.PIECE_BYTES - 14) + b'"}'
    assert len(longest) == wire.PIECE_BYTES + 1
    ends, *_ = lead(lambda _: [HELLO, longest, ended(5, "y" * 1000 + "z" * 2000)], "a")
    assert (ends["a"].reason, ends["a"].last_event, ends["a"].error) == ("failed", "x" * 200, "z" * 2000)
    ends, *_ = lead(lambda _: [HELLO, longest + b" ", ended()], "a")
    assert f"a message of {wire.PIECE_BYTES + 2} bytes" in ends["a"].error


def test_half_a_result_does_not_begin_the_next_attempts(lead):
    attempts = iter([[HELLO, wire.RESULT + b"half"], whole(measured("a"))])
    ends, journal, *_ = lead(lambda _: next(attempts), "a", retries=1)
    assert (ends["a"].reason, store.load(journal.path("a")).id) == (None, "a-1")


def test_an_interrupt_keeps_what_arrived(lead, part):
    steps = [HELLO, event("run-start"), wire.PART_BEGINS, *pieces(wire.PART, part), *[wire.HEARTBEAT] * 99]
    scripts = {"a": steps, "b": steps, "busy": []}  # none is asked once more
    ends, journal, engine, driver = lead(scripts.get, *scripts, retries=1, interrupt_at=9)
    assert isinstance(driver.interrupted, KeyboardInterrupt)
    assert {end.cut for end in ends.values()} == {"interrupted"}
    assert store.load(journal.path("a")).outcomes
    assert set(engine.cancelled) == {*ends} == {"a", "b", "busy"}
