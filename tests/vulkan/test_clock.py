"""The device clock of a real wgpu device: the length of its ticks, as only an open device tells it; and what a run keeps
of the device."""

import json

import pytest

pytestmark = pytest.mark.vulkan


def test_the_file_names_the_kernel_and_has_the_step_that_the_open_device_told(tmp_path, gpubench, session):
    """Through the program and its workers: on a software adapter the kernel is the default, and nothing is remembered."""
    device, step_s = session.device, session.device.clock.step_s
    ended = gpubench(
        "run", "--ops", "matmul", "--sizes", "48", "--devices", f"numpy:0,{device.id}", "--sessions", "1", "--regimes", "resident-queued",
        "--min-samples", "5", "--max-samples", "5", "--variant", "naive", "--no-autotune", "--no-progress", "-o", "r.json",
        env={"GPUBENCH_CACHE_DIR": str(tmp_path / "own")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run = json.loads((tmp_path / "r.json").read_text())
    clocks = {one["id"]: one["clock"] for one in run["devices"]}
    assert clocks["numpy:0"] is None
    assert clocks[device.id] == {"kind": "pass-timestamp", "step_s": pytest.approx(step_s, rel=1e-5)}
    taken = {
        outcome["case"].get("variant"): outcome.get("kernel")
        for outcome in run["outcomes"]
        if outcome["case"]["device_id"] == device.id and outcome["type"] == "measurement"
    }
    assert set(taken) == {None, "naive"}
    assert taken["naive"] is None
    assert taken[None]
    assert run["settings"]["autotune"] is False
    assert not (tmp_path / "own" / "choices.json.sealed").exists()
    shown = gpubench("report", "r.json", "--format", "markdown", "--sections", "raw").stdout
    assert taken[None] in shown
