"""The driver of a fleet, the messages of a node, and Ray as an engine: an accident costs one node alone."""

import os
import signal
import stat
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock

import msgspec
import pytest

from gpubench.base.errors import InputError, RequiredUnavailable
from gpubench.fleet import node as wire
from gpubench.fleet.cluster import NODE_ARGUMENTS
from gpubench.fleet.driver import (
    EARLIER,
    Arrival,
    EngineNode,
    FleetDriver,
    FleetJournal,
    FleetLimits,
    NodeClocks,
    load_machine,
)
from gpubench.fleet.node import LOCAL, ChildEnd, NodeIdentity, PartFile, RayEngine, messages
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


@pytest.mark.parametrize("bad", [
    event("run-start"), HELLO + b"}", HELLO[:1] + b"[]", b"", wire.EVENT + b"\xff", wire.ENDED + b"{}",
    wire.EVENT + b"x" * (wire.PIECE_BYTES + 1), wire.RESULT + b"no result", b"?what",
])  # fmt: skip
def test_whatever_a_node_sends_costs_that_node_alone(lead, bad):
    scripts = {"bad": [bad, ended()], "good": whole(measured("good"))}
    ends, *_ = lead(lambda node: scripts[node], *scripts)
    assert (ends["bad"].reason, ends["good"].reason) == ("failed", None)


def test_an_engine_that_fails_keeps_what_arrived(lead, part):
    begun = [HELLO, wire.PART_BEGINS, *pieces(wire.PART, part)]
    scripts = {"begun": begun, "lost": (5.0 / number for number in (1, 0))}
    ends, journal, *_ = lead(lambda node: scripts[node], *scripts, "not started")
    assert [end.reason for end in ends.values()] == ["failed"] * 3
    assert store.load(journal.path("begun")).id == "a-1"


def test_a_node_may_send_no_more_than_a_result_may_hold(lead, monkeypatch):
    piece = wire.PART + b"x" * wire.PIECE_BYTES
    monkeypatch.setattr("gpubench.fleet.driver.MOST_BYTES", 4 * wire.PIECE_BYTES)
    ends, journal, _, _ = lead(lambda _: [HELLO, wire.PART_BEGINS, *[piece] * 9], "a")
    assert ends["a"].reason == "failed"
    assert sum(path.stat().st_size for path in journal.folder.iterdir()) <= 4 * wire.PIECE_BYTES


def test_a_retry_keeps_both_attempts(lead, part):
    bad = [wire.EVENT + b"[1]", wire.EVENT + b"{"]
    begun = [HELLO, event("run-start"), *bad, wire.PART_BEGINS, *pieces(wire.PART, part)]
    attempts = iter([begun, whole(measured("a"))])
    ends, journal, *_ = lead(lambda _: next(attempts), "a", retries=1)
    assert (ends["a"].reason, ends["a"].last_event) == (None, "case-start matmul")
    assert [(attempt.reason, attempt.last_event) for attempt in ends["a"].attempts] == [("hung", "run-start")]
    log = journal.folder.with_suffix(".jsonl").read_bytes()
    assert (len(list((journal.folder / EARLIER).iterdir())), b"[1]" in log) == (1, False)
    for steps, reason, before in (([], "busy", 1), ([HELLO, ended(5, "no")], "failed", 0)):
        ends, *_ = lead(lambda _, steps=steps: steps, "b", retries=1)
        assert (ends["b"].reason, len(ends["b"].attempts)) == (reason, before)


def test_a_part_that_begins_anew_replaces_what_arrived(tmp_path):
    journal = FleetJournal(tmp_path / "fleet.json")
    for text in (b"ab", b"cd"):
        journal.begin_part("n")
        for at in range(2):
            journal.add_part("n", text[at : at + 1])
        assert store.part_of(journal.path("n")).read_bytes() == text
    journal.close()


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
    clocks.stop("a")
    assert clocks.wait_s(149.75) == 0.25, "the fleet ends before the node's time does"


def test_what_a_node_says_is_kept_up_to_a_length(lead):
    longest = wire.EVENT + b'{"reason": "' + b"x" * (wire.PIECE_BYTES - 14) + b'"}'
    assert len(longest) == (64 << 10) + 1
    ends, *_ = lead(lambda _: [HELLO, longest, ended(5, "y" * 1000 + "z" * 2000)], "a")
    assert (ends["a"].reason, ends["a"].last_event, ends["a"].error) == ("failed", "x" * 200, "z" * 2000)
    ends, *_ = lead(lambda _: [HELLO, longest + b" ", ended()], "a")
    assert f"a message of {wire.PIECE_BYTES + 2} bytes" in ends["a"].error
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


