"""`gpubench merge` as a user runs it."""

import gzip
import json

import pytest

from gpubench.fleet.nodes import EMBEDDED_NODES
from gpubench.result.store import load, save
from tests.forking import environment
from tests.unit.fleet.fleets import node_run
from tests.unit.fleet.test_merging import run


@pytest.fixture
def gpubench(in_process):
    return in_process


@pytest.fixture
def folder(tmp_path):
    save(run(1), tmp_path / "a.json")
    save(run(2), tmp_path / "b.json")
    save(run(3, gpu="GPU-2"), tmp_path / "other.json")
    return tmp_path


def test_several_machines_give_a_fleet_that_report_reads(gpubench, folder):
    assert gpubench("merge", "a.json", "other.json", "-o", "fleet.json.gz", cwd=folder).returncode == 0
    fleet = json.loads(gzip.decompress((folder / "fleet.json.gz").read_bytes()))
    assert (fleet["name"], fleet["nodes_expected"], fleet["complete"]) == ("gpubench-fleet", 2, True)
    done = gpubench("report", "fleet.json.gz", "--format", "json", cwd=folder)
    assert json.loads(done.stdout)["nodes_collected"] == 2
    done = gpubench("report", "fleet.json.gz", "--format", "json", "--filter", "matmul", cwd=folder)
    assert len(json.loads(done.stdout)["sources"]) == 2  # the reports of the nodes
    done = gpubench("merge", "a.json", "b.json", "-o", "all.json", cwd=folder)  # of one machine
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(load(folder / "all.json").sessions) == 2
    # A fleet grows: its nodes and a further file of one of them.
    assert gpubench("merge", "fleet.json.gz", "b.json", "-o", "more.json", cwd=folder).returncode == 0
    nodes = json.loads((folder / "more.json").read_text())["nodes"]
    assert sorted(len(node["result"]["sessions"]) for node in nodes) == [1, 2]


def test_a_fleet_with_a_node_missing_is_exit_4_and_written(gpubench, folder):
    done = gpubench("merge", "a.json", "gone.json", "-o", "fleet.json", "--expect", "2", cwd=folder)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert "1 of 2 nodes brought a result" in done.stderr
    fleet = json.loads((folder / "fleet.json").read_text())
    assert (fleet["complete"], fleet["nodes_collected"]) == (False, 1)
    assert [node["status"] for node in fleet["nodes"]] == ["ok", "failed"]
    assert "there is no such file" in fleet["nodes"][1]["error"]
    reported = gpubench("report", "fleet.json", cwd=folder)
    assert (reported.returncode, reported.stderr) == (0, "")
    first = "Fleet: 1 of 2 nodes complete, 0 of 1 GPUs compared; 1 unusable (gone.json)"
    assert reported.stdout.startswith(first)
    assert "there is no such file" in " ".join(reported.stdout.split())
    assert gpubench("report", "fleet.json", "--fail-on", "incomplete", cwd=folder).returncode == 3
    assert gpubench("merge", "fleet.json", "other.json", "-o", "whole.json", cwd=folder).returncode == 0
    assert json.loads((folder / "whole.json").read_text())["complete"]
    assert gpubench("merge", "gone.json", "-o", "none.json", "--expect", "1", cwd=folder).returncode == 4
    done = gpubench("report", "none.json", "--filter", "matmul", cwd=folder)
    assert (done.returncode, "no node of none.json brought a result" in done.stderr) == (4, True)
    assert "none.json: the node gone.json brought no result: gone.json: " in done.stderr
    done = gpubench("merge", "a.json", "n1/x.json", "n2/x.json", "-o", "two.json", "--nodes", "n", cwd=folder)
    assert "1 of 4 nodes brought a result" in done.stderr, "files of one name are two nodes"


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ("a.json a.json -o x.json", 4, "is there twice"), ("a.json gone.json -o x.json", 4, "there is no such file"),
    ("a.json -o x.csv", 2, ".json or .json.gz"), ("a.json -o nowhere/x.json", 2, "nowhere does not exist"),
    ("a.json b.json", 2, "--output"), ("-o x.json", 2, "FILE"), ("a.json -o x.json --expect 0", 2, "--expect"),
    ("a.json -o x.json --nodes n[1-2]", 2, "scontrol show"), ("a.json -o x.json --nodes @a.json", 2, "scontrol show"),
])  # fmt: skip
def test_mistakes(gpubench, folder, arguments, code, message):
    done = gpubench("merge", *arguments.split(), cwd=folder)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 3)
    assert (message in done.stderr, (folder / "x.json").exists()) == (True, False)


@pytest.fixture
def fleet(tmp_path, gpubench):
    """Four nodes of two GPUs, one of them slow, and the file of a node that is not there."""
    for name in "abcd":
        slow = {"c1": 1.4} if name == "c" else {}
        save(node_run(name, [f"{name}0", f"{name}1"], slow=slow), tmp_path / f"{name}.json.gz")
    (tmp_path / "names").write_text("a\nb\nc\nd\ne\n")
    files = [f"{name}.json.gz" for name in "abcd"]
    done = gpubench("merge", *files, "--nodes", "@names", "-o", "fleet.json", cwd=tmp_path)
    assert (done.returncode, "e: no file of it was named" in done.stderr) == (4, True)
    return tmp_path


