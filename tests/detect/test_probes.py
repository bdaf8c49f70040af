"""Answers of drivers, registries and libraries, and the facts that probes make of them; probes that break."""

import contextlib
import ctypes
import json
import os
import struct
import sys
import time
from collections import namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from gpubench import detect
from gpubench.base import processes
from gpubench.detect import inspection
from gpubench.detect.inspection import ProbeRequest
from gpubench.detect.probes import ProbeFailure, libraries, nvml
from gpubench.measure import monitor_child
from gpubench.measure.monitor import MonitorTarget
from tests.detect.recorded import last_answer
from tests.detect.trees import GIB, HOST, check, pci
from tests.forking import is_alive
from tests.nvml import Nvml
from tests.raising import raised

SIZE = "memory.dedicated_bytes"
ERRORS = {3: "unsupported", 13: "unsupported", 25: "unsupported", 4: "permission", 18: "mismatch", 10: "timeout", 9: "absent",
          12: "absent", 6: "absent", 15: "crashed", 16: "crashed", 999: "invalid"}  # fmt: skip
BLOCKED = dict.fromkeys((4, 17, 999), "permission")
REMEDIES = {9: "kernel module is not loaded", 15: "dmesg", 16: "dmesg", 12: "libnvidia-ml is not installed", 18: "reboot",
            **dict.fromkeys(BLOCKED, "restart the container")}  # fmt: skip


@pytest.mark.parametrize(("flags", "kind"), [(1, "integrated"), (0, "discrete"), (6, "discrete")])
def test_the_fusion_flag_is_what_makes_an_apu(flags, kind):
    info, memory = struct.pack("=48xI84xQ", 40, flags), struct.pack("=Q", 8 * GIB)

    def ioctl(_handle, number, command):
        assert number == 0x40206445  # DRM_IOCTL_AMDGPU_INFO of the kernel's headers
        target, room, query = struct.unpack("=QII16x", command)
        answer = {0x16: info, 0x19: memory}[query]
        assert room >= len(answer)
        ctypes.memmove(target, answer, len(answer))

    facts = {"source": "drm-ioctl", "bdf": "0000:03:00.0", "vendor_id": "1002"} | libraries.ask_amdgpu(ioctl, 0)
    machine = detect.inspect(records=[facts])
    check(machine.gpus[0], {"kind": kind, "compute.units": 40, SIZE: "absent" if flags == 1 else 8 * GIB})


def regions(header, *sizes):
    """Memory regions as i915 and xe have them: the system's, then those of the device."""
    data = struct.pack("=I", len(sizes)).ljust(header, b"\0")
    return data + b"".join(struct.pack("=HHIQQ64x", n > 0, 0, 0, size, 0) for n, size in enumerate(sizes))


def i915(data):
    def ioctl(_handle, number, command):
        assert number == 0xC0106479  # DRM_IOCTL_I915_QUERY
        item = struct.unpack("=IIQ", command)[2]
        query, length, _, target = struct.unpack("=QiIQ", ctypes.string_at(item, 24))
        ctypes.memmove(target, data, length and len(data))
        ctypes.memmove(item, struct.pack("=QiIQ", query, len(data), 0, target), 24)

    return libraries.ask_i915(ioctl, 0)


def xe(data):
    def ioctl(_handle, number, command, _mutate):
        assert number == 0xC0286440  # DRM_IOCTL_XE_DEVICE_QUERY
        _, query, length, target = struct.unpack("=QIIQ16x", command.tobytes())
        ctypes.memmove(target, data, length and len(data))
        struct.pack_into("=QIIQ16x", command, 0, 0, query, len(data), target)

    return libraries.ask_xe(ioctl, 0)


@pytest.mark.parametrize(("ask", "header"), [(i915, 16), (xe, 8)])
def test_the_memory_regions_of_intels_drivers_tell_the_kind(ask, header):
    for own, size in (((8 * GIB, 8 * GIB), 16 * GIB), ((), None)):
        facts = ask(regions(header, 64 * GIB, *own))
        assert (facts["kind"], facts[SIZE]["value"]) == ("discrete" if size else "integrated", size)
        assert facts["memory.unified"] is (size is None)
    with pytest.raises(struct.error):  # an answer that is cut
        ask(regions(header, 64 * GIB, GIB)[:-80])
    assert "answered 0" in str(raised(OSError, ask, b""))


ENTRY = {"MatchingDeviceId": "PCI\\VEN_1002&DEV_73BF&SUBSYS_0E3A1002", "DriverVersion": "32.0.12019.1028",
         "HardwareInformation.qwMemorySize": 16 * GIB}  # fmt: skip
VERSION = {"driver.version": "32.0.12019.1028"}
BOTH = VERSION | {SIZE: 16 * GIB}


