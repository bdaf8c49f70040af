"""What drivers, registries and libraries answer, in their own form, and the facts that probes make of it."""

import ctypes
import struct
from types import SimpleNamespace

import pytest

from gpubench import detect
from gpubench.detect.probes import ProbeFailure, libraries, nvml
from gpubench.measure.monitor import MonitorTarget
from tests.detect.recorded import last_answer
from tests.detect.trees import GIB, HOST, check, pci
from tests.nvml import Nvml
from tests.raising import raised

SIZE = "memory.dedicated_bytes"
ERRORS = {3: "unsupported", 13: "unsupported", 25: "unsupported", 4: "permission", 18: "mismatch", 10: "timeout", 9: "absent",
          12: "absent", 6: "absent", 15: "crashed", 16: "crashed", 999: "invalid"}  # fmt: skip
REMEDIES = {9: "kernel module is not loaded", 12: "libnvidia-ml is not installed", 18: "reboot"}


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
        ((16 * GIB).to_bytes(8, "little"), BOTH), (0, VERSION), ("16 GB", VERSION))),
    *(([{"MatchingDeviceId": text}], facts) for text, facts in (
        ("pci\\ven_1002&dev_73bf", BOTH), ("PCI\\VEN_1002&DEV_744C", {}), ("ROOT\\BasicDisplay", {}), (None, {}))),
    ([{}, {"HardwareInformation.qwMemorySize": 8 * GIB}, {}], VERSION),  # entries of one model that differ
])  # fmt: skip
def test_windows_registry_describes_the_adapters_that_a_library_lists(changes, facts, monkeypatch):
    monkeypatch.setattr(libraries, "_adapters", lambda: iter(ENTRY | change for change in changes))
    stated = libraries.read_registry().get((0x1002, 0x73BF), {})
    assert {path: fact["value"] for path, fact in stated.items()} == facts
    assert {fact["source"] for fact in stated.values()} <= {"registry"}


@pytest.mark.parametrize("code", ERRORS)
def test_nvml_that_cannot_start_says_why(code):
    failure = raised(ProbeFailure, last_answer, nvml.probe_nvml, Nvml(nvmlInit=Nvml.NVMLError(code)))
    assert failure.status == ERRORS[code]
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
    """A GTX 1080, and a compiler that serves what `served` says."""

    __version__ = "14.0"

    def __init__(self, served):
        table = {"pciDomainID": 0, "pciBusID": 1, "pciDeviceID": 0, "name": b"NVIDIA GeForce GTX 1080", "integrated": 0,
                 "totalGlobalMem": 8 << 30, "multiProcessorCount": 20, "major": 6, "minor": 1}  # fmt: skip
        runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda _n: table,
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


def test_an_error_of_cuda_as_a_whole_has_a_remedy():
    cupy = Cupy(list)
    cupy.cuda.runtime.CUDARuntimeError = Refused
    cupy.cuda.runtime.getDeviceCount = lambda: (_ for _ in ()).throw(Refused("system not yet initialized"))
    failure = raised(ProbeFailure, last_answer, libraries.probe_cuda, cupy)
    assert (failure.status, "nvidia-fabricmanager" in failure.hint) == ("mismatch", True)


def refuse():
    raise AttributeError("this CUDA has no such call")


@pytest.mark.parametrize("served", [lambda: [50, 60, 61], list, refuse])
def test_nothing_is_too_old_without_a_source_that_says_so(served):
    (record,) = last_answer(libraries.probe_cuda, Cupy(served))["records"]
    assert "why_not" not in record