# ---------------------------------------------------------------- what a node sends
ADD = "run --ops add --sizes 1k --backends numpy --quick --implementations library --no-config --regimes resident-waited"


@pytest.mark.slow
def test_a_run_is_told_from_who_answers_to_how_it_ended(tmp_path):
    found = list(messages(ADD.split()))
    assert msgspec.json.decode(found[0][1:], type=NodeIdentity) == wire.identity()
    assert msgspec.json.decode(found[-1][1:], type=ChildEnd).status == 0
    assert all(len(message) <= wire.PIECE_BYTES + 1 for message in found)
    events = [msgspec.json.decode(one[1:])["reason"] for one in found if one[:1] == wire.EVENT]
    assert (events[0], events[-1]) == ("run-start", "run-complete")
    (tmp_path / "r.json.gz").write_bytes(b"".join(one[1:] for one in found if one[:1] == wire.RESULT))
    assert store.load(tmp_path / "r.json.gz").complete


@pytest.mark.slow
def test_a_run_that_cannot_begin_says_why():
    *_, last = messages(["run", "--ops", "nothing"])
    end = msgspec.json.decode(last[1:], type=ChildEnd)
    assert (end.status, "there is no 'nothing'" in end.errors) == (2, True)


@pytest.mark.slow
def test_what_detect_writes_is_its_result_in_few_messages(tmp_path):
    found = [one for one in messages(NODE_ARGUMENTS) if one[:1] != wire.HEARTBEAT]  # a busy host takes seconds
    assert [one[:1] for one in found] == [wire.HELLO, wire.RESULT, wire.ENDED]
    assert msgspec.json.decode(found[-1][1:], type=ChildEnd) == ChildEnd(0, "")
    path = tmp_path / "machine.json"
    path.write_bytes(found[1][1:])
    assert load_machine(path).cpu.logical.value == os.cpu_count()


def test_a_node_does_what_its_arguments_say_whatever_the_environment_of_the_driver_was(monkeypatch):
    for name in ("GPUBENCH_CLUSTER", "GPUBENCH_DEEP", "GPUBENCH_FAKE_GPUS"):
        monkeypatch.setenv(name, "1")
    names = {name for name in wire.environment({}) if name.startswith("GPUBENCH_")}
    assert names - {"GPUBENCH_CACHE_DIR"} == {"GPUBENCH_FAKE_GPUS"}
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByIndex=["GPU-0", b"GPU-1"].__getitem__,
        nvmlDeviceGetUUID=lambda handle: handle,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    # What is no number, or unknown, stays as it is.
    for devices, names in (("1,0", "GPU-1,GPU-0"), ("", ""), ("GPU-7,GPU-8", "GPU-7,GPU-8"), ("99", "99")):
        monkeypatch.setenv(wire.DEVICES, devices)
        assert wire.environment({wire.DEVICES: devices})[wire.DEVICES] == names


def test_a_part_file_is_read_on_and_from_its_start_when_it_is_written_anew(tmp_path):
    path = tmp_path / "r.part"
    part = PartFile(path)
    assert list(part.news()) == []
    path.write_bytes(b"one\n")
    assert list(part.news()) == [wire.PART_BEGINS, wire.PART + b"one\n"]
    with open(path, "ab") as file:
        file.write(b"two\n")
    assert (list(part.news()), list(part.news())) == ([wire.PART + b"two\n"], [])
    (tmp_path / "fresh").write_bytes(b"anew" * wire.PIECE_BYTES)
    (tmp_path / "fresh").replace(path)
    begins, *pieces = part.news()
    assert (begins, len(pieces)) == (wire.PART_BEGINS, 4)


# ---------------------------------------------------------------- Ray as an engine: its folder, and what it is asked, on a stub
class Ray(ModuleType):
    """Ray's calls, noted; `ready` are the tasks that have something, and a task yields what it sends or raises."""

    __version__ = "2.60.0"

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[Any] = []
        self.ready: list[Any] = []

    def init(self, **how: Any) -> None:
        self.calls.append(how)
        if folder := how.get("_temp_dir"):  # in which everybody may write, as in the real one's
            os.makedirs(f"{folder}/session_1/sockets", exist_ok=True)
            os.chmod(folder, 0o777)
            Path(f"{folder}/session_1/sockets/raylet").touch()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("what Ray says")

    def nodes(self) -> list[dict[str, Any]]:
        owned = {"a": {"CPU": 4, "GPU": 2}, "b": {"CPU": 1}, "gone": {"CPU": 4}, "head": {}}
        return [
            {"NodeID": name, "NodeManagerHostname": f"host-{name}", "Alive": name != "gone", "Resources": what}
            for name, what in owned.items()
        ]

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            self.calls.append(asked)
            return SimpleNamespace(remote=lambda words: self.calls.append(words) or self.ready[-1])

        assert function is wire.run_node
        return SimpleNamespace(options=options)

    def wait(self, tasks: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.calls.append((num_returns, timeout))
        return [task for task in tasks if task in self.ready][:num_returns], []

    def get(self, message: Any, *, timeout: float) -> Any:
        assert timeout == 0
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self, task: Any) -> None:
        self.calls.append(("cancel", task))

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(sys.modules, "ray", Ray())
    return folder


