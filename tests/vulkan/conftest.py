"""The software adapter, opened once for the tests of a file."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def session():
    from gpubench.backends.wgpu import BACKEND

    opened = BACKEND.open(next(device.id for device in BACKEND.devices() if device.kind == "software"))
    yield opened
    opened.close()
