"""What a live detection asks, how long it waits, and what it makes of the answers, without any hardware."""

import json
import sys

import pytest

from gpubench import cli, detect
from gpubench.base import processes
from gpubench.base.errors import UsageError
from gpubench.detect import inspection, picture
from gpubench.detect.cpu import blas_warnings, doubtful_blas
from gpubench.detect.facts import ABSENT, Root, make_fact, parse_record
from gpubench.detect.host import read_files
from gpubench.detect.inspection import LIMIT_VARIABLE, Gathered
from gpubench.result.machine import NOT_PROBED, Access, Cpu, CpuBlas, Driver, Gpu, Machine, Provider
from tests.detect.trees import HOST, pci


@pytest.fixture
def plan(plant):
    def ask(tree, **options):
        files = read_files(Root(str(plant(tree))), NOT_PROBED)
        requests, skipped = inspection.plan(files, **({"deep": False, "wake": False} | options))
        return [request.name for request in requests], [provider.name for provider in skipped]

    return ask


def test_a_gpu_is_evidence_for_its_probes_and_a_sleeping_one_against_all_that_wake_it(plan):
    amd = HOST | pci("0000:03:00.0", "1002", "744c", "amdgpu")
    awake, asleep = (HOST | pci("0000:01:00.0", "10de", "2684", "nvidia", power__runtime_status=state)
                     for state in ("active", "suspended"))  # fmt: skip
    nvidia = ["nvml", "cuda", "wgpu"]
    for tree, options, asked, skipped in (
        ({"/proc/nothing": ""}, {}, ["nvml", "wgpu"], []), (HOST, {}, [], []), (amd, {}, [], []), (HOST, {"deep": True}, ["wgpu"], []), (awake, {}, ["nvml"], []),
        (awake, {"deep": True}, nvidia, []), (asleep, {}, [], ["nvml"]), (asleep, {"deep": True}, [], nvidia),
        (asleep, {"deep": True, "wake": True}, nvidia, [])):  # fmt: skip
        assert plan(tree, **options) == (asked, skipped)


def test_render_nodes_are_asked_only_for_what_no_file_told(plant):
    tree = HOST | pci("0000:03:00.0", "8086", "56a0", "i915") | pci("0000:00:02.0", "8086", "4680", "i915")
    tree |= pci("0000:04:00.0", "1002", "15bf", "amdgpu")
    tree |= pci("0000:05:00.0", "1002", "7fff", "amdgpu")
    tree |= pci("0000:06:00.0", "1002", "7fff", "amdgpu", power__runtime_status="suspended")
    for number, place in enumerate(("03:00", "00:02", "04:00", "05:00", "06:00"), 128):
        bdf = f"0000:{place}.0"
        tree[f"/sys/class/drm/renderD{number}/device"] = f"-> ../../../bus/pci/devices/{bdf}"
    root = Root(str(plant(tree)))
    records, nodes = read_files(root, NOT_PROBED).records, inspection.render_nodes(root)
    for wake, numbers in ((False, (128, 131)), (True, (128, 131, 132))):
        (request,) = inspection.render_queries(records, nodes, wake=wake)
        assert [node["node"] for node in request.options["nodes"]] == [f"renderD{n}" for n in numbers]


NODE, NO_NODE = make_fact("present", "/dev/nvidia0"), make_fact("absent", "/dev/nvidiactl")
HIDDEN = make_fact("CUDA_VISIBLE_DEVICES", "x")
GPU = Gpu(id="g", vendor=make_fact("nvidia", "t"), driver=Driver(name=make_fact("nvidia", "t")))


@pytest.mark.parametrize(("node", "hiding", "failed", "usable", "codes", "source"), [
    (NODE, ABSENT, [], True, [], "/dev/nvidia0"), (NO_NODE, ABSENT, [], False, ["NOT_EXPOSED"], "/dev/nvidiactl"),
    (make_fact("no_permission", "/dev/nvidia0"), ABSENT, [], False, ["NO_PERMISSION"], "/dev/nvidia0"),
    (NODE, ABSENT, ["DRIVER_MISMATCH"], False, ["DRIVER_MISMATCH"], "probe"),
    (NODE, HIDDEN, [], False, ["HIDDEN_BY_ENV"], "x"), (NOT_PROBED, NOT_PROBED, [], None, [], None),
    (NO_NODE, HIDDEN, ["DRIVER_MISMATCH"], False, ["NOT_EXPOSED", "DRIVER_MISMATCH", "HIDDEN_BY_ENV"], "/dev/nvidiactl")])  # fmt: skip
