"""A kernel that is wrong somewhere is found by a search without options, wherever that is: nothing wrong is a time."""

import pytest

from tests.faults.packages import install_scripted

SPOILS = """
import os

import gpubench.backends.hidden.fake as fake
from gpubench.backends.hidden.fake import session

whole = session.FakeLaunch.execute


def execute(self):
    fresh = self.output is None
    whole(self)
    if fresh and isinstance(self.output, session.FakeBuffer):
        out = self.output.array.reshape(-1)
        n = out.size
        if eval(os.environ["WRONG_WHERE"]):
            out[eval(os.environ["WRONG_FROM"]):] += 1


session.FakeLaunch.execute = execute
"""
TRESPASSES = """
import os

import numpy as np

import gpubench.backends.hidden.fake as fake
from gpubench.backends.hidden.fake import session

whole, compiled = session.FakeLaunch.execute, fake.FakeSession.compile


def compile(self, op, case, inputs, output):
    launch = compiled(self, op, case, inputs, output)
    launch.trespasses, launch.runs = op.name == "relu" and case.device_id == "trespasser:gpu", 0
    return launch


def execute(self):
    whole(self)
    if getattr(self, "trespasses", False):
        self.runs += 1
        x = self.reads[0].array
        if self.runs >= int(os.environ["FROM_RUN"]):
            eval(os.environ["PLACE"])[...] += 1


fake.FakeSession.compile, session.FakeLaunch.execute = compile, execute
# As on a device, an upload copies.
fake.FakeSession._copy_in = lambda self, buffer, host, cost_s: np.copyto(buffer.array, host)
"""


@pytest.mark.parametrize(("place", "from_run"), [("x[-1:]", 1), ("x.base[x.size : x.size + 1]", 5)])
def test_a_kernel_that_writes_to_its_input_is_found_and_no_other_is_blamed(run, tmp_path, place, from_run):
    env = install_scripted(tmp_path / "site", "trespasser", TRESPASSES)
    ran = run(
        "--devices", "trespasser:cpu,trespasser:gpu", "--ops", "relu,add,copy", "--sizes", "1000,3000",
        "--regimes", "resident-queued,transfer-once", env={**env, "PLACE": place, "FROM_RUN": str(from_run)},
    )  # fmt: skip
    assert (ran.code, ran.result["exit_reason"]) == (1, "wrong-result")
    wrong = {name: o for name, o in ran.outcomes.items() if o.get("reason") == "wrong-result"}
    assert {name for name in ran.outcomes if "relu" in name and "gpu" in name} == set(wrong)
    assert all("changed its input" in o["detail"] for o in wrong.values())
    assert all(o["blocks"] for name, o in ran.outcomes.items() if name not in wrong)


@pytest.mark.parametrize(("where", "start"), [
    ("True", "n - 1"), ("n % 64", "n // 64 * 64"), ("n == 2**20", "n - 1"),
], ids=["in its tail", "beside the tile", "at a size between"])  # fmt: skip
def test_a_search_finds_a_kernel_that_is_wrong(run, tmp_path, where, start):
    env = install_scripted(tmp_path / "site", "spoiled", SPOILS)
    command = "--devices spoiled:cpu,spoiled:gpu --ops relu --regimes resident-queued --skip relu/n>=2M"
    ran = run(*command.split(), env={**env, "WRONG_WHERE": where, "WRONG_FROM": start})
    assert (ran.code, ran.result["exit_reason"]) == (1, "wrong-result")
    wrong = {o["case"]["params"]["n"] for o in ran.outcomes.values() if o.get("reason") == "wrong-result"}
    assert wrong == {n for o in ran.outcomes.values() if eval(where, {"n": (n := o["case"]["params"]["n"])})}
