"""`run --cluster` without a cluster: what nodes are given, what is refused, what the document says, the exit codes."""

import pytest
from msgspec.structs import replace

from gpubench.cli import selection
from gpubench.fleet.cluster import node_arguments, worst
from gpubench.fleet.driver import EngineNode, FleetJournal, NodeEnd, choose_nodes, fleet_of_ends, name_nodes
from gpubench.fleet.nodes import Node
from gpubench.fleet.options import ClusterRunOptions as RunOptions
from gpubench.result.run import Selection
from gpubench.result.store import save
from tests.unit.fleet.fleets import node_run
from tests.unit.report.builders import CPU, GPU


def test_a_node_is_given_what_to_measure_and_its_name():
    plain = node_arguments(RunOptions(cluster="local", output=["f.json"], quiet=True), "gpu-07")
    assert plain == ["--no-config", "--no-progress", "--ops=health", "--sessions=2", "--context=node=gpu-07"]
    chosen = {"ops": "add", "sizes": ["1k", "add=2k"], "quick": True, "context": ["a=b"], "check_only": True}
    assert node_arguments(RunOptions(cluster="local", **chosen), "x")[2:] == [
        "--ops=add", "--sizes=1k", "--sizes=add=2k", "--quick", "--check-only", "--context=a=b", "--context=node=x"
    ]  # fmt: skip


def test_sessions_are_added_to_confirm_health_alone_and_the_worst_code_wins():
    assert [worst(codes) for codes in ([], [3, 124], [124, 4], [4, 5], [5, 1])] == [0, 124, 4, 5, 1]
    for options in ({"ops": "add"}, {"rigorous": True}, {"sessions": 1}, {"confirm": 0}):
        assert "--sessions=2" not in node_arguments(RunOptions(**options), "x")


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
def test_what_makes_no_sense_is_refused_before_a_cluster_is_looked_for(gpubench, tmp_path, words, code, said):
    (tmp_path / "ray.py").write_text("raise ImportError('no ray here')\n")
    done = gpubench(*words.split(), env={"PYTHONPATH": str(tmp_path)})
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