def test_usable_needs_every_door_open(node, hiding, failed, usable, codes, source):
    gpu = inspection.judge_access(GPU, Access(device_node=node, hidden_by_env=hiding), failed, True)
    assert (gpu.usable.value, gpu.why_not, gpu.usable.source) == (usable, codes, source)


@pytest.mark.parametrize(("name", "status", "codes"), [
    ("nvml", "mismatch", ["DRIVER_MISMATCH"]), ("nvml", "timeout", []),
    ("cuda", "absent", ["RUNTIME_MISSING"])])  # fmt: skip
def test_a_probe_that_failed_makes_a_listed_gpu_unusable(plant, monkeypatch, name, status, codes):
    monkeypatch.setattr(inspection, "node_status", lambda path: "present")
    root = Root(str(plant(HOST | pci("0000:01:00.0", "10de", "2330", "nvidia"))))
    gathered = Gathered(read_files(root, NOT_PROBED), root, [Provider(name=name, status=status)])
    (gpu,) = inspection.assemble(gathered, live=True).gpus
    assert (gpu.why_not, gpu.usable.value) == (codes, not codes)
    listed = parse_record({"source": "wgpu:vulkan", "vendor_id": "10de", "device_id": "2330"})
    (gpu,) = inspection.assemble(gathered, [listed], live=True).gpus
    assert gpu.why_not == [code for code in codes if code != "RUNTIME_MISSING"], "WebGPU needs no CuPy"


def test_this_machine_is_described_whatever_it_is():
    software = {"source": "wgpu:vulkan", "name": "llvmpipe", "vendor_id": "10005", "adapter_type": "cpu"}
    machine = detect.inspect(extra_records=[software])
    assert machine.live is True
    assert machine.cpu.available.value >= 1
    assert machine.memory.usable_bytes.value <= machine.memory.os_total_bytes.value
    assert machine.providers[0].name == "files"
    assert "llvmpipe" in [renderer.name for renderer in machine.software_renderers]
    assert detect.machine_line(machine)


# ---------------------------------------------------------------- sources that are late
CARDS = ("01", "41")
RECORDS = [{"source": "nvml", "ordinal": n, "bdf": f"0000:{bus}:00.0", "vendor_id": "10de", "device_id": "20b0", "checked": True,
            "uuid": f"GPU-00000000-0000-0000-0000-0000000000{bus}", "memory_bytes": 40 << 30} for n, bus in enumerate(CARDS)]  # fmt: skip
SLOW = f"import json, sys, time; time.sleep(float(sys.argv[1])); print(json.dumps({{'records': {RECORDS}, 'cuda_driver': json.loads(sys.argv[2])}}))"


@pytest.fixture
def machine(plant, monkeypatch):
    """The document of two NVIDIA GPUs whose NVML answers after so many seconds, and what is told."""

    def inspect(after_s, driver="nvidia", cuda=None, **options):
        tree = dict(HOST)
        for bus in CARDS:
            tree |= pci(f"0000:{bus}:00.0", "10de", "20b0", driver)
        plan = inspection.plan

        def slow(files, **words):
            requests, skipped = plan(files, **words)
            waits = [str(after_s if request.name == "nvml" else 0) for request in requests]
            probes = [(sys.executable, "-c", SLOW, wait, json.dumps(cuda)) for wait in waits]
            return [r._replace(command=probe) for r, probe in zip(requests, probes, strict=True)], skipped

        monkeypatch.setattr(inspection, "plan", slow)
        monkeypatch.setattr(inspection, "node_status", lambda path: "present")
        monkeypatch.setattr(processes, "SILENT_S", 0.2)
        told: list[str] = []
        gathered = inspection.gather(root=Root(str(plant(tree))), tell=told.append, **options)
        return detect.inspect(gathered=gathered), told

    return inspect


def test_a_driver_that_loads_slowly_is_waited_for_and_named(machine):
    document, told = machine(1)
    advice = document.recommendation
    assert (advice.mode, advice.confidence, advice.reasons[0].code) == ("gpu", "verified", "VRAM_GE_4GIB")
    assert told == ["waiting for NVIDIA's driver (NVML), up to 30 s"]


@pytest.mark.parametrize(("driver", "cuda", "extras"), [
    ("nvidia", None, ["cuda13", "cuda12"]), (None, 12090, ["cuda12"]), (None, 13000, ["cuda13"]), (None, None, [])])  # fmt: skip
def test_cupy_is_missed_where_a_driver_answers_or_is_bound(machine, monkeypatch, driver, cuda, extras):
    monkeypatch.setattr(inspection.importlib.util, "find_spec", lambda name: name != "cupy" or None)
    document, _ = machine(0, driver=driver, cuda=cuda)
    texts = [warning.text for warning in document.warnings if warning.refs == ["cupy"]]
    assert [extra for extra in ("cuda13", "cuda12") if extra in "".join(texts)] == extras