@pytest.mark.parametrize(("changes", "facts"), [
    ([{}], BOTH), *(([{"HardwareInformation.qwMemorySize": size}], facts) for size, facts in (
        ((16 * GIB).to_bytes(8, "little"), BOTH), (0, VERSION), ("16 GB", VERSION), (b"\xff" * 8, VERSION))),
    *(([{"MatchingDeviceId": text}], facts) for text, facts in (
        ("pci\\ven_1002&dev_73bf", BOTH), ("PCI\\VEN_1002&DEV_744C", {}), ("ROOT\\BasicDisplay", {}), (None, {}))),
    ([{}, {"HardwareInformation.qwMemorySize": 8 * GIB}, {}], VERSION),  # entries of one model that differ
])  # fmt: skip
def test_windows_registry_describes_the_adapters_that_a_library_lists(changes, facts, monkeypatch):
    monkeypatch.setattr(libraries, "_adapters", lambda: iter(ENTRY | change for change in changes))
    stated = libraries.read_registry().get((0x1002, 0x73BF), {})
    assert {path: fact["value"] for path, fact in stated.items()} == facts
    assert {fact["source"] for fact in stated.values()} <= {"registry"}


@pytest.mark.parametrize("code", ERRORS | BLOCKED)
def test_nvml_that_cannot_start_says_why(code):
    failure = raised(ProbeFailure, last_answer, nvml.probe_nvml, Nvml(nvmlInit=Nvml.NVMLError(code)))
    assert failure.status == (ERRORS | BLOCKED)[code]
    assert REMEDIES.get(code, str(Nvml.NVMLError(code))) in failure.hint


EVENTS = {0x1: [], 0x2: ["applications_clocks"], 0x4: ["sw_power_cap"], 0x8: ["hw_slowdown"], 0x10: ["sync_boost"],
          0x20: ["sw_thermal_slowdown"], 0x40: ["hw_thermal_slowdown"], 0x80: ["hw_power_brake"], 0x100: ["display_clocks"],
          0x44: ["sw_power_cap", "hw_thermal_slowdown"]}  # fmt: skip
MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process", 4: None}


