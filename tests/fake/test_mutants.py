"""A kernel that is wrong somewhere is found by a search without options, wherever that is: nothing wrong is a time."""

from __future__ import annotations

import pytest

from tests.faults.packages import install

SPOILS = """
import os

import msgspec

import gpubench.backends.hidden.fake as fake
from gpubench.backends.hidden.fake import session

whole = session.FakeLaunch.execute


def execute(self):
    fresh = self.output is None
    whole(self)
    self.runs = getattr(self, "runs", 0) + 1
    if not isinstance(self.output, session.FakeBuffer):
        return
    last = self.runs == int(os.environ.get("WRONG_AT", "0"))
    if fresh and "WRONG_AT" not in os.environ or last:
        out = self.output.array.reshape(-1)
        n = out.size
        if eval(os.environ["WRONG_WHERE"]):
            out[eval(os.environ["WRONG_FROM"]):] += 1


session.FakeLaunch.execute = execute


class Spoiled(fake.FakeBackend):
    name = "spoiled"

    def devices(self):
        return [
            msgspec.structs.replace(device, id=f"spoiled:{device.kind}", backend="spoiled")
            for device in super().devices()[:2]
        ]

    def open(self, device_id, threads=None, *, autotune=True):
        return super().open(f"fake:{device_id.partition(':')[2]}", threads)


BACKEND = Spoiled()
"""

# Where a kernel is wrong at large sizes alone, a search without options finds it; each such size costs a second.
BELOW = ("--skip", "relu/n>=2M")


TRESPASSES = """
import os

import msgspec
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


class Trespasser(fake.FakeBackend):
    name = "trespasser"

    def devices(self):
        return [
            msgspec.structs.replace(device, id=f"trespasser:{device.kind}", backend="trespasser")
            for device in super().devices()[:2]
        ]

    def open(self, device_id, threads=None, *, autotune=True):
        return super().open(f"fake:{device_id.partition(':')[2]}", threads)


BACKEND = Trespasser()
"""


@pytest.mark.parametrize("place", ["x[-1:]", "x.base[x.size : x.size + 1]"], ids=["into it", "behind it"])
@pytest.mark.parametrize("from_run", [1, 5], ids=["at once", "later"])
def test_a_kernel_that_writes_to_its_input_is_found_and_no_other_is_blamed(run, tmp_path, place, from_run):
    site = install(tmp_path / "site", "trespasser", TRESPASSES, backends={"trespasser": "trespasser:BACKEND"})
    ran = run(
        "--devices", "trespasser:cpu,trespasser:gpu", "--ops", "relu,add,copy", "--sizes", "1000,3000",
        "--regimes", "resident-queued,transfer-once", env={"PYTHONPATH": str(site), "PLACE": place, "FROM_RUN": str(from_run)},
    )  # fmt: skip
    assert (ran.code, ran.result["exit_reason"]) == (1, "wrong-result")
    wrong = {name: o for name, o in ran.outcomes.items() if o.get("reason") == "wrong-result"}
    assert {name for name in ran.outcomes if "relu" in name and "gpu" in name} == set(wrong)
    assert all("changed its input" in o["detail"] for o in wrong.values())
    assert all(o["blocks"] for name, o in ran.outcomes.items() if name not in wrong)


@pytest.mark.parametrize(("where", "start", "sizes"), [
    ("True", "n - 1", BELOW), ("n > 2**22", "2**22", ()), ("n == 2**24", "n - 1", ()), ("n % 64", "n // 64 * 64", BELOW),
    ("n == 2**20", "n - 1", BELOW),
], ids=["in its tail", "beyond 2^22", "at the top alone", "beside the tile", "at a size between"])  # fmt: skip
def test_a_search_finds_a_kernel_that_is_wrong(run, tmp_path, where, start, sizes):
    site = install(tmp_path / "site", "spoiled", SPOILS, backends={"spoiled": "spoiled:BACKEND"})
    ran = run(
        "--devices", "spoiled:cpu,spoiled:gpu", "--ops", "relu", "--regimes", "resident-queued", *sizes,
        env={"PYTHONPATH": str(site), "WRONG_WHERE": where, "WRONG_FROM": start},
    )  # fmt: skip
    assert (ran.code, ran.result["exit_reason"]) == (1, "wrong-result")
    wrong = {o["case"]["params"]["n"] for o in ran.outcomes.values() if o.get("reason") == "wrong-result"}
    assert wrong == {n for o in ran.outcomes.values() if eval(where, {"n": (n := o["case"]["params"]["n"])})}


@pytest.mark.parametrize("n", ["1000", "1M"])
def test_a_kernel_that_breaks_its_output_after_its_first_blocks_is_found(run, tmp_path, n):
    """A launch that was right at first: by what it leaves, not by what one more makes."""
    site = install(tmp_path / "site", "spoiled", SPOILS, backends={"spoiled": "spoiled:BACKEND"})
    ran = run(
        "--devices", "spoiled:gpu", "--ops", "relu", "--regimes", "resident-queued", "--sizes", n,
        env={"PYTHONPATH": str(site), "WRONG_WHERE": "True", "WRONG_FROM": "n - 1", "WRONG_AT": "9"},
    )  # fmt: skip
    assert (ran.code, ran.result["exit_reason"]) == (1, "wrong-result")
