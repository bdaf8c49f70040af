"""The software adapter, opened once for the tests of a file."""

import pytest


@pytest.fixture(scope="session")
def device():
    from gpubench.backends.wgpu import BACKEND

    return next(device for device in BACKEND.devices() if device.kind == "software")


@pytest.fixture(scope="module")
def session(device):
    from gpubench.backends.wgpu import BACKEND

    opened = BACKEND.open(device.id)
    yield opened
    opened.close()