@pytest.mark.parametrize(("answers", "path", "told"), [
    *(({"nvmlDeviceGetDisplayActive": Nvml.NVMLError(code)}, "display_attached.status", status) for code, status in ERRORS.items()),
    *(({"nvmlDeviceGetComputeMode": mode}, "compute.mode.value", word) for mode, word in MODES.items()),
    *(({"nvmlDeviceGetVirtualizationMode": mode}, "kind.value", "vgpu" if mode == 2 else None) for mode in range(5)),
    # It will be cut into instances (1) once it is free, and is whole now (0); or how many it has is not told.
    *(({"nvmlDeviceGetMigMode": mode, "nvmlDeviceGetMigDeviceHandleByIndex": "an instance"}, "ordinal", 0) for mode in ((0, 1), (1, 1))),
    # In MIG mode, without an instance: none is there, or this process may see none.
    *(({"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 7, "nvmlDeviceGetMigDeviceHandleByIndex": Nvml.NVMLError(code)}, "why_not", codes)
      for code, codes in ((6, ["NO_INSTANCE"]), (4, []))),
    *(({f"nvmlDeviceGetCurrentClocks{name}Reasons": mask}, "throttle", words)
      for name in ("Event", "Throttle") for mask, words in EVENTS.items())])  # fmt: skip
def test_what_nvml_says_by_numbers(answers, path, told):
    (record,) = last_answer(nvml.probe_nvml, Nvml(**answers))["records"]
    check(record, {path: told})


@pytest.mark.parametrize(("mode", "used"), [(0, 5), (1, 5), (2, 0), (None, 5), (SimpleNamespace(value=2), 0)])
def test_memory_that_a_gpu_shares_with_the_system_is_nobodys_use(mode, used):
    """A card of the driver's own memory (1), or of the system's (2, ATS)."""
    answers = {} if mode is None else {"nvmlDeviceGetAddressingMode": mode}
    library = Nvml(nvmlDeviceGetMemoryInfo=SimpleNamespace(total=9, free=4, used=5), **answers)
    users = nvml.gpu_users([MonitorTarget("cupy:0", None, "0000:06:00.0")], library)
    assert users == {"cupy:0": {"computing": 0, "drawing": 0, "used_bytes": used}}


VENUS = {"source": "wgpu:vulkan", "ordinal": 0, "driver": "venus", "name": "Virtio-GPU Venus (Intel(R) Arc(tm) A770)",
         "vendor_id": "8086", "device_id": "56a0", "adapter_type": "virtual", "checked": True}  # fmt: skip
VIRTIO = HOST | pci("0000:00:03.0", "1af4", "1050", "virtio-pci")
TWO = VIRTIO | pci("0000:00:04.0", "1af4", "1050")
ARC = VENUS | {"driver": "Intel open-source Mesa driver", "name": "Intel(R) Arc(tm) A770",
               "adapter_type": "discrete"}  # fmt: skip
DRAWS = {"gpus": [], "display_adapters.*.role": ["virtual"]}
PROOFS = {
    "a virtio GPU that computed": (
        VIRTIO, [VENUS],
        {"gpus.*.bdf": ["0000:00:03.0"], "gpus.0.kind": "vgpu", "gpus.0.apis.wgpu:vulkan.ordinal": 0, "display_adapters": [], "warnings": [],
         "recommendation.rejected.*.code": ["VRAM_UNKNOWN"]}),
    **{f"without that proof: {change}": (VIRTIO, [VENUS | change], DRAWS) for change in (
        {"checked": False}, {"source": "wgpu:gl", "name": "virgl (AMD Radeon)", "driver": "virgl"},
        {"name": "Virtio-GPU Venus (llvmpipe (LLVM 17.0.6, 256 bits))"}, {"adapter_type": "cpu"})},
    "one proof for two": (TWO, [VENUS], {"gpu_count": 1, "display_adapters.*.role": ["virtual"]}),
    "two proofs for two": (TWO, [VENUS, VENUS | {"ordinal": 1}], {"gpu_count": 2, "display_adapters": []}),
    "a passed-through card beside virtio keeps its own adapter": (
        VIRTIO | pci("0000:00:05.0", "8086", "56a0", "i915"), [ARC, VENUS],
        {"gpus.*.bdf": ["0000:00:03.0", "0000:00:05.0"], "gpus.*.kind": ["vgpu", "discrete"], "gpus.0.name": VENUS["name"], "gpus.1.name": ARC["name"]})}  # fmt: skip


@pytest.mark.parametrize("name", PROOFS)
def test_what_computed_is_a_gpu(plant, name):
    tree, listed, expected = PROOFS[name]
    check(detect.inspect(sysroot=plant(tree), extra_records=listed), expected)


class Cupy:
    """Several GTX 1080, of which one may not answer, and a compiler that serves what `served` says."""

    __version__ = "14.0"

    def __init__(self, served=list, count=1, sick=None):
        def properties(index):
            if index == sick:
                raise RuntimeError("cudaErrorDevicesUnavailable")
            return {"pciDomainID": 0, "pciBusID": 1 + index, "pciDeviceID": 0, "name": b"NVIDIA GeForce GTX 1080", "integrated": 0,
                    "totalGlobalMem": 8 << 30, "multiProcessorCount": 20, "major": 6, "minor": 1}  # fmt: skip

        runtime = SimpleNamespace(getDeviceCount=lambda: count, getDeviceProperties=properties,
                                  runtimeGetVersion=lambda: 13000, CUDARuntimeError=RuntimeError)  # fmt: skip
        self.cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getSupportedArchs=served))
        self.ran = []
        self.cuda.Device = self.ran.append


def test_a_model_that_the_compiler_no_longer_serves_is_too_old_unless_vulkan_computes():
    cupy = Cupy(lambda: [75, 80, 90, 100, 120])
    records = last_answer(libraries.probe_cuda, cupy)["records"]
    machine = detect.inspect(records=records)
    check(machine, {"gpus.0.usable": False, "gpus.0.why_not": ["TOO_OLD"], "recommendation.rejected.*.code": ["TOO_OLD"],
                    "gpus.0.compute.arch": "sm_61", "gpus.0.memory.dedicated_bytes": 8 * GIB})  # fmt: skip
    assert cupy.ran == []
    assert "extra cuda12" in machine.recommendation.reasons[0].text
    vulkan = {"source": "wgpu:vulkan", "vendor_id": "10de", "adapter_type": "discrete", "checked": True}
    assert detect.inspect(records=[*records, vulkan]).gpus[0].why_not == []


class Refused(Exception):
    status = 802


def test_an_error_of_cuda_as_a_whole_has_a_remedy(monkeypatch):
    cupy = Cupy()
    cupy.cuda.runtime.CUDARuntimeError = Refused
    cupy.cuda.runtime.getDeviceCount = Mock(side_effect=Refused("system not yet initialized"))
    failure = raised(ProbeFailure, last_answer, libraries.probe_cuda, cupy)
    assert (failure.status, "nvidia-fabricmanager" in failure.hint) == ("mismatch", True)
    monkeypatch.setattr(Refused, "status", 100)
    assert last_answer(libraries.probe_cuda, cupy) == {"records": [], "version": "14.0"}


