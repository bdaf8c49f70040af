"""Several scripted GPUs: at once, in groups, identical ones in a search, and their health; speedups are those of the script."""

import csv
import io
import itertools
import re

import msgspec
import pytest

from gpubench.analysis.analyse import analyse
from gpubench.backends.hidden.fake import session as fake
from gpubench.cli.selection import LINKS
from gpubench.report.document import report_document
from gpubench.result import store

FOUR, GPUS = {"GPUBENCH_FAKE_GPUS": "4"}, "fake:gpu0,fake:gpu1,fake:gpu2,fake:gpu3"
SIDE, LENGTH = 1024, 1 << 20
# What GPUs wait for each other before they begin.
AT_ONCE = "gpubench.multi.identical_gpus:WARM_UP_S=0.2 gpubench.multi.identical_gpus:AHEAD_S=0.2"


@pytest.fixture(scope="module")
def ran(run):
    sizes = "--ops matmul,add,sum --sizes add=64,1m --sizes sum=1m --sizes matmul=128,1k -o r.csv"
    how = (
        "--scaling strong --ranks 2,4 --regimes resident-waited,transfer-always --min-samples 3 --max-samples 4"
    )
    return run(*f"{sizes} {how} --devices {GPUS}".split(), env=FOUR)


def reported(ran):
    """The report as other programs read it."""
    return msgspec.to_builtins(report_document([analyse(store.load(str(ran.folder / "r.json")))]))


@pytest.fixture(scope="module")
def rows(ran):
    gains = reported(ran)["scaling"]["strong"]
    return {(row["op"], row["n"], row["regime"], row["ranks"]): row for row in gains}


def expected(op, n, ranks):
    """What the model says of a share, and of the launches before it."""
    share_s = (2 * n**3 / fake.GPU_FLOPS_PER_S if op == "matmul" else 12 * n / fake.GPU_BYTES_PER_S) / ranks
    return ranks * fake.GPU_LAUNCH_S + fake.GPU_KERNEL_S + share_s


