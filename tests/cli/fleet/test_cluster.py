"""`run` and `detect --cluster` without a cluster: what nodes are given, what is refused, what documents and screens say, the exit codes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.base.errors import ExitCode, GpubenchError, RequiredUnavailable
from gpubench.cli import selection
from gpubench.fleet import cluster
from gpubench.fleet import node as wire
from gpubench.fleet.cluster import (
    NODE_ARGUMENTS,
    detect_cluster,
    detect_nodes,
    fleet_code,
    node_arguments,
    run_cluster,
    worst,
)
from gpubench.fleet.driver import (
    Arrival,
    EngineNode,
    FleetJournal,
    FleetLimits,
    NodeEnd,
    choose_nodes,
    fleet_of_ends,
    name_nodes,
)
from gpubench.fleet.nodes import Node
from gpubench.fleet.options import ClusterDetectOptions, ClusterRunOptions
from gpubench.fleet.tables import inventory_headline
from gpubench.result.run import Selection
from gpubench.result.store import save
from tests.unit.fleet.engines import HELLO, FakeEngine, ended, pieces, whole
from tests.unit.fleet.fleets import node_run
from tests.unit.report.builders import CPU, GPU


def test_a_node_is_given_what_to_measure_and_its_name():
    plain = node_arguments(ClusterRunOptions(cluster="local", output=["f.json"], quiet=True), "gpu-07")
    assert plain == ["--no-config", "--no-progress", "--ops=health", "--sessions=2", "--context=node=gpu-07"]
    chosen = {"ops": "add", "sizes": ["1k", "add=2k"], "quick": True, "context": ["a=b"], "check_only": True}
    assert node_arguments(ClusterRunOptions(cluster="local", **chosen), "x")[2:] == [
        "--ops=add", "--sizes=1k", "--sizes=add=2k", "--quick", "--check-only", "--context=a=b", "--context=node=x"
    ]  # fmt: skip


def test_sessions_are_added_to_confirm_health_alone_and_the_worst_code_wins():
    assert [worst(codes) for codes in ([], [3, 124], [124, 4], [4, 5], [5, 1])] == [0, 124, 4, 5, 1]
    for options in ({"ops": "add"}, {"rigorous": True}, {"sessions": 1}, {"confirm": 0}):
        assert "--sessions=2" not in node_arguments(ClusterRunOptions(**options), "x")


@pytest.mark.parametrize(("words", "code", "said"), [
    ("run --cluster here", 2, "local, auto or HOST:PORT"), ("run --cluster ray://h:1", 2, "--cluster auto"),
    ("run --cluster local --dry-run", 2, "--dry-run is about one machine"),
    ("run --cluster local --context node=a", 2, "--context node= is about one machine"),  # all nodes would have that name
    ("run --cluster local --silence-timeout soon", 2, "--silence-timeout"),
    ("detect --cluster local --silence-timeout 5s", 2, "every 5 s"),
    ("run --cluster local --fail-on noisy", 2, "slow-gpu, incomplete"), ("run --cluster local -o f.md", 2, ".json"),
    ("detect --cluster here", 2, "local, auto or HOST:PORT"), ("detect --cluster local --deep", 2, "--deep is about one machine"),
    ("detect --cluster local --wake", 2, "--wake is about one machine"),
    ("detect --cluster local --require cupy", 2, "--require is about one machine"),
    ("detect --cluster local --format env", 2, "table, plain, markdown, html, json"),
    ("detect --cluster local --deadline soon", 2, "--deadline"), ("detect --cluster local --confirm 1", 2, "--confirm"),
    ("run --cluster local -o f.json", 5, "pip install"), ("detect --cluster local", 5, "pip install"),  # without Ray
])  # fmt: skip
def test_what_makes_no_sense_is_refused_before_a_cluster_is_looked_for(
    in_process, monkeypatch, words, code, said
):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = in_process(*words.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert (said in done.stderr, "Traceback" in done.stderr) == (True, False), done.stderr


def node(host, id, gpus=2):
    return EngineNode(id=id, host=host, cpus=2, gpus=gpus)


def test_hosts_of_one_name_are_told_apart_and_digests_hide_names():
    nodes = [node("a", "1" * 40), node("a", "2" * 40), node("b", "3" * 40)]
    assert list(name_nodes(nodes, hostnames=True)) == ["a-11111111", "a-22222222", "b"]
    hidden = list(name_nodes(nodes, hostnames=False))
    assert (len(set(hidden)), "b" in hidden) == (3, False)


def test_who_is_not_there_or_too_small_has_a_row():
    found = name_nodes([node("a", "1"), node("b", "2", gpus=1)], hostnames=True)
    asked, absent = choose_nodes(found, ["a", "b", "c"], 2)
    assert list(asked) == ["a"]
    assert {(one.name, one.reason) for one in absent} == {("b", "too-few-gpus"), ("c", "unreachable")}


def test_the_document_keeps_what_a_bad_node_brought(tmp_path):
    journal = FleetJournal(tmp_path / "fleet.json")
    for name in ("good", "died", "skew", "cut"):
        save(node_run(name, [f"GPU-{name}"]), journal.path(name))
    partial = {"reason": "partial", "last_event": "run-start"}
    ends = [
        NodeEnd(name="good", reason=None, error=None, last_event="run-complete"),
        NodeEnd(name="died", reason="died", error="killed", last_event="case-start x"),
        NodeEnd(name="skew", reason="version-skew", error="other code", last_event=None),
        NodeEnd(name="late", error="no time", cut="deadline", **partial),
        NodeEnd(name="cut", error="stopped", cut="interrupted", **partial),
    ]
    kept = [Node(key="k", label="kept", status="ok")]
    absent = [NodeEnd(name="gone", reason="unreachable", error="not there")]
    fleet = fleet_of_ends(ends, absent, kept, journal, expected=None, engine={"fake": "1"})
    assert {node.name: node.engine for node in fleet.nodes if not node.engine} == {"gone": {}, "kept": {}}
    rows = {one.name: (one.status, one.reason, one.result is not None) for one in fleet.nodes}
    assert rows == {
        "good": ("ok", None, True), "died": ("failed", "died", True), "skew": ("failed", "version-skew", False),
        "late": ("failed", "failed", False), "gone": ("failed", "unreachable", False), "kept": ("ok", None, False), "cut": ("ok", "partial", True),
    }  # fmt: skip
    assert (fleet.nodes_expected, fleet.nodes_collected, fleet.complete) == (7, 3, False)
    fleet = fleet_of_ends(ends[-1:], [], [], journal, expected=None, engine={})
    assert (fleet.nodes_collected, fleet.complete) == (1, False), "it was cut short"
    for others, embedded in ((62, True), (63, False)):  # and a node that was kept
        lost = [NodeEnd(name=f"x{i}", reason="hung", error="") for i in range(others)]
        fleet = fleet_of_ends([ends[0], *lost], absent, kept, journal, expected=None, engine={})
        good = next(node for node in fleet.nodes if node.name == "good")
        assert (good.result is not None, bool(good.files)) == (embedded, not embedded)
    journal.note_end("x", "ok", None)
    assert '"ended":"ok"' in journal.folder.with_suffix(".jsonl").read_text(), "a line is there at once"
    journal.close()


HEALTH_OPS = tuple(op for op in selection.PRESET_OPS["health"] if op not in selection.LINKS)


def test_health_measures_gpus_alone_and_each_op_at_one_size():
    asked = Selection(ops=list(HEALTH_OPS), regimes=["resident-queued"])
    found, _ = selection.choose_sizes("health", asked, [CPU, GPU], selection.Host(None, None), None)
    assert found.sizes == {"matmul": [8192], "copy": [2**26], "upload": [2**28], "download": [2**28]}
    given = replace(asked, sizes={"matmul": [64]})
    found, _ = selection.choose_sizes("health", given, [CPU, GPU], selection.Host(None, None), None)
    assert found.sizes["matmul"] == [64]
    found, _ = selection.choose_sizes("health", asked, [CPU], selection.Host(None, None), None)
    assert set(found.sizes) <= set(HEALTH_OPS)


def test_health_is_planned_for_the_gpu(gpubench):
    command = "run --ops health --backends numpy,fake --devices numpy:0,fake:gpu --dry-run"
    done = gpubench(*command.split())
    assert done.returncode == 0, done.stderr
    cases = [line for line in done.stdout.splitlines() if "@" in line]
    assert {line.partition("/")[0] for line in cases} == set(HEALTH_OPS)
    assert all("@fake:gpu" in line for line in cases)


# ---------------------------------------------------------------------- detect


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
    wanted = ClusterDetectOptions(cluster="local", quiet=True, **options)
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


# ---------------------------------------------------------------------- whole commands on an engine whose nodes are scripted


def good(name, number=1):
    return whole(node_run(name, [f"{name}{gpu}" for gpu in range(4)], number=number))


LOST = [HELLO, ended(5, "error: there is no cupy")]


@pytest.fixture
def asked(monkeypatch):
    """Ask a cluster of nodes with these scripts; the exit code and the engine."""

    def ask(command, scripts, interrupt_at=None):
        engine = Cluster({name: iter(steps) for name, steps in scripts.items()})
        engine.interrupt_at = interrupt_at
        monkeypatch.setattr(cluster, "engine_at", lambda address: engine)
        return command(engine), engine

    return ask


def measure(**options):
    return lambda engine: run_cluster(ClusterRunOptions(cluster="local", **options))


def test_a_fleet_is_measured_saved_told_and_gone_on_with(asked, tmp_path, capsys):
    path = tmp_path / "fleet.json"
    code, engine = asked(measure(output=[str(path)]), {"a": good("a"), "b": LOST, "c": LOST})
    out, errors = capsys.readouterr()
    assert code == ExitCode.FAILED
    assert errors.splitlines() == [
        "3 nodes are asked", *(f"{name}: failed: error: there is no cupy" for name in "bc"), "a: done", f"saved {path}"
    ]  # fmt: skip
    assert out.startswith("Fleet: 1 of 3 nodes complete, 4 of 4 GPUs compared; 2 failed (b, c)")
    assert {words[0] for words in engine.asked} == {"run"}
    assert sorted(words[-1] for words in engine.asked) == [f"--context=node={name}" for name in "abc"]
    fleet = json.loads(path.read_text())
    assert [(node["label"], node["status"], node["engine"]) for node in fleet["nodes"]] == [
        ("a", "ok", {"fake": "1"}), ("b", "failed", {"fake": "1"}), ("c", "failed", {"fake": "1"})
    ]  # fmt: skip
    # A node that failed is asked once more, and nobody after that. What is not asked again stays as it was.
    for nodes, names, count, complete, code in (
        ("b", ["b"], "1 node is asked", 2, ExitCode.FAILED), (None, ["c"], "1 node is asked", 3, 0), (None, [], "0 nodes are asked", 3, 0),
    ):  # fmt: skip
        scripts = {"a": good("a", 2), "b": good("b"), "c": good("c")}
        exit_code, engine = asked(measure(append=str(path), nodes=nodes), scripts)
        assert (exit_code, [words[-1][-1] for words in engine.asked]) == (code, names)
        out, errors = capsys.readouterr()
        assert errors.splitlines()[0] == count
        gpus = 4 * complete
        assert out.startswith(f"Fleet: {complete} of 3 nodes complete, {gpus} of {gpus} GPUs compared; ")
    code, engine = asked(measure(append=str(path), nodes="a", quiet=True), {"b": []})  # a has left the cluster
    assert (code, engine.asked, capsys.readouterr().err) == (0, [], ""), "a whole node is not asked again"


def test_the_end_of_a_node_is_one_short_line(capsys):
    cluster.tell_end(NodeEnd(name="a", reason="hung", error="x\n y" + "z" * 400))
    assert capsys.readouterr().err == f"a: hung: x y{'z' * 291}\n"


def test_without_a_name_the_fleet_goes_to_the_folder_of_results(asked, tmp_path, capsys):
    folder = tmp_path / "some" / "results"
    for _ in range(2):
        code, _ = asked(measure(results_dir=str(folder), format="json"), {"a": good("a")})
        assert (code, json.loads(capsys.readouterr().out)["nodes_complete"]) == (0, 1)
    assert {path.suffix for path in folder.iterdir() if path.name.startswith("fleet-")} >= {".json", ".d"}


def test_an_interrupt_saves_what_arrived(asked, tmp_path):
    path = tmp_path / "fleet.json"
    with pytest.raises(KeyboardInterrupt):
        asked(measure(output=[str(path)], no_progress=True), {"a": good("a"), "b": [HELLO, *[b"b"] * 99]}, 20)
    assert [node["status"] for node in json.loads(path.read_text())["nodes"]] == ["ok", "failed"]
    detect = ClusterDetectOptions(cluster="local")
    with pytest.raises(KeyboardInterrupt):
        asked(lambda engine: detect_cluster(detect), {"a": [HELLO, *[b"b"] * 99]}, 5)


@pytest.mark.parametrize(("options", "said"), [
    ({"output": ["f.json", "g.json"]}, "a fleet is one file"), ({"output": ["f.md"]}, "a fleet is one file"),
    ({"append": "f.md"}, "--append: a fleet is one file"), ({"append": "f.json", "output": ["f.json"]}, "--append"),
    ({"output": ["no/f.json"]}, "cannot write"), ({"append": "run.json"}, "is no fleet"),
    ({"output": ["f.json"], "nodes": "a,z"}, "1 of 2 nodes can be asked"),
    ({"output": ["f.json"], "expect": 2}, "1 of 2 nodes can be asked"),
    ({"output": ["f.json"], "format": "csv"}, "--format"), ({"output": ["f.json"], "fail_on": "noisy"}, "--fail-on"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_and_asks_nobody(asked, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    save(node_run("a", ["A0"]), tmp_path / "run.json")
    engines = []
    with pytest.raises(GpubenchError, match=said):
        asked(lambda engine: engines.append(engine) or measure(**options)(engine), {"a": good("a")})
    assert engines[0].asked == []


def test_gates_of_the_report_and_what_it_refuses_count_too(asked, tmp_path, capsys):
    output = [str(tmp_path / "fleet.json")]
    code, _ = asked(measure(output=output, fail_on="slow-gpu, incomplete"), {"a": good("a")})
    assert code == 0
    slow = whole(node_run("a", ["A0", "A1", "A2", "A3"], slow={"A1": 1.5}))
    code, _ = asked(measure(output=output, fail_on="slow-gpu"), {"a": slow})
    assert code == ExitCode.GATE
    code, _ = asked(measure(output=output, fail_on="slow-gpu"), {"a": whole(node_run("a", ["A0"]))})
    assert (code, "could not fail" in capsys.readouterr().err) == (ExitCode.INPUT, True)


@pytest.mark.parametrize(("format", "begins"), [(None, "Fleet: 1 of 2"), ("json", "{"), ("markdown", "#")])
def test_an_inventory_is_printed_with_its_code(asked, capsys, format, begins):
    options = ClusterDetectOptions(cluster="local", format=format, quiet=True)
    code, _ = asked(lambda engine: detect_cluster(options), {"a": answer(), "b": LOST})
    out, errors = capsys.readouterr()
    assert (code, begins in out.splitlines()[0], errors) == (ExitCode.FAILED, True, "")


@pytest.mark.parametrize(("reasons", "cut", "complete", "expect", "code"), [
    ([], "", True, None, 0), (["partial"], "", True, 1, 1), (["busy"], "", True, 1, 0), (["busy"], "", True, None, 5),
    (["busy"], "", False, 2, 5), ([], "", False, 2, 5), (["failed"], "late", False, None, 1), (["hung"], "hung", False, 2, 124),
    (["too-few-gpus", "partial"], "", False, None, 1),
])  # fmt: skip
def test_the_code_of_a_fleet_is_its_worst(reasons, cut, complete, expect, code):
    nodes = [SimpleNamespace(reason=reason, name=reason) for reason in [*reasons, None]]
    ends = [SimpleNamespace(name=cut, cut="deadline" if cut else None)]
    assert fleet_code(SimpleNamespace(nodes=nodes, complete=complete), ends, expect) == code