RIGHT = [2.0 * x + 1.0 for x in range(1000)]


@pytest.mark.parametrize(("values", "checked"), [(RIGHT, True), ([*RIGHT[:-1], 0.0], False), (None, False)])
def test_a_device_that_computes_rightly_is_checked(monkeypatch, values, checked):
    numbers = None if values is None else np.array(values, np.float32)
    cupy, identity = Cupy(lambda: [50]), bytes(range(16))
    cupy.cuda.runtime.getDeviceProperties = partial(
        lambda own, index: own(index) | {"uuid": identity}, cupy.cuda.runtime.getDeviceProperties
    )
    cupy.cuda.Device, cupy.float32 = contextlib.nullcontext, np.float32
    cupy.arange = lambda count, dtype: None if values is None else (numbers[:count] - 1) / 2
    first, last = libraries.probe_cuda(cupy)
    assert (first["partial"], "partial" in last) == (True, False)
    (record,) = last["records"]
    assert (record["checked"], record["uuid"]) == (checked, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
    device = Mock()
    device.queue.read_buffer.return_value = None if values is None else numbers.tobytes()
    adapter = Mock(info={"backend_type": "Vulkan"}, request_device_sync=lambda: device)
    usage, gpu = Mock(STORAGE=1, COPY_SRC=2), Mock(enumerate_adapters_sync=lambda: [adapter])
    monkeypatch.setitem(sys.modules, "wgpu", Mock(__version__="1", gpu=gpu, BufferUsage=usage))
    assert [record["checked"] for record in last_answer(libraries.probe_wgpu)["records"]] == [checked]


def test_what_py_cpuinfo_tells_is_converted(monkeypatch):
    info = {"brand_raw": "X", "vendor_id_raw": 7, "flags": ["avx", 3], "hz_advertised": (2_000_000_000, 0), "l1_data_cache_size": 32768,
            "l1_instruction_cache_size": "64 KiB", "l2_cache_size": "1 MB", "l3_cache_size": "much"}  # fmt: skip
    monkeypatch.setitem(sys.modules, "cpuinfo", SimpleNamespace(get_cpu_info=lambda: info))
    sizes = ((1, "data", 1 << 15), (1, "instruction", 1 << 16), (2, "unified", 1 << 20))
    caches = [{"level": level, "type": kind, "size_bytes": size, "instances": 1} for level, kind, size in sizes]
    told = {"model": "X", "vendor": None, "flags": ["avx", "3"], "base_hz": 2_000_000_000, "caches": caches}
    assert libraries.probe_cpuinfo() == {"records": [], "cpu": told}
    info["hz_advertised"] = (0, 0)
    assert libraries.probe_cpuinfo()["cpu"]["base_hz"] is None


def refuse():
    raise AttributeError("this CUDA has no such call")


@pytest.mark.parametrize("served", [lambda: [50, 60, 61], lambda: [61, 75], list, refuse])
def test_nothing_is_too_old_without_a_source_that_says_so(served):
    (record,) = last_answer(libraries.probe_cuda, Cupy(served))["records"]
    assert "why_not" not in record


# ---------------------------------------------------------------- providers that sleep, abort, print junk or never stop
GOOD = "import json; print(json.dumps({'records': [{'source': 'nvml', 'ordinal': 0}], 'version': '1'}))"


def run(*programs, limit=3.0):
    commands = [(sys.executable, "-c", code) for code in programs]
    return inspection.run_probes([ProbeRequest(f"p{n}", limit, {}, own) for n, own in enumerate(commands)])


# Programs, how they end, and what is told of that.
BROKEN = [
    ("import os; os.abort()", "crashed", "signal 6"),
    ("import sys; print('first'); print('no such library', file=sys.stderr); sys.exit(3)", "crashed", "exit status 3"),
    ("import sys; print(\"can't start new thread\\nbye\", file=sys.stderr); sys.exit(1)", "crashed", "exit status 1"),
    ("print('Segmentation fault lol')", "invalid", "JSON"), ("print('[1, 2')", "invalid", "JSON"), ("pass", "invalid", "JSON"),
    ('print(\'{"records": [{"no": "source"}]}\')', "invalid", "JSON"), ("print('{\"records\": 7}')", "invalid", "JSON")]  # fmt: skip


def test_a_broken_provider_is_marked_and_costs_nothing_else():
    *answers, good = run(*(code for code, *_ in BROKEN), GOOD, limit=60.0)
    assert (good.provider.status, [record.source for record in good.records]) == ("ok", ["nvml"])
    for (code, status, reported), broken in zip(BROKEN, answers, strict=True):
        told, hint = broken.provider, broken.provider.hint or ""
        assert (told.status, broken.records, reported in told.error_code) == (status, [], True)
        assert ("ulimit -u" in hint) == ("thread" in code), "a limit of the system is named"
        assert hint == "no such library" or "no such library" not in code


@pytest.mark.serial
def test_a_sleeper_costs_its_limit_and_its_group_dies_with_it(tmp_path):
    place = tmp_path / "pid"
    inner = f"import os, time; open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {inner!r}]); time.sleep(60)"
    start = time.monotonic()
    asleep, good = run(code, GOOD, limit=2.0)
    assert time.monotonic() - start < 30, "not the minute that it sleeps"
    assert (asleep.provider.status, good.provider.status) == ("timeout", "ok")
    while is_alive(int(place.read_text())):
        assert time.monotonic() - start < 30
        time.sleep(0.01)


def test_endless_output_costs_time_and_no_memory(monkeypatch):
    monkeypatch.setattr(processes, "SILENT_S", 40.0)
    start = time.monotonic()
    (answer,) = run("import sys\nwhile True: sys.stdout.write('x' * 65536)", limit=0.5)
    assert (answer.provider.status, time.monotonic() - start < 30) == ("timeout", True)


def test_nothing_is_said_of_probes_that_answer():
    told: list[str] = []
    inspection.run_probes([ProbeRequest("wgpu", 30.0, {}, (sys.executable, "-c", GOOD))], told.append)
    assert told == []


@pytest.mark.parametrize(("library", "text", "probe", "status", "hint"), [
    ("threadpoolctl", "import os; print('hello'); os.write(1, b'native noise'); threadpool_info = list", "blas", "ok", ""),
    ("wgpu", "raise SystemExit('bye')", "wgpu", "absent", "wgpu does not load (bye; pip keeps"), ("cupy", "", "cuda", "absent", "CuPy does not load (cannot import name 'cuda'"),
    ("cupy", "raise ImportError('libnvrtc is missing')", "cuda", "absent", "CuPy does not load (libnvrtc is missing;")])  # fmt: skip
def test_a_library_prints_or_lacks_a_part(tmp_path, monkeypatch, library, text, probe, status, hint):
    (tmp_path / f"{library}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (answer,) = inspection.run_probes([ProbeRequest(probe, 20.0)])
    assert (answer.provider.status, hint in (answer.provider.hint or "")) == (status, True)
    assert probe != "blas" or answer.message.blas == []


def test_providers_run_side_by_side(tmp_path):
    """Each ends when the file of the other is there."""
    meets = "import pathlib, sys, time; pathlib.Path({0!r}).touch()\nwhile not pathlib.Path({1!r}).exists(): time.sleep(0.01)\n{2}"
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    answers = run(meets.format(first, second, GOOD), meets.format(second, first, GOOD), limit=60.0)
    assert [answer.provider.status for answer in answers] == ["ok"] * 2


# ---------------------------------------------------------------- of several devices the one that fails costs itself
COUNT, SICK = 3, 1
Pci = namedtuple("Pci", "busId pciDeviceId")


def driver(call, error):
    """Three GPUs, of which the second one raises the error in this function; `*`: in all but the one that finds it."""
    answers = {
        "nvmlDeviceGetCount": COUNT, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-00000000-0000-0000-0000-00000000001{handle}",
        "nvmlDeviceGetPciInfo": lambda handle: Pci(f"00000000:{16 + handle:02X}:00.0", 0x233510DE),
        "nvmlDeviceGetMemoryInfo": lambda handle, *_: SimpleNamespace(total=8 * GIB, free=8 * GIB, used=0),
        "nvmlDeviceGetClockInfo": lambda handle, what: 1000, "nvmlDeviceGetMigMode": lambda handle: (0, 0),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=1)]}  # fmt: skip

    def spoiled(answer):
        def call(handle, *more):
            if handle == SICK:
                raise error
            return answer(handle, *more)

        return call

    for name in answers.keys() - {"nvmlDeviceGetCount"}:
        if name == call or (call == "*" and "ByIndex" not in name):
            answers[name] = spoiled(answers[name])
    return Nvml(**answers)