@pytest.mark.parametrize(("arguments", "code", "message"), [
    ("fleet.json --ok-nodes ok --bad-nodes bad", 0, ""), ("fleet.json --fail-on slow-gpu", 3, ""),
    ("fleet.json --fail-on slow-gpu --tolerance 40", 0, ""), ("fleet.json --tolerance much", 2, "not a percentage"),
    ("fleet.json --known-good gone.json", 4, "there is no such file"), ("fleet.json --node x", 2, "--node"),
    ("fleet.json --node e", 4, "brought no result"), ("a.json.gz --fail-on slow-gpu", 2, "is about a fleet"), ("fleet.json --ok-nodes no/ok", 1, "no/ok"),
    ("fleet.json --ok-nodes ok --sections answer", 2, "is about a fleet"),
    ("few.json --fail-on slow-gpu", 4, "could not fail"), ("few.json --fail-on slow-gpu --known-good fleet.json", 0, ""),
])  # fmt: skip
def test_how_the_report_of_a_fleet_ends(gpubench, fleet, arguments, code, message):
    assert gpubench("merge", "a.json.gz", "--expect", "1", "-o", "few.json", cwd=fleet).returncode == 0
    done = gpubench("report", *arguments.split(), cwd=fleet)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False)
    if "--bad-nodes" in arguments:
        first = "Fleet: 4 of 5 nodes complete, 8 of 8 GPUs compared; 1 missing (e); 1 slow GPU"
        assert done.stdout.splitlines()[0] == first
        assert ((fleet / "ok").read_text(), (fleet / "bad").read_text()) == ("a\nb\nd\n", "c\ne\n")


@pytest.fixture(scope="module")
def large(tmp_path_factory, starter):
    """A fleet of more nodes than one file holds, merged."""
    folder = tmp_path_factory.mktemp("large")
    for one in [node_run(f"n{i:02}", [f"U{i}"], ops=[("copy", 2**26)]) for i in range(EMBEDDED_NODES + 1)]:
        save(one, folder / f"{one.id}.json")
    files = sorted(path.name for path in folder.iterdir())
    for output, more in (("fleet.json", []), ("one.json", ["--embed"])):
        done = starter.run("merge", *files, *more, "-o", output, cwd=folder, env=environment(folder, {}))
        assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_a_large_fleet_refers_to_the_files_of_its_nodes(gpubench, large):
    fleet = json.loads((large / "fleet.json").read_text())
    assert all("result" not in node and len(node["files"]) == 1 for node in fleet["nodes"])
    assert (len(list((large / "fleet.d").iterdir())), (large / "one.d").exists()) == (EMBEDDED_NODES + 1, False)
    shown = [gpubench("report", name, cwd=large).stdout for name in ("fleet.json", "one.json")]
    assert shown[0] == shown[1]
    assert shown[0].startswith("Fleet: 65 of 65 nodes complete, 65 of 65 GPUs compared; no slow GPUs")
    done = gpubench("report", "fleet.json", "--node", "n07", "--format", "json", cwd=large)
    assert [source["run_id"] for source in json.loads(done.stdout)["sources"]] == ["n07-1"]
    files = sorted(f"fleet.d/{path.name}" for path in (large / "fleet.d").iterdir())
    for name, inputs in (("again.json", files), ("grown.json", ["fleet.json"])):
        assert gpubench("merge", *inputs, "--embed", "-o", name, cwd=large).returncode == 0
        assert (large / name).read_bytes() == (large / "one.json").read_bytes()


def test_each_result_of_a_node_has_a_file_of_its_own(gpubench, large, tmp_path):
    save(node_run("n07", ["V7"], ops=[("copy", 2**26)], number=2), tmp_path / "later.json")
    done = gpubench("merge", "fleet.json", str(tmp_path / "later.json"), "-o", "two.json", cwd=large)
    assert done.returncode == 0, done.stderr
    (node,) = (node for node in json.loads((large / "two.json").read_text())["nodes"] if node["label"] == "n07")
    assert len({file["path"] for file in node["files"]}) == 2
    done = gpubench("report", "two.json", "--node", "n07", "--format", "json", cwd=large)
    assert {source["run_id"] for source in json.loads(done.stdout)["sources"]} == {"n07-1", "n07-2"}


def test_a_file_of_a_node_that_changed_or_lies_elsewhere_is_not_used(gpubench, large, tmp_path):
    fleet = json.loads((large / "fleet.json").read_text())
    (tmp_path / "own.d").mkdir()
    for i, node in enumerate(fleet["nodes"]):
        (file,) = node["files"]
        content = (large / file["path"]).read_bytes()
        file["path"] = f"own.d/{i}.json.gz"
        (tmp_path / file["path"]).write_bytes(content + b"x" if i == 0 else content)
    (tmp_path / "own.d" / "loop").symlink_to("loop")
    for i, path in enumerate(("../secret.json", "own.d/gone.json", "own.d/\0.json", "own.d/loop"), 1):
        fleet["nodes"][i]["files"][0]["path"] = path
    (tmp_path / "fleet.json").write_text(json.dumps(fleet))
    done = gpubench("report", "fleet.json", cwd=tmp_path)
    assert done.stdout.startswith("Fleet: 60 of 65 nodes complete, 60 of 60 GPUs compared; 5 unusable (n")
    for reason in ("it changed since", "it lies outside", ": No such file", "embedded null"):
        assert reason in " ".join(done.stdout.split())
