"""Sources that are late: what is waited for and said, and that lateness recommends no CPU."""

import json
import sys

import pytest

from gpubench import cli, detect
from gpubench.base import processes
from gpubench.base.errors import UsageError
from gpubench.detect import inspection
from gpubench.detect.facts import Root
from gpubench.detect.inspection import LIMIT_VARIABLE, ProbeRequest

CARDS = ("01", "41")
RECORDS = [{"source": "nvml", "ordinal": n, "bdf": f"0000:{bus}:00.0", "vendor_id": "10de", "device_id": "20b0",
            "uuid": f"GPU-00000000-0000-0000-0000-0000000000{bus}", "memory_bytes": 40 << 30} for n, bus in enumerate(CARDS)]  # fmt: skip
SLOW = f"import json, sys, time; time.sleep(float(sys.argv[1])); print(json.dumps({{'records': {RECORDS}}}))"


@pytest.fixture
def machine(plant, host, pci, monkeypatch):
    """The document of two NVIDIA GPUs whose probe `late` answers after so many seconds, and what is told."""

    def inspect(late, after_s, **options):
        tree = dict(host)
        for bus in CARDS:
            tree |= pci(f"0000:{bus}:00.0", "10de", "20b0", "nvidia")
        plan = inspection.plan

        def slow(files, **words):
            requests, skipped = plan(files, **words)
            waits = [str(after_s if request.name == late else 0) for request in requests]
            probes = [(sys.executable, "-c", SLOW, wait) for wait in waits]
            return [r._replace(command=probe) for r, probe in zip(requests, probes, strict=True)], skipped

        monkeypatch.setattr(inspection, "plan", slow)
        monkeypatch.setattr(inspection, "node_status", lambda path: "present")
        monkeypatch.setattr(processes, "SILENT_S", 0.5)
        told: list[str] = []
        gathered = inspection.gather(root=Root(str(plant(tree))), tell=told.append, **options)
        return detect.inspect(gathered=gathered), told

    return inspect


def test_a_driver_that_loads_slowly_is_waited_for_and_named(machine):
    found, told = machine("nvml", 2.5)
    assert (found.recommendation.mode, found.recommendation.reasons[0].code) == ("gpu", "VRAM_GE_4GIB")
    assert told == ["waiting for NVIDIA's driver (NVML), up to 30 s"]


def test_a_driver_that_is_too_late_costs_the_memory_alone(machine, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "500ms")
    found, _ = machine("nvml", 60)
    (nvml,) = [provider for provider in found.providers if provider.name == "nvml"]
    assert (nvml.status, nvml.error_code) == ("timeout", "no answer in 0.5 s")
    assert "nvidia-smi -pm 1" in (nvml.hint or "")
    assert LIMIT_VARIABLE in (nvml.hint or "")
    advice = found.recommendation
    assert (advice.mode, [reason.code for reason in advice.reasons]) == ("gpu", ["SOURCE_LATE"] * 2)
    assert advice.device_ids == [gpu.id for gpu in found.gpus]


def test_all_probes_end_within_the_total_whatever_is_asked(machine, monkeypatch):
    limits = {}

    def note(requests, tell):
        limits.update({request.name: request.limit_s for request in requests})
        return []

    monkeypatch.setattr(inspection, "run_probes", note)
    machine("nvml", 0, deep=True, blas=True, wake=True)
    assert limits.keys() >= {"nvml", "cuda", "wgpu", "blas"}
    assert min(limits["nvml"], limits["cuda"], limits["wgpu"]) >= 30
    assert max(limits.values()) + inspection.END_S + 2 * processes.LET_GO_S <= inspection.TOTAL_S
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(inspection.time, "perf_counter", lambda: next(ticks))
    machine("nvml", 0)
    assert 0 < limits["nvml"] < 30, "files that take long leave the probes less"


def test_a_limit_of_the_user_holds_for_every_probe(machine, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "5m")
    limits = []
    monkeypatch.setattr(inspection, "run_probes", lambda requests, tell: limits.extend(requests) or [])
    machine("nvml", 0, deep=True)
    assert {request.limit_s for request in limits} == {300.0}
    monkeypatch.setenv(LIMIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match=LIMIT_VARIABLE):
        machine("nvml", 0)


def test_nothing_is_said_of_probes_that_answer(monkeypatch):
    told: list[str] = []
    request = ProbeRequest("wgpu", 30.0, {}, (sys.executable, "-c", SLOW, "0"))
    inspection.run_probes([request], told.append)
    assert told == []
    monkeypatch.setattr(processes, "SILENT_S", 0.2)
    late = request._replace(command=(sys.executable, "-c", SLOW, "1"))
    inspection.run_probes([request, late._replace(name="cuda"), late], told.append)
    assert told == ["waiting for CUDA (CuPy) and WebGPU (wgpu), up to 30 s"]


def test_the_screen_says_what_detect_waits_for_and_quiet_does_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "wgpu.py").write_text("import time; time.sleep(2); raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "SILENT_S", 0.3)
    for quiet in ([], ["-q"]):
        assert cli.main(["detect", "--deep", "--json", *quiet]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["recommendation"]
        assert ("WebGPU (wgpu)" in err, err == "") == (not quiet, bool(quiet))