def test_a_private_folder_stands_above_what_ray_opens_for_all(temporary: Path) -> None:
    engine = RayEngine(LOCAL)
    (folder,) = temporary.iterdir()
    about = folder.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o700, os.geteuid())
    open_for_all = [path for path in folder.rglob("*") if path.stat().st_mode & 0o022]
    assert (bool(open_for_all), folder in open_for_all) == (True, False)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert (token.parent, stat.S_IMODE(token.stat().st_mode)) == (folder, 0o600)
    engine.close()
    assert ([*temporary.iterdir()], "RAY_AUTH_TOKEN_PATH" in os.environ) == ([], False)


@pytest.mark.parametrize(("error", "kind", "told"), [
    (RuntimeError("no ports"), RequiredUnavailable, "cluster"), (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
    (ImportError("no ray"), RequiredUnavailable, "Ray is not installed"), (InputError("unreadable", "full"), InputError, "full"),
])  # fmt: skip
def test_a_ray_that_does_not_start_leaves_nothing(temporary, monkeypatch, error, kind, told) -> None:
    monkeypatch.setattr(sys.modules["ray"], "init", Mock(side_effect=error))
    with pytest.raises(kind, match=told):
        RayEngine(LOCAL)
    assert not list(temporary.iterdir())


class NodeDiedError(RuntimeError):
    """As Ray names it."""


def test_a_node_is_one_task_that_takes_all_of_it_and_gives_a_message_at_a_time(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray := Ray())
    handler = signal.getsignal(signal.SIGTERM)
    engine = RayEngine("h:1")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    assert ray.calls.pop() == {**quiet, "address": "h:1"}
    assert (engine.version, signal.getsignal(signal.SIGTERM)) == ("2.60.0", handler)
    a, b = engine.nodes()
    assert a == EngineNode(id="a", host="host-a", cpus=4, gpus=2)
    assert b == EngineNode(id="b", host="host-b", cpus=1)
    bare = EngineNode(id="", host="")
    assert (b.gpus, bare.cpus, bare.gpus, engine.poll(1.0)) == (0, 0, 0, [])
    sent = {"a": [b"one", b"two", NodeDiedError("  off\n\n power ")], "b": [b"x", 5, b"y"]}
    for place in (a, b):
        ray.ready.append(iter(sent[place.id]))
        engine.start(place, ("run", "--quick"))
        assert ray.calls[-2:] == [
            {"num_returns": "streaming", "max_retries": 0, "num_cpus": place.cpus, "num_gpus": place.gpus,
             "label_selector": {"ray.io/node-id": place.id}}, ["run", "--quick"],
        ]  # fmt: skip
    tasks = list(ray.ready)
    ray.calls.clear()
    assert engine.poll(2.5) == [Arrival("a", b"one"), Arrival("b", b"x")]
    assert ray.calls == [(1, 2.5), (2, 0)]
    number = Arrival("b", reason="failed", why="it sent an object of type int and no bytes")
    assert (engine.poll(2.5), ray.calls[-1]) == ([Arrival("a", b"two"), number], ("cancel", tasks[1]))
    assert engine.poll(2.5) == [Arrival("a", reason="died", why="off power")]
    ray.ready.append(iter(()))
    engine.start(b, ())
    assert engine.poll(0.5) == [Arrival("b", reason="died", why="its task ended before its run did")]
    engine.start(b, ())
    ray.ready.clear()
    assert engine.poll(0.5) == []
    engine.close()
    assert ray.calls[-2:] == [("cancel", ANY), "shutdown"]
    out, errors = capsys.readouterr()
    assert (out, errors) == ("", "what Ray says\n"), "the report has stdout for itself"
    print("back")
    assert capsys.readouterr().out == "back\n"


def test_what_ray_says_is_one_line_and_an_unknown_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [wire.error_text(RuntimeError(text)) for text in ("a" * 700, "")]
    assert texts == ["a" * 600, "RuntimeError"]
    assert [wire.error_reason(error("")) for error in (NodeDiedError, KeyError)] == ["died", "failed"]
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequiredUnavailable, match="Ray is not installed"):
        RayEngine("auto")
