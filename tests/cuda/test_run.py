"""The program on a CUDA machine: NumPy, CuPy and wgpu side by side, through real workers."""

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.cuda

ROOT = str(Path(__file__).resolve().parents[2])
# The checkout first; what the machine has on its own path stays.
SEARCH_PATH = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))


def test_matmul_and_relu_on_all_three_backends(gpubench, tmp_path):
    ended = gpubench(
        "run", "--ops", "matmul,relu", "--sizes", "512", "--sizes", "relu=64k", "--backends", "numpy,cupy,wgpu",
        "--quick", "--max-time", "100ms", "--full", "-o", "r.json", env={"PYTHONPATH": SEARCH_PATH}, timeout=110,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["complete"]
    measured = {o["id"]: o for o in result["outcomes"] if o["type"] == "measurement"}
    assert {o["case"]["device_id"].split(":")[0] for o in measured.values()} == {"numpy", "cupy", "wgpu"}
    assert [o["id"] for o in result["outcomes"] if o["type"] == "failure"] == []
    for outcome in measured.values():
        assert outcome["check"]["ok"]
        resident_gpu = outcome["case"]["regime"] == "resident-queued" and "numpy" not in outcome["id"]
        assert bool(outcome["blocks"][0].get("device_hot_s")) == resident_gpu, outcome["id"]
    assert "cupy" in ended.stdout
    assert "vs numpy" in ended.stdout


def test_a_case_larger_than_the_device_is_skipped(gpubench, tmp_path):
    ended = gpubench(
        "run", "--ops", "copy", "--sizes", "1k,64G", "--backends", "numpy,cupy", "--check-only", "-o", "r.json",
        env={"PYTHONPATH": SEARCH_PATH},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads((tmp_path / "r.json").read_text())["outcomes"]
    large = [o for o in outcomes if "/n=68719476736/" in o["id"]]
    assert large
    assert {(o["type"], o["reason"]) for o in large} == {("skip", "out-of-memory")}