FAULTS = [*map(Nvml.NVMLError, (15, 4, 999)), OSError("a broken pipe"), NameError("a binding")]
CALLS = ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo",
         "nvmlDeviceGetClockInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses", "*"]  # fmt: skip
TARGETS = [MonitorTarget(f"cupy:{n}", f"GPU-00000000-0000-0000-0000-00000000001{n}", f"0000:{16 + n:02x}:00.0")
           for n in range(COUNT)]  # fmt: skip


@pytest.mark.parametrize("error", FAULTS, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_one_gpu_that_fails_costs_the_others_nothing(call, error):
    library = driver(call, error)
    records = last_answer(nvml.probe_nvml, library, [target.pci for target in TARGETS])["records"]
    assert len(records) == COUNT, "it is listed itself"
    gpus = detect.inspect(records=records).gpus
    healthy = [gpu for gpu in gpus if gpu.uuid.value in (TARGETS[0].uuid, TARGETS[2].uuid)]
    assert [gpu.memory.usable_bytes.value for gpu in healthy] == [8 * GIB] * 2
    assert [gpu.why_not for gpu in healthy] == [[]] * 2
    absent = {}
    readers = nvml.gpu_readers(TARGETS, absent, library)
    assert [readers[name]()["clock_hz"] for name in ("cupy:0", "cupy:2")] == [1e9, 1e9]
    assert ("cupy:1" in absent) == ("cupy:1" not in readers)
    users = nvml.gpu_users(TARGETS, library)
    assert [users[name]["computing"] for name in ("cupy:0", "cupy:2")] == [1, 1]


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "*"])
@pytest.mark.parametrize(("error", "code"), [
    (15, "GPU_LOST"), (16, "GPU_LOST"), (4, "NO_PERMISSION"), (8, "UNUSABLE"), (999, "UNUSABLE")])  # fmt: skip