def test_a_driver_that_is_too_late_costs_the_memory_alone(machine, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "500ms")
    document, _ = machine(60)
    (nvml,) = [provider for provider in document.providers if provider.name == "nvml"]
    assert (nvml.status, nvml.error_code) == ("timeout", "no answer in 0.5 s")
    assert "nvidia-smi -pm 1" in (nvml.hint or "")
    assert LIMIT_VARIABLE in (nvml.hint or "")
    advice = document.recommendation
    assert (advice.mode, [reason.code for reason in advice.reasons]) == ("gpu", ["SOURCE_LATE"] * 2)
    assert advice.device_ids == [gpu.id for gpu in document.gpus]


def test_all_probes_end_within_the_total_and_the_users_limit_holds_for_each(machine, monkeypatch):
    limits = {}

    def note(requests, tell):
        limits.update({request.name: request.limit_s for request in requests})
        return []

    monkeypatch.setattr(inspection, "run_probes", note)
    machine(0, deep=True, blas=True, wake=True)
    assert limits.keys() >= {"nvml", "cuda", "wgpu", "blas"}
    assert min(limits["nvml"], limits["cuda"], limits["wgpu"]) >= 30
    assert max(limits.values()) + inspection.END_S + 2 * processes.LET_GO_S <= inspection.TOTAL_S
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(inspection.time, "perf_counter", lambda: next(ticks))
    machine(0)
    assert 0 < limits["nvml"] < 30, "files that take long leave the probes less"
    monkeypatch.setenv(LIMIT_VARIABLE, "5m")
    machine(0, deep=True)
    assert (limits["nvml"], limits["wgpu"]) == (300.0, 300.0)
    monkeypatch.setenv(LIMIT_VARIABLE, "soon")
    with pytest.raises(UsageError, match=LIMIT_VARIABLE):
        machine(0)


def test_the_screen_says_what_detect_waits_for_and_quiet_does_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "wgpu.py").write_text("import time; time.sleep(1); raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(processes, "SILENT_S", 0.3)
    for quiet in ([], ["-q"]):
        assert cli.main(["detect", "--deep", "--json", *quiet]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["recommendation"]
        assert ("WebGPU (wgpu)" in err, err == "") == (not quiet, bool(quiet))


# ---------------------------------------------------------------- BLAS and its threads
def cpu(available=8, limited_by="online", threads=None):
    blas = NOT_PROBED
    if threads:
        blas = make_fact([CpuBlas(library="openblas", version="0.3", threads=threads)], "blas")
    return Cpu(available=make_fact(available, "t"), limited_by=make_fact(limited_by, "t"), blas=blas)


@pytest.mark.parametrize(("machine", "environ", "asked"), [
    (cpu(), {}, False), (cpu(limited_by="affinity"), {}, False), (cpu(limited_by="quota"), {}, True), (cpu(limited_by="cpuset"), {}, True),
    (cpu(available=96), {}, True), (cpu(), {"OMP_NUM_THREADS": "1"}, True), (cpu(), {"OMP_NUM_THREADS": ""}, False), (Cpu(), {}, False)])  # fmt: skip
def test_the_blas_is_asked_where_its_threads_may_not_fit(machine, environ, asked):
    assert doubtful_blas(machine, environ) is asked


def test_threads_that_do_not_fit_are_told_with_the_variable_that_helps():
    for threads, words in ((1, "1 thread,"), (64, "64 threads,")):
        (warning,) = blas_warnings(cpu(threads=threads))
        assert (warning.code, words in warning.text) == ("BLAS_THREADS", True)
        assert "OPENBLAS_NUM_THREADS=8" in warning.text
    assert blas_warnings(cpu(threads=8)) == []
    for machine, part in ((Machine(cpu=cpu()), "BLAS not asked: --deep shows it"),
                          (Machine(cpu=cpu(threads=64)),
                           "BLAS openblas 0.3 with 64 threads: 8 CPUs are usable!")):  # fmt: skip
        assert part in picture.render(machine, "markdown")
    assert "BLAS" not in picture.render(Machine(live=False, cpu=cpu()), "markdown")


def test_a_variable_brings_the_probe_and_the_warning_into_the_default_command(in_process):
    document = json.loads(in_process("detect", "--json", env={"OPENBLAS_NUM_THREADS": "1"}).stdout)
    (blas,) = (b for b in document["cpu"]["blas"]["value"] if b["library"] == "openblas")
    assert blas["threads"] == 1
    warned = any(w["code"] == "BLAS_THREADS" for w in document["warnings"])
    assert warned is (document["cpu"]["available"]["value"] != 1)
