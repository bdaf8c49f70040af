"""`run` and `detect --cluster` in this process, on an engine whose nodes are scripted."""

import json
from types import SimpleNamespace

import pytest

from gpubench.base.errors import ExitCode, GpubenchError, RequiredUnavailable
from gpubench.fleet import cluster
from gpubench.fleet.cluster import detect_cluster, fleet_code, run_cluster
from gpubench.fleet.driver import NodeEnd
from gpubench.fleet.options import ClusterDetectOptions, ClusterRunOptions
from gpubench.result.store import save
from tests.cli.fleet.test_inventory import Cluster, answer
from tests.unit.fleet.engines import HELLO, ended, whole
from tests.unit.fleet.fleets import node_run


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
        assert out.startswith(
            f"Fleet: {complete} of 3 nodes complete, {4 * complete} of {4 * complete} GPUs compared; "
        )
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
    ({"append": "f.md"}, "a fleet is one file"), ({"append": "f.json", "output": ["f.json"]}, "--append"),
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


def test_a_cluster_without_nodes_has_none_to_ask(asked, tmp_path):
    with pytest.raises(RequiredUnavailable, match="0 of 0 nodes") as caught:
        asked(measure(output=[str(tmp_path / "f.json")]), {})
    assert caught.value.why == "the cluster has 0"


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