def test_a_gpu_that_nvml_counts_and_cannot_reach_is_named(call, error, code):
    library = driver(call, Nvml.NVMLError(error))
    file = {"source": "pci-sysfs", "vendor_id": "10de", "device_id": "2335", "pci_class": "0302"}
    # A card that is given to a virtual machine is no GPU of the driver.
    files = [file | {"bdf": bdf} for bdf in (*(target.pci for target in TARGETS), "0000:05:00.0")]
    records = last_answer(nvml.probe_nvml, library, [target.pci for target in TARGETS])["records"]
    machine = detect.inspect(records=[*files, *records])
    assert [gpu.bdf.value for gpu in machine.gpus if gpu.why_not == [code]] == [TARGETS[SICK].pci]
    assert code in [rejected.code for rejected in machine.recommendation.rejected]
    assert (machine.recommendation.mode, len(machine.recommendation.device_ids)) == ("gpu", COUNT - 1)
    machine = detect.inspect(records=last_answer(nvml.probe_nvml, library)["records"])  # no file shows it
    assert ([gpu.why_not for gpu in machine.gpus].count([code]), len(machine.gpus)) == (1, COUNT)


def test_one_cuda_device_that_fails_costs_the_others_nothing():
    answer = last_answer(libraries.probe_cuda, Cupy(count=COUNT, sick=SICK))
    assert [record["ordinal"] for record in answer["records"]] == [0, 2]
    assert answer["hint"] == "cuda:1: cudaErrorDevicesUnavailable"


def test_render_nodes_are_asked_side_by_side(monkeypatch, tmp_path):
    """One hangs in its driver, one refuses, one answers nonsense, one is right."""

    def ask(ioctl, handle):
        kind = os.read(handle, 9).decode()
        if kind == "hang":
            time.sleep(60)
        if kind == "nonsense":
            raise IndexError("nonsense")
        return {"memory.dedicated_bytes": {"value": 8 * GIB, "status": "ok"}}

    for name in ("hang", "nonsense", "right"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(libraries, "ask_xe", ask)
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened(tmp_path / os.path.basename(path), flags))
    names = ("hang", "missing", "nonsense", "right")
    nodes = [{"node": name, "bdf": f"0000:0{n}:00.0", "driver": "xe"} for n, name in enumerate(names)]
    answer = libraries.probe_drm(nodes, limit_s=2.0)
    assert [record["bdf"] for record in answer["records"]] == ["0000:03:00.0"]
    assert (answer["status"], answer["error_code"]) == ("timeout", "no answer in 2 s")
    assert "nonsense: nonsense; hang: no answer" in answer["hint"]
    assert "missing: " in answer["hint"]
    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(13, "refused")))
    failure = raised(ProbeFailure, libraries.probe_drm, nodes, limit_s=2.0)
    assert (failure.status, failure.error_code) == ("permission", "refused")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert raised(ProbeFailure, libraries.probe_drm, nodes, limit_s=2.0).status == "unsupported"


STEP = (
    "from gpubench.base.child_main import Messages; import json, os, time\nmessages = Messages()\n"
    "def tell(partial): messages.write(json.dumps({{'records': [{{'source': 'nvml', 'ordinal': 0}}], 'partial': partial}})"
    ".encode())\n{}"
)


ENDINGS = {
    "tell(True); os.abort()": "crashed", "tell(True); time.sleep(60)": "timeout", "tell(True)": "invalid",
    "tell(True); tell(False); os.abort()": "ok", "tell(True); tell(False); time.sleep(60)": "ok"}  # fmt: skip


