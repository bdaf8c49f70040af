"""Backends of other packages: found by their entry points, driven like ours, and allowed to misbehave."""

import threading

import pytest

from gpubench.result.case import REGIMES
from gpubench.result.run import Failure, Measurement, Skip
from tests.fake.plans import carry_out, plan
from tests.faults.packages import install

FOREIGN = '''
"""`foreign:WORD`: the scripted GPU with one habit."""
import os
from pathlib import Path

from gpubench.backends.hidden.fake import FakeBackend, FakeSession
from gpubench.base.errors import BackendUnavailable
from gpubench.backends.contract import Backend


class Session(FakeSession):
    habit = ""

    def time(self, launch, repeat=1, *, cold=False):
        if self.habit == "dies-sampling" and cold:
            os.abort()
        return super().time(launch, repeat, cold=cold)

    def compile(self, op, case, inputs, output):
        if self.habit == "buggy":
            raise ZeroDivisionError("a bug of the backend")
        if self.habit == "chatty":
            print("printed"); os.write(1, b"written\\n")
        return super().compile(op, case, inputs, output)

    def run(self, launch, repeat=1):
        super().run(launch, repeat)
        if self.habit == "opens-once" and repeat == 10:
            os._exit(9)

    def close(self):
        raise OSError("it was closed already")


class Foreign(Backend):
    name = "foreign"
    implementations = ("library",)

    def devices(self):
        return []

    def open(self, device_id, threads=None, *, autotune=True):
        habit = device_id.partition(":")[2]
        once = Path(os.environ["FOREIGN_MARK"])
        if habit == "opens-once" and once.exists():
            raise BackendUnavailable("it fell off the bus", hint="push it back")
        once.touch()
        session = FakeBackend().open("fake:gpu")
        session.__class__ = Session
        session.habit = habit
        return session


BACKEND = Foreign()
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package on the path of the workers, with the metadata that pip would write."""
    site = install(tmp_path / "site", "foreign", FOREIGN, backends={"foreign": "foreign:BACKEND"})
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("FOREIGN_MARK", str(tmp_path / "opened"))


def measure(habit):
    """Outcomes by regime of one workload on fake:cpu and foreign:HABIT, and the finished run."""
    settings = {"min_samples": 10, "max_samples": 10, "max_time_s": 0.2, "case_timeout_s": 20.0}
    finished = carry_out(plan(["fake:cpu", f"foreign:{habit}"], (1000,), regimes=REGIMES, settings=settings))
    assert finished.complete
    assert threading.active_count() < 20
    outcomes = {o.case.regime if "foreign" in o.id else "cpu": o for o in finished.outcomes}
    assert isinstance(outcomes.pop("cpu"), Measurement), "the neighbour is never touched"
    return outcomes, finished


@pytest.mark.usefixtures("installed", "forked_children")
class TestForeign:
    def test_it_is_measured_like_ours_whatever_it_prints(self):
        found, finished = measure("chatty")
        assert {regime: type(o) for regime, o in found.items()} == dict.fromkeys(REGIMES, Measurement)
        assert finished.exit_code == 0

    def test_a_bug_in_it_is_a_failure_with_its_name(self):
        found, finished = measure("buggy")
        assert {(type(outcome), outcome.reason) for outcome in found.values()} == {(Failure, "error")}
        assert all("ZeroDivisionError: a bug of the backend" in outcome.detail for outcome in found.values())
        assert (finished.exit_code, finished.exit_reason) == (1, "failed")

    def test_neighbours_of_a_case_that_kills_the_worker_are_prepared_anew(self):
        found, finished = measure("dies-sampling")
        killer = found.pop("resident-queued")
        assert (type(killer), killer.reason, killer.phase) == (Failure, "worker-crashed", "sample")
        for outcome in found.values():
            assert isinstance(outcome, Measurement)
            assert sum(len(b.wall_s) - b.warmup for b in outcome.blocks) == 10
            assert len({b.repeat for b in outcome.blocks}) == 1
            assert [p.session for p in outcome.parts] == [0], "prepared twice, but one set of parts a session"
        devices = [w.device_id for w in finished.sessions[0].workers]
        assert devices.count("foreign:dies-sampling") == 2, "one worker died, one took over"

    def test_a_device_that_cannot_be_opened_again_is_lost(self):
        found, finished = measure("opens-once")
        assert isinstance(found["resident-queued"], Skip | Failure | Measurement)
        reasons = {(type(o), getattr(o, "reason", "")) for o in found.values()}
        assert reasons >= {(Failure, "worker-crashed"), (Skip, "device-lost")}
        lost = next(o for o in found.values() if isinstance(o, Skip))
        assert (lost.detail, lost.hint) == ("it fell off the bus", "push it back")
        assert finished.exit_code == 1


# ---------------------------------------------------------------------- a card that two drivers list to one backend


DRIVERS = '''
"""`drivers:0` and `drivers:1`: the scripted GPU by two drivers, of which the second is faster."""
from msgspec.structs import replace

from gpubench.backends.hidden.fake import FakeBackend
from gpubench.backends.contract import Backend
from gpubench.result.run import Identity

NAMES = ("radv", "AMD open-source driver")


def device(number):
    identity = Identity(vendor_id=0x1002, device_id=0x744C, driver=NAMES[number])
    gpu = next(device for device in FakeBackend().devices() if device.id == "fake:gpu")
    return replace(gpu, id=f"drivers:{number}", backend="drivers", name="Scripted Radeon", identity=identity)


class Drivers(Backend):
    name = "drivers"
    implementations = ("library",)
    scripted_time = True

    def devices(self):
        return [device(0), device(1)]

    def open(self, device_id, threads=None, *, autotune=True):
        session = FakeBackend().open("fake:gpu")
        session.device = device(int(device_id[-1]))
        session._slower *= (1.5, 1.0)[int(device_id[-1])]
        return session


BACKEND = Drivers()
'''


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    return {"PYTHONPATH": str(install(site, "drivers", DRIVERS, backends={"drivers": "drivers:BACKEND"}))}


def test_the_faster_driver_is_measured_and_the_report_says_so(run_well, env):
    command = "--backends fake,drivers --ops add --sizes 65536 --implementations library"
    ran = run_well(*command.split(), env=env)
    gpus = [device["id"] for device in ran.result["devices"] if device["kind"] == "gpu"]
    assert sorted(gpus) == ["drivers:1", "fake:gpu"]
    (message,) = (one["message"] for one in ran.result["warnings"] if one["code"] == "listed-twice")
    listed, _, measured = message.partition("; fake by AMDVLK was measured, 1.")
    assert listed == "drivers lists this GPU 2 times (fake by RADV, fake by AMDVLK)"
    assert measured.endswith("x faster in a trial; others: --devices drivers:0")
    assert message in " ".join(ran.out.split())
    gpus = [gpu for gpu in ran.result["machine"]["gpus"] if gpu["name"]["source"] == "drivers:fake"]
    assert len(gpus) == 1, "two drivers of a card are one GPU"
