"""`detect --cluster` without a cluster: what nodes are asked, what is refused, what is told, the exit codes."""

from pathlib import Path

import msgspec
import pytest

from gpubench.base.errors import RequiredUnavailable
from gpubench.fleet import node as wire
from gpubench.fleet.cluster import NODE_ARGUMENTS, detect_nodes, fleet_code
from gpubench.fleet.driver import Arrival, EngineNode, FleetLimits
from gpubench.fleet.options import ClusterDetectOptions as DetectOptions
from gpubench.fleet.tables import inventory_headline
from tests.unit.fleet.engines import HELLO, FakeEngine, ended, pieces

UUID = b"GPU-00000000-4455-6677-8899-aabbccddeeff"
RECORDED = Path(__file__).parents[2] / "detect" / "two-h200.detect.json"
SOON = FleetLimits(queue_s=0.05, silence_s=0.05, deadline_s=60)


def answer(document=None):
    document = RECORDED.read_bytes() if document is None else document
    return [HELLO, *pieces(wire.RESULT, document), ended()]


class Cluster(FakeEngine):
    """Nodes by name, each with what it says; it keeps what they were asked."""

    def __init__(self, scripts):
        super().__init__(scripts.__getitem__)
        self._names = list(scripts)
        self.asked = []

    def nodes(self):
        return [EngineNode(id=name, host=name, cpus=2, gpus=2) for name in self._names]

    def start(self, node, arguments):
        self.asked.append(tuple(arguments))
        super().start(node, arguments)


def ask(scripts, **options):
    cluster = Cluster(scripts)
    wanted = DetectOptions(cluster="local", quiet=True, **options)
    found, asked = detect_nodes(wanted, cluster, SOON)
    assert (asked.interrupted, set(cluster.asked) <= {NODE_ARGUMENTS}) == (None, True)
    return found, int(fleet_code(found, asked.ends, wanted.expect))


def test_nodes_that_answer_are_listed_with_gpus_named_as_in_results(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found, code = ask({"a": answer(), "b": answer()})
    assert (inventory_headline(found), code) == ("Fleet: 2 of 2 nodes answered, 4 GPUs", 0)
    (group,) = found.groups
    assert (group.nodes, list(group.gpus.values())) == (["a", "b"], [2])
    assert [UUID in text for text in (RECORDED.read_bytes(), msgspec.json.encode(found))] == [True, False]
    assert list(tmp_path.iterdir()) == [], "nothing of a node stays on the disk"
    hidden, _ = ask({"secret-host": answer(), "b": [HELLO]}, no_hostnames=True)
    assert b"secret-host" not in msgspec.json.encode(hidden)


@pytest.mark.parametrize(("script", "reason", "code"), [
    ([HELLO], "hung", 1), ([], "busy", 5), ([Arrival("bad", reason="died", why="its process ended")], "died", 1),
    ([wire.HELLO + msgspec.json.encode(wire.NodeIdentity("9.9", "abc"))], "version-skew", 1),
    (answer(b'{"name": "gpubench-result", "schema_version": 1}'), "failed", 1), (answer(b"no JSON"), "failed", 1),
    ([HELLO, ended(1, "error: no room")], "failed", 1),
], ids=["hung", "busy", "died", "skew", "wrong", "junk", "empty"])  # fmt: skip
def test_a_node_that_does_not_answer_has_a_row_with_its_reason(script, reason, code):
    found, ends_with = ask({"good": answer(), "bad": script})
    assert inventory_headline(found).startswith(f"Fleet: 1 of 2 nodes answered, 2 GPUs; 1 {reason} (bad)")
    assert (ends_with, found.complete, bool(found.nodes[0].why)) == (code, False, True)
    if reason == "version-skew":
        assert [(part.what, part.others) for part in found.drift] == [("gpubench", {"9.9 (abc)": ["bad"]})]


def test_enough_nodes_are_enough_and_a_named_one_that_is_absent_is_told():
    found, code = ask({"a": answer(), "b": []}, expect=1)
    assert (found.nodes_expected, found.complete, code) == (1, True, 0)
    found, code = ask({"a": answer(), "b": answer()}, nodes="a,c", expect=1)
    assert ([node.name for node in found.nodes], code) == (["c", "a"], 0)
    with pytest.raises(RequiredUnavailable, match="1 of 2 nodes can be asked"):
        ask({"a": answer()}, nodes="a,c")


def test_the_deadline_ends_the_fleet_with_its_code():
    beats = [step for _ in range(9999) for step in (wire.HEARTBEAT, 0.001)]
    limits = FleetLimits(queue_s=9, silence_s=9, deadline_s=0.2)
    cluster = Cluster({"a": answer(), "b": [HELLO, *beats]})
    found, asked = detect_nodes(DetectOptions(cluster="local", quiet=True), cluster, limits)
    assert [(node.name, node.reason) for node in found.nodes] == [("b", "failed"), ("a", None)]
    assert int(fleet_code(found, asked.ends, None)) == 124


def test_an_interrupt_tells_who_answered_until_then():
    cluster = Cluster({"a": answer(), "b": [HELLO, *[wire.HEARTBEAT] * 99]})
    cluster.interrupt_at = 9
    found, asked = detect_nodes(DetectOptions(cluster="local", quiet=True), cluster, SOON)
    assert isinstance(asked.interrupted, KeyboardInterrupt)
    assert inventory_headline(found) == "Fleet: 1 of 2 nodes answered, 2 GPUs; 1 failed (b)"