def test_what_a_probe_said_stands_however_it_ended():
    answers = run(*map(STEP.format, ENDINGS))
    assert [answer.provider.status for answer in answers] == [*ENDINGS.values()]
    assert [[record.source for record in answer.records] for answer in answers] == [["nvml"]] * len(ENDINGS)


IDS = {"vendor_id": 0x8086, "device_id": 0x56A0}
MESA = IDS | {"vendor": "venus", "device": "Arc", "description": "Mesa 26", "adapter_type": "CPU"}
APPLE = dict.fromkeys(MESA, "") | {"device": "Apple M3", "backend_type": "Metal"}


@pytest.mark.parametrize(("info", "record"), [
    (MESA | {"backend_type": "Vulkan"}, IDS | {"source": "wgpu:vulkan", "driver": "venus", "name": "Arc", "adapter_type": "cpu", "version": "Mesa 26"}),
    ({"backend_type": "BrowserWebGPU"}, {"source": "wgpu:browserwebgpu", "driver": None, "name": None, "adapter_type": "other", "version": None}),
    *((APPLE | {"adapter_type": kind}, {"source": "wgpu:metal", "driver": None, "name": "Apple M3", "version": None, "vendor": "Apple M3", **more})
      for kind, more in (("DiscreteGPU", {"adapter_type": "discrete"}),
                         ("IntegratedGPU", {"adapter_type": "integrated", "memory.unified": True}))),
])  # fmt: skip
def test_an_adapter_of_webgpu_tells_its_name_type_and_ids(info, record):
    assert libraries.adapter_record(7, SimpleNamespace(info=info)) == {"ordinal": 7, **record}


def test_a_backend_that_breaks_costs_its_own_devices_alone(monkeypatch):
    def broken(device_id):
        raise OSError("gone")

    loaded = {"bad": SimpleNamespace(telemetry=broken, users=broken),
              "good": SimpleNamespace(telemetry=lambda device_id: dict, users=lambda device_id: {"computing": 1})}  # fmt: skip
    monkeypatch.setattr(monitor_child.backends, "load", loaded.__getitem__)
    targets = [MonitorTarget("bad:0"), MonitorTarget("good:0")]
    sources, absent = monitor_child.sources(targets)
    assert (list(sources), absent) == (["good:0"], {"bad:0": "OSError: gone"})
    assert [users.computing for users in monitor_child.users(targets).values()] == [1]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.gpu_readers(targets, absent) == {}
    assert ["nvidia-ml-py" in why for why in absent.values()] == [True, True]


