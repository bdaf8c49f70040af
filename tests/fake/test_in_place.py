"""Calls in place: the data stays in host memory, and the GPU reads and writes it there."""

import statistics

import pytest

import gpubench

SIZES = ("--ops", "add", "--sizes", "1M")


def ends(ran, device):
    """The outcomes of a device, by regime."""
    return {o["case"]["regime"]: o for o in ran.outcomes.values() if o["case"]["device_id"] == device}


@pytest.fixture(scope="module")
def named(run_well):
    devices = "fake:cpu,fake:gpu,fake:unified,fake:not-mapped"
    return run_well("--devices", devices, *SIZES, "--regimes", "in-place,copied")


def median(outcome):
    return statistics.median(outcome["blocks"][0]["wall_s"])


def test_both_memories_stand_beside_the_copies_and_are_checked(named):
    gpu = ends(named, "fake:gpu")
    assert set(gpu) == {"in-place-mapped", "in-place-managed", "transfer-always"}
    assert all(outcome["check"]["ok"] for outcome in gpu.values())
    assert gpu["in-place-mapped"]["staging"] == "in-place"
    assert not gpu["in-place-mapped"]["parts"][0].get("upload_s"), "there is no copy to take apart"
    # The data passes the bus, and each page of managed memory moves twice: that is part of the call.
    calls = [ends(named, "fake:unified")["in-place-mapped"], gpu["in-place-mapped"], gpu["in-place-managed"]]
    assert sorted(map(median, calls)) == [*map(median, calls)]
    assert set(ends(named, "fake:cpu")) == {"resident"}, "the CPU's data is at home: measured once"


@pytest.mark.parametrize(("device", "memories"), [("fake:not-mapped", 2), ("fake:unified", 1)])
def test_memory_that_a_device_lacks_is_a_skip_with_the_reason(named, device, memories):
    skips = [o for o in ends(named, device).values() if o["type"] == "skip"]
    assert [skip["reason"] for skip in skips] == ["not-in-place"] * memories
    assert all("memory" in skip["detail"] for skip in skips)
    assert ends(named, device)["transfer-always"]["type"] == "measurement"


def test_the_answer_shows_it_beside_the_copies(named):
    answer = named.out.partition("Speedups")[0]
    assert "copied at every call" in answer
    assert "in place, managed" in answer


def test_a_gpu_whose_memory_is_the_hosts_computes_in_place_by_default(run):
    ran = run("--devices", "fake:cpu,fake:gpu,fake:unified", *SIZES)
    resident = {"resident-waited", "resident-queued"}
    assert set(ends(ran, "fake:unified")) == {*resident, "in-place-mapped"}
    assert set(ends(ran, "fake:gpu")) == {*resident, "transfer-once", "transfer-always"}
    # A call on data of the host is then the call in place.
    policy = gpubench.load(ran.folder / "r.json").policy()
    chosen = policy.choose("add", 2**20), policy.choose("add", 2**20, regime="in place")
    assert [choice.device_id for choice in chosen] == ["fake:unified"] * 2
    assert policy.choose("add", 2**20, regime="managed").basis == "unknown"


def test_a_run_like_a_file_that_copies_on_such_a_gpu_copies(run):
    named = run("--devices", "fake:cpu,fake:unified", *SIZES, "--regimes", "resident,transfer-once,copied")
    again = run("--like", str(named.folder / "r.json"))
    assert "transfer-always" in ends(named, "fake:unified")
    assert set(again.outcomes) == set(named.outcomes)
