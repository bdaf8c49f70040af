"""Collectives on scripted device groups, by the command line: times follow the script, failures cost their own case."""

import json
import re

import pytest

from gpubench import kernels

LENGTH = 1 << 18
FOUR = {"GPUBENCH_FAKE_GPUS": "4"}


def sample(ran, op, device_group, ranks=2):
    case_id = f"{op}/n={LENGTH},ranks={ranks}/float32/library/resident@group:fake:{device_group}"
    return ran.outcomes[case_id]["blocks"][0]["wall_s"][-1]


@pytest.fixture(scope="module")
def ran(run):
    devices = "group:fake:0+1,group:fake:0-3,group:fake:2+3,group:fake:1+2"
    command = f"--ops collective --devices {devices} --sizes 256k --sizes alltoall=1000,256k"
    return run(*command.split(), env={**FOUR, "GPUBENCH_FAKE_LINK": "0+1=5e9", "GPUBENCH_FAKE_SLOW": "gpu3=2"})


def test_collectives_of_device_groups(ran, in_process):
    """Each runs on the first group of a size, and pairs on each; times follow the slowest link."""
    assert ran.code == 0, ran.err
    device_groups = {}
    for outcome in ran.outcomes.values():
        unequal = (outcome["case"]["params"]["n"], outcome["case"]["device_id"]) == (1000, "group:fake:0-3")
        assert outcome["type"] == ("skip" if unequal else "measurement"), "four ranks cannot share 1000 bytes"
        device_groups.setdefault(outcome["case"]["op"], set()).add(outcome["case"]["device_id"])
    for name, groups in device_groups.items():
        pairwise = kernels.load(name).collective.pairwise
        others = {"group:fake:2+3", "group:fake:1+2"} if pairwise else {"group:fake:0-3"}
        assert groups == {"group:fake:0+1", *others}
    assert set(device_groups) == set(kernels.groups()["collective"])
    for found, wire_s in (
        (sample(ran, "p2p", "0+1"), LENGTH / 5e9), (sample(ran, "p2p", "2+3"), LENGTH / 2e11),
        (sample(ran, "allreduce", "0-3", 4), 1.5 * LENGTH / 5e9),
    ):  # fmt: skip
        assert found == pytest.approx(1e-5 + wire_s, rel=0.01)
    for device in ran.result["devices"]:
        assert (device["backend"], device["kind"], bool(device.get("identities"))) == ("group", "gpu", False)
    assert " ".join(ran.out.split()).startswith("Among 4 GPUs: p2p ")
    assert "allreduce 0-3" in ran.out
    assert set(re.findall(r"link-slow: p2p on (\S+)", " ".join(ran.out.split()))) == {"group:fake:0+1"}
    path = str(ran.folder / "r.json")
    assert "allreduce, 4 ranks by fake on group:fake:0-3" in in_process("report", path, "--full").stdout
    document = json.loads(in_process("report", path, "--format", "json").stdout)
    rows = {(row["op"], row["device_id"]): row for row in document["collectives"]}
    four = rows["allreduce", "group:fake:0-3"]
    assert four["busbw"] == pytest.approx(1.5 * four["algbw"], rel=1e-4)
    assert four["low"] < four["busbw"] < four["high"]
    assert document["speedups"] == document["break_even"] == []


def test_a_link_that_hangs_costs_its_cases_and_the_next_one_runs(run):
    devices = "group:fake:link-hangs,group:fake:0+1"
    ran = run("--ops", "p2p", "--devices", devices, "--sizes", "1m", "--case-timeout", "1s", env=FOUR)
    assert ran.code == 1
    found = {outcome["case"]["device_id"]: outcome for outcome in ran.outcomes.values()}
    assert found["group:fake:link-hangs"]["reason"] == "timeout"
    assert found["group:fake:0+1"]["type"] == "measurement"


def test_without_two_gpus_the_error_says_what_is_missing(run):
    ran = run("--ops", "allreduce", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (ran.code, "needs two GPUs" in ran.err) == (5, True)


def test_beside_other_ops_device_groups_are_left_to_the_collectives(run):
    devices = "fake:cpu,fake:gpu0,group:fake:0+1"
    ran = run("--ops", "add,p2p", "--devices", devices, "--sizes", "64k", env=FOUR)
    assert ran.code == 0, ran.err
    cases = [o["case"] for o in ran.outcomes.values() if o["type"] == "measurement"]
    found = {(case["op"], case["device_id"]) for case in cases}
    assert found == {("add", "fake:cpu"), ("add", "fake:gpu0"), ("p2p", "group:fake:0+1")}
