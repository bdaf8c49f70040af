"""`--ops health` on scripted GPUs: what joins several of them is looked at, too."""

import itertools

from gpubench.cli.selection import LINKS
from tests.fake.multi.test_scaling import AT_ONCE

ALONE = "--sizes matmul=256 --sizes copy=4k --sizes upload=64k --sizes download=64k".split()
SMALL = [*ALONE, *"--sizes p2p=64k --sizes allreduce=96k".split()]


def test_with_several_gpus_every_pair_copies_and_device_groups_reduce(run):
    gpus = ",".join(f"fake:gpu{number}" for number in range(3))
    ran = run("--ops", "health", *SMALL, "--devices", gpus, "--scaling", "off", env={"GPUBENCH_FAKE_GPUS": "3"})
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
