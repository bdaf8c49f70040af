"""The device clock of a real wgpu device: the length of its ticks, as only an open device tells it."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.vulkan


def software():
    from gpubench.backends.wgpu import BACKEND

    return BACKEND, next(device for device in BACKEND.devices() if device.kind == "software")


def test_an_open_device_tells_the_step_of_its_clock():
    from gpubench.backends.wgpu import timestamp_period_s

    backend, device = software()
    session = backend.open(device.id)
    assert session.device.clock.kind == "pass-timestamp"
    assert session.device.clock.step_s == timestamp_period_s(session.programs.device) > 0
    session.close()


def test_the_file_has_the_step_that_the_open_device_told(tmp_path, gpubench):
    backend, device = software()
    session = backend.open(device.id)
    step_s = session.device.clock.step_s
    session.close()
    ended = gpubench(
        "run", "--devices", f"numpy:0,{device.id}", "--ops", "add", "--sizes", "1k", "--quick", "--regimes", "resident-queued",
        "--min-samples", "3", "--max-time", "50ms", "--no-progress", "-o", "r.json",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    clocks = {one["id"]: one["clock"] for one in run["devices"]}
    assert clocks["numpy:0"] is None
    assert clocks[device.id] == {"kind": "pass-timestamp", "step_s": pytest.approx(step_s, rel=1e-5)}
