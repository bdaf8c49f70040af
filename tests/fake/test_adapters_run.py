"""A whole run on a card that two drivers list to one backend: the faster one is measured, and that is said."""

import pytest

from tests.faults.packages import install

MODULE = '''
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
    return {"PYTHONPATH": str(install(site, "drivers", MODULE, backends={"drivers": "drivers:BACKEND"}))}


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
    assert len(ran.result["machine"]["gpus"]) == 1, "two drivers of a card are one GPU"
