"""`run` and `detect --cluster` on a real Ray cluster, alone in a network namespace: each accident gives its documented
row.

One program makes the cluster once and has all accidents; the tests read what it found.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.program import NODES

pytestmark = [pytest.mark.ray, pytest.mark.serial]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    done = subprocess.run(
        ["unshare", "-n", sys.executable, Path(__file__).with_name("program.py"), folder],
        cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert (folder / "found.json").exists(), done.stderr[-4000:]
    return json.loads((folder / "found.json").read_text())


def rows(ended) -> list[tuple[str, str | None]]:
    return sorted((node["status"], node.get("reason")) for node in ended["fleet"]["nodes"])


def test_every_node_is_measured_once_and_by_all_its_threads(found):
    whole = found["whole"]
    assert (whole["code"], rows(whole), whole["fleet"]["complete"]) == (0, [("ok", None)] * NODES, True)
    assert whole["out"].startswith(f"Fleet: {NODES} of {NODES} nodes complete")
    cpus = {node["result"]["machine"]["cpu"]["available"]["value"] for node in whole["fleet"]["nodes"]}
    threads = {node["result"]["settings"]["threads"] for node in whole["fleet"]["nodes"]}
    assert threads == cpus  # Ray would set them to 1
    assert len({node["label"] for node in whole["fleet"]["nodes"]}) == NODES  # all have one host name
    again = found["again"]  # --append asks the bad node alone
    assert (again["code"], rows(again)) == (0, [("ok", None)] * NODES)
    new = {line["node"] for line in again["events"][len(whole["events"]) :]}
    assert new == {whole["fleet"]["nodes"][0]["label"]}


def test_a_wrong_token_is_refused_with_the_remedy_and_nodes_on_which_others_work_are_busy(found):
    refused, busy = found["refused"], found["busy"]
    assert (refused["code"], refused["fleet"], busy["code"]) == (5, None, 5)
    assert "RAY_AUTH_TOKEN" in refused["errors"]
    assert busy["out"].startswith(f"Fleet: 0 of {NODES} nodes answered, no GPUs; {NODES} busy (")


def test_a_killed_worker_and_a_removed_node_take_their_runs_along_and_cost_a_node_each(found):
    assert (found["runs"], found["orphans"]) == (NODES, [])
    accidents = found["accidents"]
    # A frozen node is given up; the node that goes on has a case that hangs, and so is partial.
    ends = [("failed", "died"), ("failed", "died"), ("failed", "hung"), ("ok", "partial")]
    assert (accidents["code"], rows(accidents)) == (1, ends)
    assert accidents["out"].startswith("Fleet: ")  # and not with what Ray has to say of it
    died = [node["last_event"] for node in accidents["fleet"]["nodes"] if node["reason"] == "died"]
    assert [event.startswith("case-start add") for event in died] == [True, True]


def test_an_interrupt_leaves_a_fleet_and_no_process(found):
    stopped = found["stopped"]
    assert (stopped["code"], stopped["fleet"]["complete"], found["left"]) == (130, False, [])
    assert any(line.get("ended") for line in stopped["events"])


def test_nodes_are_detected_beside_a_node_that_is_measured(found):
    asked = [node["label"] for node in found["whole"]["fleet"]["nodes"]][1:]
    inventory = json.loads(found["inventory"]["out"])
    assert (found["inventory"]["code"], inventory["nodes_answered"], inventory["drift"]) == (0, NODES - 1, [])
    (group,), (first, *_) = inventory["groups"], found["whole"]["fleet"]["nodes"]
    cpus = first["result"]["machine"]["cpu"]["available"]["value"]
    assert (group["nodes"], group["cpus"]) == (sorted(asked), cpus)