# ---------------------------------------------------------------- NVML for machines as people show them with nvidia-smi -q
MACHINES = json.loads((Path(__file__).parent / "nvidia-smi.json").read_text())["machines"]
MIB = 1 << 20
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
COMPUTE_MODES = {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}
REASONS = {"idle": 0x1, "applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20,
           "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80}  # fmt: skip
VIRTUAL = {"None": 0, "Pass-Through": 1, "VGPU": 2, "Host VGPU": 3}


def library(machine):
    """Answers as the library would; a handle is a GPU or an instance of the file."""

    def memory(handle, version=None):
        sizes = {key: value * MIB for key, value in said(handle["memory"]).items() if value is not None}
        if version is None and machine["memory_v2"]:  # the older call counts what is reserved as used
            sizes["used"] += sizes.pop("reserved")
        return SimpleNamespace(**sizes)

    def instance(handle, index):
        if index >= len(handle["instances"]):
            raise Nvml.NVMLError(NOT_FOUND)
        return handle["instances"][index]

    def pcie(field):
        return lambda handle: said(handle["pcie"])[field]

    def field(name):
        return lambda handle: handle[name]

    gpus = machine["gpus"]
    answers = {
        "nvmlSystemGetDriverVersion": machine["driver"], "nvmlSystemGetCudaDriverVersion_v2": machine["cuda"], "nvmlDeviceGetCount": len(gpus),
        "nvmlDeviceGetHandleByIndex": gpus.__getitem__, "nvmlDeviceGetUUID": field("uuid"), "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetName": lambda handle: handle["name"].encode(), "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=handle["bus_id"].encode(), pciDeviceId=int(handle["pci_id"], 16)),
        "nvmlDeviceGetEccMode": lambda handle: [int(said(handle["ecc"]))] * 2,
        "nvmlDeviceGetMigMode": lambda handle: [int(said(handle["mig"]) == "Enabled")] * 2,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7 if handle["mig"] else 0,
        "nvmlDeviceGetAttributes": lambda handle: SimpleNamespace(multiprocessorCount=handle["units"]),
        "nvmlDeviceGetCudaComputeCapability": field("compute_capability"),
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {Nvml.NVML_CLOCK_SM: handle["max_sm"]}[clock],
        "nvmlDeviceGetMaxPcieLinkGeneration": pcie("gen_max"), "nvmlDeviceGetCurrPcieLinkGeneration": pcie("gen_now"),
        "nvmlDeviceGetMaxPcieLinkWidth": pcie("width_max"), "nvmlDeviceGetCurrPcieLinkWidth": pcie("width_now"),
        "nvmlDeviceGetPowerManagementLimit": lambda handle: int(said(handle["limit"]) * 1000),
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: int(said(handle["default_limit"]) * 1000),
        "nvmlDeviceGetComputeMode": lambda handle: COMPUTE_MODES[handle["compute_mode"]],
        "nvmlDeviceGetDisplayActive": lambda handle: int(handle["display_active"]),
        "nvmlDeviceGetVirtualizationMode": lambda handle: VIRTUAL[handle["virtualization"]],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: sum(REASONS[name] for name in said(handle["reasons"]))}  # fmt: skip
    made = Nvml(**answers)
    if not machine["memory_v2"]:
        made.nvmlMemory_v2 = None
    return made


def said(value):
    """What the file has; N/A and a refusal as NVML words them."""
    if value is None:
        raise Nvml.NVMLError(NOT_SUPPORTED)
    if value == "permission":
        raise Nvml.NVMLError(NO_PERMISSION)
    return value


def machine_of(name):
    return detect.inspect(records=last_answer(nvml.probe_nvml, library(MACHINES[name]))["records"])


@pytest.mark.parametrize("name", MACHINES)
def test_the_document_tells_what_nvidia_smi_tells(name):
    wanted, machine = MACHINES[name], machine_of(name)
    (gpu,) = machine.gpus
    given = wanted["gpus"][0]
    own = {"id": given["uuid"], "name": given["name"], "driver.version": wanted["driver"]}
    check(gpu, own | wanted["reported"])
    parts = [[part.units.value, part.memory_bytes.value] for part in gpu.compute.partitions]
    assert (parts, gpu.power.throttle) == (wanted.get("partitions", []), wanted.get("throttle", []))
    assert machine.recommendation.mode == wanted["mode"]
    assert set(wanted.get("notes", [])) <= {reason.code for reason in machine.recommendation.reasons}


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0"), (12040, "12.4")])
def test_the_driver_tells_the_newest_cuda_that_it_serves(number, version):
    records = last_answer(nvml.probe_nvml, library({**MACHINES["h100"], "cuda": number}))["records"]
    check(detect.inspect(records=records).gpus[0], {"driver.cuda": version, "driver.cuda.source": "nvml"})


def test_unified_memory_needs_cudas_word_or_a_refused_size_and_the_chip():
    """NotSupported alone may be a discrete card; the chip's id alone may be a card that tells its size."""
    card = {**MACHINES["h100"], "gpus": [{**MACHINES["h100"]["gpus"][0], "memory": None}]}
    (gpu,) = detect.inspect(records=last_answer(nvml.probe_nvml, library(card))["records"]).gpus
    assert (gpu.memory.unified.value, gpu.memory.usable_bytes.status) == (None, "unsupported")
    assert machine_of("gb10").gpus[0].memory.unified.value is True
    (listed,) = last_answer(nvml.probe_nvml, library(MACHINES["gb10"]))["records"]
    cuda = {"source": "cuda", "uuid": listed["uuid"], "adapter_type": "integrated", "memory_bytes": 128 << 30,
            "memory.unified": {"value": True, "status": "ok"}}  # fmt: skip
    (gpu,) = detect.inspect(records=[listed | {"device_id": "ffff"}, cuda]).gpus
    check(gpu, {"memory.unified": True, "kind": "integrated", "memory.dedicated_bytes.value": None})


def test_a_unified_gpu_may_use_the_usable_ram(plant):
    """The whole way on a machine: firmware names the chip, NVML refuses, usable is the usable RAM."""
    tree = HOST | {"/sys/class/dmi/id/product_name": "NVIDIA DGX Spark"}
    tree |= pci("000f:01:00.0", "10de", "2e12", "nvidia", pci_class="0302")
    records = last_answer(nvml.probe_nvml, library(MACHINES["gb10"]))["records"]
    machine = detect.inspect(sysroot=plant(tree), extra_records=records)
    (gpu,) = machine.gpus
    assert gpu.memory.usable_bytes.value == machine.memory.usable_bytes.value == 6 << 30
    assert (gpu.memory.dedicated_bytes.value, gpu.kind.value) == (None, "integrated")
