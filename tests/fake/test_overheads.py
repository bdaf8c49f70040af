"""What a device costs before any work, measured as any other case: checked, sampled, saved; never on a CPU."""

from itertools import product

import pytest

from gpubench import kernels

BYTES = ("--sizes", "1k,64k")
LADDER = kernels.load("upload").sizes.sizes()


@pytest.fixture(scope="module")
def ran(run):
    return run("--ops", "overhead", "--backends", "fake", *BYTES, "--min-samples", "2", "--max-samples", "2")


def measured(ran):
    return {key: outcome for key, outcome in ran.outcomes.items() if outcome["type"] == "measurement"}


def test_every_overhead_in_its_implementations_and_sizes(ran):
    assert ran.code == 0, ran.err
    alone = {(name, 1, "library") for name in ("open", "launch", "roundtrip", "sync")}
    of_bytes = set(product(("allocate", "upload", "download"), (1024, 65536), ("library", "tuned")))
    found = {f"{name}/n={n}/float32/{kind}/resident@fake:gpu" for name, n, kind in alone | of_bytes}
    assert set(measured(ran)) == found


def test_samples_are_those_of_the_scripted_device_and_nothing_is_computed(ran):
    at = {key.replace("/float32", "").partition("/resident")[0]: o for key, o in measured(ran).items()}
    for name, seconds in {
        "launch/n=1/library": 4e-6, "roundtrip/n=1/library": 5e-6, "allocate/n=1024/library": 101e-6,
        "upload/n=65536/library": 8e-6 + 65536 / 5e10, "allocate/n=1024/tuned": 1e-6,
        "download/n=65536/tuned": 4e-6 + 65536 / 1e11,
    }.items():  # fmt: skip
        assert at[name]["blocks"][0]["wall_s"][-1] == pytest.approx(seconds, rel=0.01), name
    assert at["open/n=1/library"]["blocks"][0]["wall_s"][-1] > 1e-3, "a process of its own, on the real clock"
    for outcome in measured(ran).values():
        case = outcome["case"]
        moved = case["params"]["n"] if case["op"] in ("upload", "download") else 0
        assert (outcome["flops"], outcome["bytes"], outcome["check"]["ok"]) == (0, moved, True)
        assert all(block.get("device_hot_s") is None for block in outcome["blocks"])
        staging = {"library": "pageable", "tuned": "pinned"}[case["implementation"]]
        assert outcome.get("staging", "pageable") == staging


@pytest.mark.parametrize(("sizes", "uploads"), [((), LADDER), (("--sizes", "1k"), [1024])])
def test_sizes_are_those_of_the_ladder_or_given_and_do_not_reach_what_has_none(run_well, sizes, uploads):
    """Nothing is searched."""
    ran = run_well("--ops", "upload,sync", *sizes, "--backends", "fake", "--dry-run")
    cases = [line.split("/float32")[0] for line in ran.out.splitlines() if "@fake:gpu" in line]
    assert sorted(set(cases)) == sorted({"sync/n=1", *(f"upload/n={n}" for n in uploads)})
    waits = [line for line in ran.out.splitlines() if line.startswith("sync/")]
    assert waits == ["sync/n=1/float32/library/resident@fake:gpu"]
    assert "budget" not in ran.out


def test_half_a_word_cannot_be_sent_and_bytes_that_do_not_arrive_are_a_failure(run):
    ran = run("--ops", "upload,download", "--sizes", "1001,1000", "--devices", "fake:gpu,fake:wrong")
    assert ran.code == 1
    cases = ((o["case"], o["type"], o.get("reason")) for o in ran.outcomes.values())
    ends = {(case["params"]["n"], case["device_id"], *end) for case, *end in cases}
    assert ends == {
        (1001, "fake:gpu", "skip", "shape"), (1000, "fake:gpu", "measurement", None),
        (1001, "fake:wrong", "skip", "shape"), (1000, "fake:wrong", "failure", "wrong-result"),
    }  # fmt: skip


def test_beside_a_search_overheads_come_last_and_leave_it_time(run_well):
    ran = run_well(
        "--ops", "add,sync,allocate", "--sizes", "allocate=1k,64k", "--skip", "add/n>=16k", "--regimes", "resident-queued",
        "--min-samples", "2", "--max-samples", "2", "--backends", "fake",
    )  # fmt: skip
    assert ran.result["settings"]["budget_s"] == 40, "as much again as the search alone has"
    began = {"add": [], "overhead": []}
    for outcome in measured(ran).values():
        kind = "add" if outcome["case"]["op"] == "add" else "overhead"
        began[kind] += [block["t_s"] for block in outcome["blocks"]]
    assert len({o["case"]["params"]["n"] for o in measured(ran).values() if o["case"]["op"] == "add"}) >= 3
    assert len(began["overhead"]) >= 5, "sync, and allocate at two sizes in two implementations"
    assert max(began["add"]) < min(began["overhead"])