@pytest.mark.parametrize(("op", "n"), [("matmul", SIDE), ("add", LENGTH)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_speedup_is_that_of_the_script(rows, op, n, ranks):
    row = rows[op, n, "resident-waited", ranks]
    assert row["speedup"] == pytest.approx(expected(op, n, 1) / expected(op, n, ranks), rel=0.02)
    assert row["efficiency"] == pytest.approx(row["speedup"] / ranks)
    assert row["efficiency_lo"] <= row["efficiency"] <= row["efficiency_hi"]
    assert row["lo"] <= row["speedup"] <= row["hi"]
    assert row["baseline_id"].rpartition("@")[2].startswith("fake:gpu")


def test_what_is_reported_of_device_groups(ran, rows):
    assert ran.code == 0, ran.err
    device_groups = {o["case"]["device_id"] for o in ran.outcomes.values() if "group:" in o["id"]}
    assert device_groups == {"group:fake:0+1", "group:fake:0-3"}
    assert all(o["check"]["ok"] for o in ran.outcomes.values() if o["type"] == "measurement")
    copied = rows["add", LENGTH, "transfer-always", 4]
    assert copied["balance"] == pytest.approx(1.0, rel=0.02)
    assert 12 * LENGTH / fake.COPY_BYTES_PER_S > 1e-4, "data moves to all ranks at once"
    assert copied["speedup"] > 2
    report = reported(ran)
    curves = {(row["op"], row["regime"], row["ranks"]): row for row in report["scaling"]["pays_from"]}
    matmul = curves["matmul", "resident-waited", 2]
    assert matmul["verdict"] == "at"
    assert 128 <= matmul["lo"] < matmul["n"] < matmul["hi"] <= SIDE
    assert rows["add", 64, "resident-waited", 4]["host_limited"], "it takes no longer than its launches"
    assert not rows["matmul", SIDE, "resident-waited", 2]["host_limited"]
    for others in (report["speedups"], report["roofline"]["cases"]):
        assert not [row for row in others if "group:" in row["id"]]
    text = " ".join(ran.out.split())
    assert re.search(r"matmul float32 with data on the GPU: 2 GPUs beat one from \d+² \(\d+-\d+²\)", text)
    assert text.startswith("4 GPUs with data on the GPU ")
    assert "group:fake:0-3 (4 x Scripted gpu)" in text
    lines = csv.DictReader(io.StringIO((ran.folder / "r.csv").read_text()))
    pairs = [row for row in lines if row["device"] == "group:fake:0+1"]
    assert pairs
    for row in pairs:
        assert float(row["efficiency"]) == pytest.approx(float(row["speedup"]) / 2, rel=1e-5)
        assert "fake:gpu" in row["baseline_id"]


def test_ranks_chooses_the_device_groups_and_too_many_are_refused(run):
    devices = ("--ops", "add", "--sizes", "1m", "--devices", GPUS)
    ran = run(*devices, "--scaling", "strong", "--ranks", "3", "--dry-run", env=FOUR)
    assert ("@group:fake:0-2" in ran.out, "@group:fake:0+1" in ran.out) == (True, False)
    ran = run(*devices, "--scaling", "strong", "--ranks", "8", env=FOUR)
    assert (ran.code, "needs two identical GPUs" in ran.err) == (5, True)
    ran = run(*devices, "--ranks", "2", "--dry-run", env=FOUR)
    assert ran.code == 0, "without --scaling it says nothing"
    assert "@group:" not in ran.out


def test_a_training_is_shared_out_and_its_weak_efficiency_is_told(run):
    sizes = "--ops mlp_sgd --sizes 7,8,16 --devices fake:gpu0,fake:gpu1 --min-samples 3 --max-samples 4"
    ran = run(*f"{sizes} --scaling strong --regimes resident-waited".split(), env={"GPUBENCH_FAKE_GPUS": "2"})
    reasons = [o["reason"] for o in ran.outcomes.values() if "n=7/" in o["id"] and "group:" in o["id"]]
    assert set(reasons) == {"shape"}, "7 rows have no equal parts"
    gains = reported(ran)["scaling"]["strong"]
    assert {(row["n"], row["weak"] is None) for row in gains} == {(8, True), (16, False)}
    assert all(0 < row["weak_lo"] <= row["weak"] <= row["weak_hi"] < 1.2 for row in gains if row["n"] == 16)


def test_after_a_search_device_groups_are_measured_at_its_sizes(run):
    command = "--ops sum --devices fake:cpu,fake:gpu0,fake:gpu1 --scaling strong --regimes resident-waited"
    ran = run(*command.split(), env={"GPUBENCH_FAKE_GPUS": "2"})
    (curve,) = reported(ran)["scaling"]["pays_from"]
    assert (curve["device_id"], curve["verdict"] in ("at", "all-sizes")) == ("group:fake:0+1", True)


def test_at_once_each_gpu_works_alone_and_beside_the_other_and_heat_is_told_from_what_is_shared(run):
    """The second GPU gets hot between the first and the last seconds of the first case."""
    command = "--ops copy,upload --sizes copy=1m --sizes upload=4m --scaling weak --regimes resident-queued"
    env = {"GPUBENCH_FAKE_GPUS": "2", "GPUBENCH_FAKE_HEAT": "gpu1=9", "TESTS_ALTER": AT_ONCE}
    ran = run(*command.split(), "--devices", "fake:gpu0,fake:gpu1", env=env)
    assert ran.code == 0, ran.err
    assert not [o for o in ran.outcomes.values() if "group:" in o["id"]]
    phases = {(one["device_id"], one["phase"], one["gpus"]) for one in ran.result["together"]}
    each = (("alone", 1), ("together", 2))
    assert phases == {(f"fake:gpu{gpu}", *phase) for gpu in range(2) for phase in each}
    rows = {(row["op"], row["implementation"]): row for row in reported(ran)["scaling"]["weak"]}
    assert set(rows) == {("copy", "library"), ("upload", "library"), ("upload", "tuned")}
    copy = rows["copy", "library"]
    assert (copy["early"], copy["late"]) == (pytest.approx(1.0, abs=0.01), pytest.approx(0.9, abs=0.01))
    assert (copy["least_id"], copy["least_share"]) == ("fake:gpu1", pytest.approx(0.8, abs=0.01))
    assert "All GPUs at once" in ran.out
    assert ran.out.startswith("2 GPUs at once keep ")


def test_weak_scaling_needs_two_identical_gpus(in_process):
    for devices, number in (("fake:cpu,fake:gpu", "1"), ("fake:cpu", "none")):
        ran = in_process(*f"run --ops add --sizes 1k --devices {devices} --scaling weak".split())
        assert (ran.returncode, "needs two identical GPUs" in ran.stderr) == (5, True)
        assert f"the devices chosen have {number}" in ran.stderr


# ---------------------------------------------------------------------- health


ALONE = "--sizes matmul=256 --sizes copy=4k --sizes upload=64k --sizes download=64k".split()
SMALL_SIZES = [*ALONE, *"--sizes p2p=64k --sizes allreduce=96k".split()]


def test_with_several_gpus_every_pair_copies_and_device_groups_reduce(run):
    gpus = ",".join(f"fake:gpu{number}" for number in range(3))
    ran = run(
        "--ops", "health", *SMALL_SIZES, "--devices", gpus, "--scaling", "off", env={"GPUBENCH_FAKE_GPUS": "3"}
    )
    assert ran.code == 0, ran.err
    where = {}
    for outcome in ran.outcomes.values():
        assert outcome["type"] == "measurement", outcome
        where.setdefault(outcome["case"]["op"], set()).add(outcome["case"]["device_id"])
    assert where["p2p"] == {f"group:fake:{a}+{b}" for a, b in itertools.permutations(range(3), 2)}
    assert where["allreduce"] == {"group:fake:0+1", "group:fake:0-2"}
    assert where["matmul"] == where["upload"] == set(gpus.split(","))


def test_one_gpu_has_no_links_to_look_at(run):
    ran = run("--ops", "health", *ALONE, "--devices", "fake:gpu0", env={"GPUBENCH_FAKE_GPUS": "1"})
    assert ran.code == 0, ran.err
    assert not set(LINKS) & set(ran.result["selection"]["ops"])
    assert "scaling" not in ran.result["settings"]
    assert {o["case"]["device_id"] for o in ran.outcomes.values()} == {"fake:gpu0"}


def test_equal_gpus_work_at_once_unless_somebody_turns_that_off(run):
    command = "--ops health --sizes copy=1m --filter copy/* --devices fake:gpu0,fake:gpu1"
    ran = run(*command.split(), env={"GPUBENCH_FAKE_GPUS": "2", "TESTS_ALTER": AT_ONCE})
    assert ran.code == 0, ran.err
    assert {one["gpus"] for one in ran.result["together"] if one["phase"] == "together"} == {2}


# ---------------------------------------------------------------------- one of several identical GPUs


# Far above the break-even the search costs seconds of real arithmetic, and so does a large product.
SEARCH = "--ops add --backends fake --regimes resident-waited --skip add/n>=64k".split()
SMALL = "gpubench.multi.identical_gpus:SIZES={'upload':4194304,'copy':1048576,'matmul':256}"
THREE = {"GPUBENCH_FAKE_GPUS": "3", "GPUBENCH_FAKE_NOISE": "0.005", "TESTS_ALTER": SMALL}


def test_a_slow_gpu_is_named_on_the_screen_and_in_the_file_and_has_no_case(run):
    slow = run(*SEARCH, env={**THREE, "GPUBENCH_FAKE_SLOW": "gpu2=1.15"})
    assert slow.code == 0, slow.err
    assert "fake:gpu2 is 13 % slower at " in " ".join(slow.out.split())
    looked = {one["device_id"] for one in slow.result["identical_gpus"] if one["blocks_s"]}
    assert looked == {f"fake:gpu{number}" for number in range(3)}
    assert {outcome["case"]["device_id"] for outcome in slow.outcomes.values()} == {"fake:cpu", "fake:gpu0"}
    assert "fake:gpu1" not in {device["id"] for device in slow.result["devices"]}


def test_named_sizes_measure_all_gpus_and_look_at_no_other_gpu(run):
    ran = run("--ops", "add", "--backends", "fake", "--sizes", "1k", env=THREE)
    assert "identical_gpus" not in ran.result
    gpus = {outcome["case"]["device_id"] for outcome in ran.outcomes.values()}
    assert {f"fake:gpu{number}" for number in range(3)} <= gpus
