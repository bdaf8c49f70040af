"""A row a machine: files of its GPUs in, with what APIs list beside them; devices, facts and advice out."""

import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import detect
from gpubench.detect import gpu as access
from gpubench.detect import pci as names
from gpubench.detect.facts import Root, make_fact
from gpubench.detect.gpu import parse_visible
from gpubench.result.machine import Api, Compute, Gpu, Partition
from tests.detect.trees import DRM, GIB, HOST, KFD, amdgpu, bank, check, kfd_node, pci
from tests.examples import CHARACTERS
from tests.held import hold

ONE, CODES = {"gpu_count": 1}, "recommendation.reasons.*.code"
REJECTED = "recommendation.rejected.*.code"
SIZE, KIND = "gpus.0.memory.dedicated_bytes", "gpus.0.kind"
TILE = "tile0__physical_vram_size_bytes"
SUSPENDED = {"power__runtime_status": "suspended"}
XE = ("0000:03:00.0", "8086", "e20b", "xe")
I915 = ("0000:03:00.0", "8086", "56a0", "i915")
CARD1 = {f"{DRM}/card1/device": "-> ../../../bus/pci/devices/0000:03:00.0"}
VBIOS = "0000:01:00.0"
NVML = {"source": "nvml", "bdf": VBIOS, "vendor_id": "10de", "device_id": "2335", "memory_bytes": 141 * GIB}
RTX = {"source": "nvml", "ordinal": 0, "bdf": "00000000:01:00.0", "uuid": "GPU-00000000-0000-0000-0000-000000000001",
       "vendor_id": "10de", "device_id": "2684", "name": "NVIDIA GeForce RTX 4090", "memory_bytes": 24 * GIB}  # fmt: skip
PLATFORM = "/sys/bus/platform/devices"
WSL = {"/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x) #1 SMP"}
LINKED = {"pci_class": "0302", "numa_node": "1", "max_link_width": "16", "power__runtime_status": "active"}
ON_PCI = {
    **{f"an Xe card sums its tiles of 8 GiB and {second}": (
        HOST | pci(*XE, **{TILE: str(8 * GIB), "tile1__physical_vram_size_bytes": second}),
        {**ONE, KIND: "discrete", SIZE: size, "warnings": []}) for second, size in ((str(8 * GIB), 16 * GIB), ("8G", "invalid"), (str(1 << 60), "invalid"))},
    "i915 in the folder of cards": (HOST | pci(*I915) | CARD1 | {f"{DRM}/card1/lmem_total_bytes": str(16 * GIB), f"{DRM}/card1-DP-1/status": "disconnected", f"{DRM}/card1-DP-2/status": "connected"},
        {**ONE, SIZE: 16 * GIB, "gpus.0.display_attached": True}),
    "i915 below the device": (HOST | pci(*I915, drm__card1__lmem_total_bytes=str(16 * GIB)), {**ONE, SIZE: 16 * GIB}),
    "mainline i915 tells no size": (HOST | pci(*I915), {**ONE, SIZE: "absent", CODES: ["VRAM_UNKNOWN"]}),
    "an APU has two views of one RAM": (
        HOST | pci("0000:c5:00.0", "1002", "1586", "amdgpu", **amdgpu(GIB, 124 * GIB)),
        {**ONE, KIND: "integrated", "gpus.0.memory.unified": True, SIZE: GIB, "gpus.0.memory.shared_limit_bytes": 124 * GIB,
         "gpus.0.memory.usable_bytes": 6 * GIB}),  # all usable RAM: the window is larger
    "an APU whose window its kernel driver takes for memory": (
        HOST | pci("0000:c5:00.0", "1002", "1586", "amdgpu", **amdgpu(GIB, 124 * GIB)) | bank(1, 124 * GIB)
        | kfd_node(1, device_id=0x1586, simd_count=160, location_id=0xC500, domain=0),
        {**ONE, SIZE: GIB, f"{SIZE}.status": "ok", "gpus.0.memory.usable_bytes": 6 * GIB, CODES: ["VRAM_GE_4GIB"]}),
    **{f"an APU with a spoiled {name}": (
        HOST | pci("0000:c5:00.0", "1002", "1586", "amdgpu", **amdgpu(GIB, 124 * GIB, **{name: "?"})) | bank(1, 124 * GIB)
        | kfd_node(1, device_id=0x1586, location_id=0xC500, domain=0), {SIZE: size, "gpus.0.memory.usable_bytes": "invalid"})
       for name, size in (("mem_info_gtt_total", GIB), ("mem_info_vram_total", "invalid"))},  # the larger of both is unknown
    "a small card beside a large window": (
        HOST | pci("0000:03:00.0", "1002", "67df", "amdgpu", **amdgpu(4 * GIB, 32 * GIB)),
        {**ONE, KIND: "discrete", "gpus.0.memory.usable_bytes": 4 * GIB, "gpus.0.memory.visible_bytes": 256 << 20,
         "recommendation.mode": "gpu"}),
    **{f"an AMD GPU that no file but its id describes: {device}": (  # kernels before 6.3 write `unknown` for every APU
        HOST | pci("0000:03:00.0", "1002", device, "amdgpu", **amdgpu(vram * GIB, 8 * GIB, mem_info_vram_vendor="unknown")),
        {**ONE, KIND: kind, "gpus.0.memory.usable_bytes": usable * GIB})
       for device, vram, kind, usable in (("1638", 1, "integrated", 6), ("1586", 96, "integrated", 96), ("74a0", 128, "integrated", 128), ("67df", 2, "discrete", 2),
           ("9999", 16, "integrated", 16), ("74a1", 192, "discrete", 192))},
    **{f"a product that its id does not name, with {files}": (
        HOST | pci("0000:03:00.0", "1002", "7fff", "amdgpu", **amdgpu(4 * GIB, 32 * GIB, **files)), {**ONE, KIND: kind})
       for files, kind in (({"board_info": "type : cem"}, "discrete"), ({"mem_info_vram_vendor": "unknown"}, "integrated"))},
    "a sleeping card is asked for totals": (
        HOST | pci("0000:03:00.0", "1002", "73bf", "amdgpu", **SUSPENDED, **amdgpu(
            8 * GIB, 8 * GIB, current_link_speed="16.0 GT/s PCIe", unique_id="0123456789abcdef", pp_dpm_sclk="0: 500Mhz *")),
        {**ONE, SIZE: 8 * GIB, "gpus.0.power.state": "suspended", "gpus.0.memory.free_bytes": "not_probed",
         "gpus.0.link.gen_now": "not_probed", "gpus.0.uuid": "not_probed", "gpus.0.compute.now_hz": "not_probed", CODES: ["VRAM_GE_4GIB", "WILL_WAKE"]}),
    **{f"steps of the clock {text!r}": (
        HOST | pci("0000:03:00.0", "1002", "744c", "amdgpu", pp_dpm_sclk=text), {"gpus.0.compute.now_hz": now, "gpus.0.compute.max_hz": most})
       for text, now, most in (("0: 500Mhz\n1: 900Mhz *\n10: 2371Mhz", 900_000_000, 2_371_000_000), ("0: 500Mhz *\n1: much", "invalid", "invalid"),
                               ("0: 500Mhz\n1: 900Mhz", "absent", 900_000_000), ("", "absent", "absent"))},
    "a card of unknown size that falls asleep": (HOST | pci(VBIOS, "10de", "2684", "nvidia", power__runtime_status="suspending"), {**ONE, REJECTED: ["GPU_ASLEEP"]}),
    "a sleeping card of Intel": (
        HOST | pci("0000:03:00.0", "8086", "56a0", "xe", **SUSPENDED, **{TILE: str(8 * GIB)}),
        {KIND: "discrete", SIZE: "not_probed", "gpus.0.link.gen_max": "not_probed", REJECTED: ["GPU_ASLEEP"]}),
    "a laptop uses neither": (
        HOST | pci("0000:00:02.0", "8086", "46a6", "i915") | pci(VBIOS, "10de", "2520", "nvidia", max_link_speed="16.0 GT/s PCIe", **SUSPENDED)
        | {f"/proc/driver/nvidia/gpus/{VBIOS}/information": "Model: X\nGPU UUID: GPU-00000000-0000-0000-0000-000000000001"},  # reading this wakes it
        {REJECTED: ["INTEGRATED_UNMEASURED", "GPU_ASLEEP"], "recommendation.rejected.*.device_id": ["pci:0000:00:02.0", f"pci:{VBIOS}"],
         "recommendation.mode": "cpu", "gpus.1.name_precision": "family"}),
    **{f"the kind of NVIDIA's {device} in {product}": (
        HOST | {"/sys/class/dmi/id/product_name": product} | pci(VBIOS, "10de", device, "nvidia"), {KIND: kind})
       for device, product, kind in (("2335", "a server", "discrete"), ("2e12", "a server", "not_probed"), ("2335", "NVIDIA DGX Spark", "not_probed"),
                                     ("2b00", "a server", "not_probed"), ("2e03", "a server", "not_probed"), ("2b85", "a server", "discrete"))},
    # The firmware of a board that has both names the chip; a container does not see it.
    **{f"a chip's own GPU beside {device}": (
        HOST | pci(VBIOS, "10de", device, "nvidia") | {f"{PLATFORM}/17000000.gpu/uevent": "DRIVER=gk20a", "/proc/device-tree/model": "NVIDIA IGX Orin"},
        {"gpu_count": count, KIND: kind}, [NVML | {"device_id": device}])
       for device, count, kind in (("26b1", 2, "discrete"), ("2b00", 1, "integrated"))},
    **{f"passed through by {driver}, and without a driver": (
        HOST | pci(VBIOS, "10de", "2684", driver) | pci("0000:02:00.0", "10de", "2684", other),
        {"gpus.*.usable": [False, False], "gpus.*.why_not": [["PASSED_THROUGH"], ["NO_DRIVER"]]})
       for driver, other in (("vfio-pci", None), ("nvgrace-gpu-vfio-pci", "nvidiafb"), ("pci-stub", None), ("pciback", None))},
    **{f"an adapter that only draws: {vendor}": (
        HOST | pci("0000:05:00.0", vendor, device), {"gpu_count": 0, "display_adapters.*.role": [role], CODES: ["DISPLAY_ONLY"]})
       for vendor, device, role in (("1a03", "2000", "bmc"), ("102b", "0538", "bmc"), ("1af4", "1050", "virtual"),
                                    ("1414", "5353", "virtual"), ("10ec", "0001", "other"), ("1a03", "2001", "other"),
                                    ("1b36", "0100", "virtual"), ("1234", "1111", "virtual"), ("15ad", "0405", "virtual"), ("80ee", "beef", "virtual"),
                                    ("1002", "515e", "bmc"), ("19e5", "1711", "bmc"), ("1ab8", "4005", "virtual"), ("1013", "00b8", "virtual"))},
    "accelerators, and one that a GPU driver has": (
        HOST | pci("0000:05:00.0", "1bcf", "001c", "ve_drv", pci_class="0b40") | pci("0000:06:00.0", "1002", "74a1", "amdgpu", pci_class="1200")
        | pci("0000:07:00.0", "1da3", "1020", "habanalabs", pci_class="1200"),
        {"accelerators.*.id": ["pci:0000:05:00.0", "pci:0000:07:00.0"], "gpus.*.bdf": ["0000:06:00.0"]}),
    "NPUs of makers of GPUs": (
        HOST | pci("0000:00:0b.0", "8086", "7d1d", "intel_vpu", pci_class="1200") | pci("0000:c5:00.1", "1002", "17f0", "amdxdna", pci_class="1180"),
        {"gpu_count": 0, "accelerators.*.id": ["pci:0000:00:0b.0"]}),
    "a second function": (
        HOST | pci("0000:00:02.0", "8086", "0046", "i915") | pci("0000:00:02.1", "8086", "0047", pci_class="0380"),
        {**ONE, KIND: "integrated", "display_adapters": []}),
    "a card that a hypervisor made a second function": (HOST | pci("0000:05:00.1", "8086", "56c0", "i915", pci_class="0380"), ONE),
    "two dies of one card, and its audio": (
        HOST | pci("0000:84:00.0", "10de", "102d", "nvidia", pci_class="0302") | pci("0000:85:00.0", "10de", "102d", "nvidia", pci_class="0302")
        | pci("0000:84:00.1", "10de", "0fb0", "snd_hda_intel", pci_class="0403"), {"gpus.*.id": ["pci:0000:84:00.0", "pci:0000:85:00.0"]}),
    "a minor number without end": (
        HOST | pci(VBIOS, "10de", "2330", "nvidia") | {f"/proc/driver/nvidia/gpus/{VBIOS}/information": f"Device Minor: {'9' * 5000}\nGPU Excluded: No"}, {**ONE, "gpus.0.why_not": []}),
    "a spoiled uevent tells no driver": (HOST | pci(VBIOS, "10de", "2684", uevent="?"), {"gpus.0.driver.name": "invalid", "gpus.0.usable": "not_probed"}),
    **{f"a card that the driver leaves out: {key}": (
        HOST | pci(VBIOS, "10de", "2684", "nvidia") | {f"/proc/driver/nvidia/gpus/{VBIOS}/information": f"{key}:\t Yes"},
        {"gpus.0.why_not": ["EXCLUDED"], "gpus.0.usable.source": "/proc/driver/nvidia/gpus/*/information"}) for key in ("GPU Excluded", "Blacklisted")},
    **{f"ids by the modalias in {name}": (
        HOST | {f"/sys/bus/pci/devices/{VBIOS}/{name}": f"{key}pci:v000010DEd00002684svFFFFFFFFsd000016F3bc03sc02i00"},
        {**ONE, "gpus.0.vendor_id": "10de", "gpus.0.device_id": "2684", "gpus.0.pci_class": "0302", "gpus.0.subvendor_id": "absent", "gpus.0.subdevice_id": "16f3"})
       for name, key in (("modalias", ""), ("uevent", "MODALIAS="))},
    "a PCI card whose address cannot be read": (HOST | {f"{DRM}/card0/device/uevent": "DRIVER=i915", f"{DRM}/card0/device/vendor": "0x8086"}, {**ONE, "gpus.0.vendor": "intel"}),
    "a PCI domain of eight digits": (HOST | pci("10000:e1:00.0", "10de", "2330", "nvidia", pci_class="0302"), {"gpus.*.bdf": ["10000:e1:00.0"]}),
    "WSL alone": (HOST | WSL | pci("5582:00:00.0", "1414", "008e", "dxgkrnl", pci_class="0302"), {"platform.wsl": True, "gpu_count": 0, "display_adapters.*.role": ["virtual"]}),
    "WSL with NVML": (
        HOST | WSL | pci("5582:00:00.0", "1414", "008e", "dxgkrnl", pci_class="0302"),
        {**ONE, "gpus.*.bdf": [VBIOS], KIND: "discrete", "gpus.0.memory.usable_bytes": 24 * GIB, "display_adapters.*.role": ["virtual"],
         "recommendation.mode": "gpu"}, [RTX]),
    **{f"NVML beside a spoiled {name}": (
        HOST | pci(VBIOS, "10de", "2335", **LINKED) | {f"/sys/bus/pci/devices/{VBIOS}/{name}": "?"},
        {**ONE, "gpus.0.numa_node": 1, "gpus.0.link.width_max": 16, "gpus.0.power.state": "active", SIZE: 141 * GIB}, [NVML])
       for name in ("class", "vendor")},
    "a spoiled class hides no card of a GPU driver": (
        HOST | pci("0000:03:00.0", "1002", "744c", "amdgpu", mem_info_vram_total=str(8 * GIB)) | pci("0000:04:00.0", "8086", "1533", "igb", pci_class="0200")
        | {f"/sys/bus/pci/devices/0000:0{n}:00.0/class": "?" for n in (3, 4)},
        {"gpus.*.bdf": ["0000:03:00.0"], "gpus.0.pci_class": "invalid", SIZE: 8 * GIB}),
    **{f"a link of {text}": (
        HOST | pci(VBIOS, "10de", "2330", "nvidia", max_link_speed=text, max_link_width="0"),
        {"gpus.0.link.gen_max": gen, "gpus.0.link.width_max": "absent"})
       for text, gen in (("2.5 GT/s PCIe", 1), ("5 GT/s", 2), ("8.0 GT/s PCIe", 3), ("16 GT/s", 4), ("32.0 GT/s PCIe", 5),
                         ("64.0 GT/s PCIe", 6), ("Unknown", "absent"), ("Unknown speed", "absent"))},
    **{f"a card with {files}": (HOST | pci(VBIOS, "10de", "2330", "nvidia", **files), {f"gpus.0.{path}": told}) for files, path, told in (
        ({"local_cpulist": "0-1"}, "local_cpus", "0-1"), ({"local_cpus": "3"}, "local_cpus", "0-1"), ({"local_cpulist": "?"}, "local_cpus", "invalid"),
        ({"local_cpulist": "?", "local_cpus": "2"}, "local_cpus", "1"), ({"local_cpulist": "", "local_cpus": "0"}, "local_cpus", "absent"),
        ({"numa_node": "0"}, "numa_node", 0), ({"numa_node": "-1"}, "numa_node", "absent"), ({"numa_node": "-2"}, "numa_node", "invalid"),
        *(({"max_link_width": str(n)}, "link.width_max", n) for n in (1, 2, 4, 8, 12, 16, 32)), ({"revision": "0xA1"}, "revision", "a1"),
        *(({"max_link_width": text}, "link.width_max", told) for text, told in (("0", "absent"), ("63", "absent"), ("255", "absent"), ("3", "invalid"), ("256", "invalid"))))},
    "a BMC whose class no file tells": (
        {f"{DRM}/card0/device/uevent": "DRIVER=ast\nPCI_ID=1A03:2000\nPCI_SLOT_NAME=0000:04:00.0"},
        {"gpu_count": 0, "display_adapters.*.role": ["bmc"], "display_adapters.*.bdf": ["0000:04:00.0"]}),
    **{f"a driver of two parts, with {node}": (
        HOST | pci(VBIOS, "10de", "2684", "NovaCore", uevent=f"PCI_SLOT_NAME={VBIOS}", part__uevent="MODALIAS=auxiliary:nova_core.nova-drm")
        | {f"{DRM}/{node}/device": f"-> ../../../bus/pci/devices/{VBIOS}/part"}, {"gpus.*.id": [f"pci:{VBIOS}"]}) for node in ("card0", "renderD128")},
    "frame buffers of the firmware": ({f"{DRM}/card{n}/device/uevent": f"DRIVER={name}" for n, name in enumerate(
            ("simple-framebuffer", "virtio_gpu", "vkms", "bochs-drm", "hyperv_drm", "rockchip-drm"))}, {"gpu_count": 0})}  # fmt: skip
# What AMD's kernel driver tells: its nodes, and their memory.
PARTITIONS = {path: text for n in range(1, 5)
              for path, text in (kfd_node(n, unique_id=77 + (n > 2),
                                          location_id=0x0500 + (n > 2) * 0x2200 + (n + 1) % 2)
                                 | bank(n, 24 * GIB)).items()}  # fmt: skip
OF_KFD = {
    "partitions of one GPU": (
        kfd_node(0, cpu_cores_count=96, simd_count=0) | kfd_node(1, unique_id=77) | kfd_node(2, unique_id=77, location_id=0x0501)
        | bank(1, 24 * GIB) | bank(2, 24 * GIB),
        {**ONE, "gpus.0.bdf": "0001:05:00.0", "gpus.0.compute.units": 76, "gpus.0.compute.arch": "gfx942", "gpus.0.uuid": "GPU-000000000000004d",
         SIZE: 48 * GIB, "gpus.0.memory.usable_bytes": 24 * GIB, "gpus.0.compute.partitions.*.units": [38, 38]}),
    "the largest of unlike partitions": (
        kfd_node(1, unique_id=77) | kfd_node(2, unique_id=77, location_id=0x0501) | bank(1, 8 * GIB) | bank(2, 24 * GIB), {SIZE: 32 * GIB, "gpus.0.memory.usable_bytes": 24 * GIB}),
    "an API that lists each partition": (
        PARTITIONS, {"gpu_count": 2, SIZE: 48 * GIB, f"{SIZE}.status": "ok", "gpus.0.apis": {"torch:rocm": Api(ordinal=0)}},
        [{"source": "torch:rocm", "ordinal": n, "bdf": "0001:05:00.0", "vendor_id": "1002", "memory_bytes": 24 * GIB} for n in (0, 1)]),
    **{f"ids that are the partitions' own at {places}": (
        HOST | pci("0000:05:00.0", "1002", "74a1", "amdgpu", pci_class="1200", unique_id="12ab")
        | {path: text for n, place in enumerate(places) for path, text in kfd_node(n, unique_id=n + 1, location_id=place, domain=0).items()},
        {**ONE, "gpus.0.uuid": uuid, "gpus.0.compute.units": 38 * len(places), "gpus.0.compute.partitions.*.id": parts})
       for places, uuid, parts in (((0x500,), "GPU-0000000000000001", []), ((0x500, 0x501), "GPU-00000000000012ab", ["kfd:0", "kfd:1"]),
                                   ((0x500, 0x10000500), "GPU-00000000000012ab", ["kfd:0", "kfd:1"]))},
    "two GPUs of one address": (kfd_node(1, unique_id=77) | kfd_node(2, unique_id=78), {"gpus.*.compute.units": [38, 38]}),
    **{f"a bank with {text!r}": (kfd_node(1, unique_id=77) | bank(1, GIB) | {f"{KFD}/1/mem_banks/1/properties": text}, {SIZE: size})
       for text, size in (("heap_type 2\nsize_in_bytes 5\nwidth 1", GIB + 5), ("heap_type 4\nsize_in_bytes 5", GIB), ("heap_type 1", "invalid"),
                          ("size_in_bytes 5", "invalid"), ("", "invalid"), ("heap_type 1\nsize_in_bytes 5 6", "invalid"), ("heap_type 1\nsize_in_bytes 0", GIB), ("heap_type 1\nsize_in_bytes -1", "invalid"), (f"heap_type 1\nsize_in_bytes {1 << 60}", "invalid"))},
    "a node that does not tell its units": ({f"{KFD}/1/properties": "simd_count 8"}, {**ONE, "gpus.0.bdf": "0000:00:00.0", "gpus.0.compute.units": "invalid"}),
    "a node of CPUs alone": ({f"{KFD}/0/properties": "cpu_cores_count 8", f"{KFD}/x/a": "", f"{KFD}/²/a": ""}, {"gpu_count": 0}),
    "no bank holds anything": (kfd_node(1, unique_id=77) | bank(1, 0), {SIZE: "absent"}),
    **{f"the kind of {table} by its node alone": (kfd_node(0, **table), {**ONE, KIND: kind, "gpus.0.memory.unified": kind == "integrated"})
       for table, kind in (({"cpu_cores_count": 16}, "integrated"), ({"device_id": 0x15BF}, "integrated"), ({"device_id": 0x74A0}, "integrated"), ({}, "discrete"))},
    "a spoiled node is still a GPU": (
        kfd_node(1, unique_id=77) | {f"{KFD}/2/gpu_id": "9028", f"{KFD}/2/properties": "?"} | bank(2, 16 * GIB),
        {"gpu_count": 2, "gpus.*.vendor": ["amd", "amd"], "gpus.1.compute.units": "invalid", "gpus.1.memory.dedicated_bytes": 16 * GIB}),
    "a spoiled partition between two of one GPU": (
        {path: text for n in (1, 2, 3) for path, text in (kfd_node(n, unique_id=77, location_id=0x0500 + n - 1) | bank(n, 24 * GIB)).items()}
        | {f"{KFD}/2/properties": "?", f"{KFD}/2/gpu_id": "9028"}, {**ONE, "gpus.0.compute.units": "invalid", SIZE: 72 * GIB}),
    **{f"partition {spoiled} of four is spoiled": (
        PARTITIONS | {f"{KFD}/{spoiled}/properties": "?", f"{KFD}/{spoiled}/gpu_id": "9028"},
        {"gpus.*.compute.units": ["invalid", 76] if spoiled < 3 else [76, "invalid"], "gpus.*.memory.dedicated_bytes": [48 * GIB] * 2,
         f"gpus.{int(spoiled > 2)}.compute.units.source": f"{KFD}/{spoiled}/properties"}) for spoiled in range(1, 5)}}  # fmt: skip
BARE, GUEST = "processor : 0\nflags : lm", "processor : 0\nflags : lm hypervisor"
LMEM = {"drm__card1__lmem_total_bytes": str(16 * GIB)}
# The kind of a GPU of Intel is not read off its address.
OF_INTEL = {
    f"{device} at {bdf} by {driver}, {len(files)} files, {cpuinfo[22:]}": (
        HOST | {"/proc/cpuinfo": cpuinfo} | pci(bdf, "8086", device, driver, **files),
        {**ONE, KIND: kind, "gpus.0.memory.unified": "absent" if kind == "absent" else kind == "integrated"})
    for bdf, device, driver, files, cpuinfo, kind in (
        ("0000:06:10.0", "4680", "i915", {}, GUEST, "integrated"),  # given to a guest
        ("0000:00:10.0", "a780", "i915", {}, GUEST, "integrated"),
        ("0000:00:02.0", "56a0", "xe", {}, GUEST, "discrete"),  # a card at an iGPU's address
        ("0000:00:02.0", "56a0", "vfio-pci", {}, BARE, "discrete"),
        ("0000:00:02.0", "0be1", "gma500", {}, BARE, "integrated"),
        ("0000:00:02.0", "ee00", "xe", {}, BARE, "integrated"),  # newer than any list
        ("0000:00:02.0", "ee00", "xe", {}, GUEST, "absent"),
        ("0000:03:00.0", "ee00", "xe", {}, BARE, "absent"),
        ("0000:03:00.0", "ee00", "i915", LMEM, BARE, "discrete"), ("0000:00:02.0", "ee00", "i915", LMEM, BARE, "discrete"),
        ("0000:03:00.0", "ee00", "xe", {TILE: str(GIB)}, BARE, "discrete"), ("0000:03:00.0", "e20b", "xe", SUSPENDED, BARE, "discrete"))}  # fmt: skip

# ---------------------------------------------------------------- GPUs on no PCI bus, and of no known maker
SOC = "/sys/devices/platform/soc"


def card(number, device, driver, *, render=None, compatible="", place=SOC):
    """The nodes of one DRM device, and its own folder."""
    folder = f"{place}/{device}"
    tree = {f"{folder}/uevent": f"DRIVER={driver}\nOF_FULLNAME=/soc/{device}\nOF_COMPATIBLE_0={compatible}",
            f"{PLATFORM}/{device}": f"-> ../../..{folder.removeprefix('/sys')}"}  # fmt: skip
    for name in [f"card{number}"] + ([f"renderD{render}"] if render else []):
        tree[f"{folder}/drm/{name}/device"] = "-> ../../"
        tree[f"{DRM}/{name}"] = f"-> ../..{folder.removeprefix('/sys')}/drm/{name}"
    return tree


def device(name, driver=None, compatible=""):
    """A platform device that has no card."""
    lines = [f"DRIVER={driver}"] if driver else []
    lines += ["OF_FULLNAME=/soc/gpu", f"OF_COMPATIBLE_0={compatible}"]
    return {f"{SOC}/{name}/uevent": "\n".join(lines),
            f"{PLATFORM}/{name}": f"-> ../../..{SOC.removeprefix('/sys')}/{name}"}  # fmt: skip


ADRENO = device("3d00000.gpu", "adreno", "qcom,adreno-43050c01")
PANTHOR = card(1, "fb000000.gpu", "panthor", render=128)
OF_THE_TREE = {
    "msm_dpu": card(0, "ae01000.display-controller", "msm_dpu"),
    "msm_mdp, with its render node": card(0, "900000.mdss", "msm_mdp", render=128), "mdp4": card(0, "5100000.mdp", "mdp4"),
    "card and GPU of an Adreno": card(0, "ae01000.display-controller", "msm_dpu", render=128) | ADRENO,
    "Adreno without a card": ADRENO, "kgsl": device("3d00000.qcom,kgsl-3d0", "kgsl-3d"),
    "nvgpu without a card": device("17000000.ga10b", "gk20a", "nvidia,ga10b"),
    "nvgpu beside its display": device("17000000.gpu", "nvgpu") | card(0, "13800000.display", "nv_platform"),
    "host1x": card(0, "drm", "drm", place="/sys/devices/platform/50000000.host1x"),
    "host1x and nouveau": card(0, "drm", "drm") | card(1, "57000000.gpu", "nouveau", render=128, compatible="nvidia,gm20b"),
    "panfrost beside its display": card(0, "ff9a0000.gpu", "panfrost", render=128) | card(1, "display-subsystem", "rockchip-drm"),
    "panthor": PANTHOR, "lima": card(0, "1c40000.gpu", "lima", render=128),
    "a PowerVR by its own driver": device("cac00000.imggpu", "pvrsrvkm", "img,rgx"), "Vivante's own": device("38000000.gpu3d", "galcore"),
    "Mali by its own driver": device("13000000.mali", "mali", "arm,mali-valhall"),
    "three cores of a Vivante": card(0, "etnaviv", "etnaviv", render=128) | device("130000.gpu", "etnaviv-gpu") | device("134000.gpu", "etnaviv-gpu"),
    "v3d beside vc4": card(0, "fec00000.v3d", "v3d", render=128) | card(1, "gpu", "vc4-drm"),
    "powervr": card(0, "fd00000.gpu", "powervr", render=128, compatible="img,img-axe"),
    "a driver in no list": card(0, "fd00000.gpu2", "newgpu", render=128), "no driver": device("fd00000.gpu", None, "arm,mali-bifrost"),
    "a render node without a card": {f"{DRM}/renderD128/device/uevent": "DRIVER=newgpu"}}  # fmt: skip
KNOWN = {"msm_dpu": ("integrated", True), "host1x and nouveau": ("integrated", True), "a driver in no list": (None, None)}  # fmt: skip
VULKAN = {"source": "wgpu:vulkan", "name": "Some GPU", "device_id": "1", "adapter_type": "integrated"}
OFF_PCI = {
    **{name: (HOST | tree, {**ONE, "warnings": []}) for name, tree in OF_THE_TREE.items()},
    **{f"{name}, its kind": (HOST | OF_THE_TREE[name], {f"{KIND}.value": known[0], "gpus.0.memory.unified.value": known[1]})
       for name, known in KNOWN.items()},
    **{f"{name}, its driver": (HOST | OF_THE_TREE[name], {"gpus.*.driver.name": [driver]}) for name, driver in (
        ("nvgpu beside its display", "nvgpu"), ("host1x and nouveau", "nouveau"), ("v3d beside vc4", "v3d"), ("msm_dpu", "msm_dpu"))},
    "its source": (HOST | OF_THE_TREE["msm_dpu"], {f"{KIND}.source": f"{DRM}/card0/device/uevent"}),
    **{f"a node of {number} without a uevent": (HOST | {f"{DRM}/renderD128/device/vendor": f"0x{number}"}, {"gpus.*.vendor": [name], KIND: kind})
       for number, name, kind in (("1002", "amd", "absent"), ("8086", "intel", "absent"), ("10de", "nvidia", "discrete"))},
    "no driver, no use": (HOST | OF_THE_TREE["no driver"], {"gpus.0.usable": False, "gpus.0.why_not": ["NO_DRIVER"]}),
    "a card in no list": (HOST | card(0, "display", "new_drm"), {"gpu_count.value": None, CODES: ["GPU_UNKNOWN"]}),
    "an empty bus off x86": (HOST | {"/proc/cpuinfo": "processor : 0\nCPU architecture: 8"}, {"gpu_count.value": None, CODES: ["GPU_UNKNOWN"]}),
    "a card in no list beside one that renders": (HOST | card(0, "display", "new_drm") | PANTHOR, {"gpu_count": 1, CODES: ["INTEGRATED_UNMEASURED"]}),
    **{f"no GPU: {name}": (HOST | tree, {"gpu_count": 0}) for name, tree in {
        "vgem": card(0, "vgem", "vgem", render=128), "an NPU": card(1, "fdab0000.npu", "RKNPU", render=129), "on USB": {f"{DRM}/card0/device/uevent": "DRIVER=newusb\nMODALIAS=usb:v17E9p4301"},
        "a partition": {f"{DRM}/renderD129/device/uevent": "MODALIAS=platform:amdgpu_xcp"}, "mali-dp": card(0, "fe000000.dp", "mali-dp"),
    }.items()},
    **{f"a PCI card of {ids[0]} with {nodes}": (
        HOST | pci("0000:03:00.0", *ids) | {f"{DRM}/{node}/device": "-> ../../../bus/pci/devices/0000:03:00.0" for node in nodes},
        {"gpus.*.bdf": ["0000:03:00.0"] * gpus, "display_adapters.*.bdf": ["0000:03:00.0"] * (1 - gpus)})
       for ids, nodes, gpus in (
           (("1ed5", "0201", "mtgpu"), ("card0", "renderD128"), 1),  # a maker in no list
           (("1ed5", "0201", "mtgpu"), ("card0",), 0), (("15ad", "0405", "vmwgfx"), ("card0", "renderD128"), 0),  # an emulated adapter draws on the host
           (("1a03", "2000", "ast"), ("card0",), 0))},
    **{f"Vulkan lists {vendor} beside {name}": (HOST | OF_THE_TREE[name], {"gpu_count": gpus}, [VULKAN | {"vendor_id": vendor}])
       for name, vendor, gpus in (("msm_dpu", "5143", 1), ("a driver in no list", "5143", 1), ("panthor", "13b5", 1), ("panthor", "10de", 2))}}  # fmt: skip


# ---------------------------------------------------------------- SR-IOV
def functions(parent, count, driver="i915", **more):
    tree = {}
    for number in range(1, count + 1):
        bdf = f"{parent[:-1]}{number}"
        tree |= pci(bdf, "8086", "4680", driver, physfn=f"-> ../{parent}", **more)
        tree[f"{DRM}/card{number}/device"] = f"-> ../../../bus/pci/devices/{bdf}"
    return tree


IGPU = HOST | pci("0000:00:02.0", "8086", "4680", "i915")
LISTED = {"source": "wgpu:vulkan", "vendor_id": "8086", "device_id": "4680", "adapter_type": "integrated"}
PLACED = [LISTED | {"source": "vulkan", "bdf": f"0000:00:02.{number}"} for number in range(3)]
SR_IOV = {
    **{f"virtual functions by {driver}": (
        IGPU | functions("0000:00:02.0", 7, driver, pci_class=kind), {"gpus.*.bdf": ["0000:00:02.0"], "display_adapters": []})
       for driver, kind in (("i915", "0300"), ("vfio-pci", "0302"), (None, "0380"))},
    "a virtual function of a guest": (HOST | pci("0000:00:06.0", "8086", "4680", "i915"), ONE),
    "virtual functions without their device": (HOST | functions("0000:03:00.0", 3), {"gpus.*.bdf": ["0000:03:00.1"]}),
    "none but the folder of cards lists them": (
        {path.replace("bus/pci", "x"): text.replace("bus/pci", "x") for path, text in functions("0000:00:02.0", 3).items()}, {"gpus.*.bdf": ["0000:00:02.1"]}),
    "an API lists them": (IGPU | functions("0000:00:02.0", 2), {**ONE, "warnings": []}, [LISTED] * 3 + PLACED), "an API lists one more": (IGPU | functions("0000:00:02.0", 2), {"gpu_count": 2}, [LISTED] * 4)}  # fmt: skip
ROWS = ON_PCI | OF_KFD | OF_INTEL | OFF_PCI | SR_IOV


@pytest.mark.parametrize("name", ROWS)
def test_files_of_gpus(look, host, plant, name):
    tree, expected, *listed = ROWS[name]
    machine = detect.inspect(sysroot=plant(tree), extra_records=listed[0]) if listed else look(tree)
    check(machine, expected)
    hold(machine, host)


# ---------------------------------------------------------------- which GPUs variables hide
UUIDS = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"]
CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
UNKNOWN, SHOWN = "not_probed", "absent"
MIG = "MIG-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(("text", "ordinals", "uuids"), [
    ("", (), ()), ("-1", (), ()), ("x", (), ()), ("0,0", (), ()), ("1,x,2", (1,), ()), ("2,0", (2, 0), ()), ("0,7,1", (0,), ()),
    ("0,GPU-aaaa1111", (0,), ()), (" 1 , 2 ", (1, 2), ()), ("3", (), ()), ("GPU-bbbb", (), UUIDS[2:]), ("GPU-aaaa", (), ()),
    ("GPU-aaaa2222,0", (), UUIDS[1:2]), ("GPU-AAAA1111", (), UUIDS[:1]), ("gpu-b", (), ()), ("GPU-", (), ()),
    ("GPU-bbbb,GPU-bbbb3333", (), ()), ("9" * 5000, (), ())])  # fmt: skip
def test_lists_of_numbers_or_uuids(text, ordinals, uuids):
    assert parse_visible(text, 3, UUIDS) == [*ordinals, *uuids]


@given(st.text(CHARACTERS), st.integers(0, 8))
def test_any_text_names_only_devices_that_exist(text, count):
    assert set(parse_visible(text, count, UUIDS[:count])) <= {*range(count), *UUIDS[:count]}


def gpus(vendor, models):
    return [Gpu(id=f"g{n}", **{name: make_fact(value, "t") for name, value in
                               (("vendor", (vendor.split() * 3)[n]), ("uuid", UUIDS[n]), ("device_id", model), ("name", model))})
            for n, model in enumerate(models)]  # fmt: skip


def hidden(found, **environ):
    return [fact.value or fact.status for fact in access.hidden(found, environ).values()]


@pytest.mark.parametrize(("vendor", "models", "environ", "verdicts"), [
    # CUDA's numbers follow speed, unless models are equal or the bus is asked for.
    ("nvidia", "aa", {CUDA: "1"}, [CUDA, SHOWN]), ("nvidia", "ab", {CUDA: "1"}, [UNKNOWN, UNKNOWN]),
    ("nvidia", "ab", {CUDA: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [CUDA, SHOWN]),
    # Whatever the order is, a list of all numbers hides none, and a list of none hides all.
    ("nvidia", "ab", {CUDA: "1,0"}, [SHOWN, SHOWN]), ("nvidia", "ab", {CUDA: "-1"}, [CUDA, CUDA]),
    ("nvidia", "ab", {CUDA: "0,0"}, [CUDA, CUDA]), ("nvidia", "a", {CUDA: ""}, [CUDA]), ("amd", "a", {}, [SHOWN]),
    # HIP reads CUDA's variable where its own is empty, and an empty one hides nothing.
    ("amd", "a", {CUDA: ""}, [SHOWN]), ("amd", "a", {HIP: "", ROCR: "0"}, [SHOWN]), ("amd", "a", {ROCR: ""}, [ROCR]),
    ("amd", "ab", {CUDA: "1"}, [CUDA, SHOWN]), ("amd", "ab", {HIP: "0", CUDA: "1"}, [SHOWN, HIP]),
    ("amd", "ab", {ROCR: "1", "GPU_DEVICE_ORDINAL": "1"}, [ROCR, SHOWN]),  # OpenCL's; Slurm sets both
    ("amd", "aaa", {ROCR: "1,2", HIP: "1"}, [ROCR, HIP, SHOWN]),  # ROCR filters before HIP counts
    ("nvidia amd nvidia", "aaa", {CUDA: "1"}, [CUDA, CUDA, SHOWN]),  # HIP reads it beside NVIDIA's GPUs, too
    ("intel", "ab", {CUDA: "-1", ROCR: "-1", "ZE_AFFINITY_MASK": "0"}, [SHOWN, SHOWN]),  # WebGPU heeds none
])  # fmt: skip
def test_which_gpus_variables_hide(vendor, models, environ, verdicts):
    assert hidden(gpus(vendor, models), **environ) == verdicts


def test_an_instance_shows_the_gpu_that_it_is_a_slice_of():
    first, second = gpus("nvidia", "aa")
    sliced = [first, msgspec.structs.replace(second, compute=Compute(partitions=[Partition(id=MIG)]))]
    for text, verdicts in ((f"MIG-{UUIDS[1]}/1/0,MIG-{UUIDS[1]}/2/0", [CUDA, SHOWN]), (MIG[:12], [CUDA, SHOWN]), (f"0,{MIG}", [SHOWN, CUDA]),
                           (f"{MIG},{MIG}", [CUDA, CUDA])):  # fmt: skip
        assert hidden(sliced, CUDA_VISIBLE_DEVICES=text) == verdicts
    whole, cut = gpus("amd", "aa")
    cut = msgspec.structs.replace(
        cut, compute=Compute(partitions=[Partition(id="kfd:0"), Partition(id="kfd:1")])
    )
    assert hidden([whole, cut], ROCR_VISIBLE_DEVICES="1") == [SHOWN, SHOWN], "the number is that of a partition"
    asleep = msgspec.structs.replace(first, uuid=make_fact(None, "t"))
    assert hidden([asleep], CUDA_VISIBLE_DEVICES=UUIDS[0]) == [UNKNOWN]


# ---------------------------------------------------------------- what GPUs are called
BOOK = """#
#\tVersion: {date}
#\tDate:    {date} 03:15:02
#
0e11  Somebody Else
\t2330  Not this one
10de  NVIDIA Corporation
# a comment
\t2330  GH100 [H100 of tomorrow]
\t\t10de 16c1  A board
\t2684  AD102 [GeForce RTX 4090]
\tzz84  spoiled
\t9999
1af4  Red Hat
\t2684  Wrong vendor
C 00  Unclassified device"""
SHIPPED = names.table().source
NEWER, OLDER, OTHER = (BOOK.format(date=f"{year}-01-01") for year in (2099, 2001, 2098))
MODEL = "Model: \t\t NVIDIA H100 PCIe\nGPU UUID: \t GPU-00000000-0000-0000-0000-000000000001"
BOARD, (HWDATA, MISC) = "/proc/driver/nvidia/gpus/0000:01:00.0/information", names.PLACES


@pytest.fixture
def h100(plant):
    return lambda **files: plant(HOST | pci("0000:01:00.0", "10de", "2330", "nvidia") | files)


def name(root):
    (gpu,) = detect.inspect(sysroot=root).gpus
    return gpu.name.value, gpu.name_precision, gpu.name.source


@pytest.mark.parametrize(("files", "text", "precision", "source"), [
    ({}, "H100", "family", SHIPPED), ({BOARD: MODEL, HWDATA: NEWER}, "NVIDIA H100 PCIe", "exact", BOARD),
    ({HWDATA: NEWER}, "of tomorrow", "family", HWDATA), ({MISC: NEWER}, "of tomorrow", "family", MISC),
    ({HWDATA: OTHER, MISC: NEWER}, "of tomorrow", "family", MISC), ({HWDATA: OLDER}, "H100", "family", SHIPPED),
    *(({HWDATA: spoiled}, "H100", "family", SHIPPED) for spoiled in ("nothing", "# Date: soon", b"\xff\x00\xfe"))])  # fmt: skip
def test_which_source_names_a_gpu(h100, files, text, precision, source):
    reported = name(h100(**files))
    assert text in reported[0]
    assert reported[1:] == (precision, source)


@pytest.mark.parametrize(("vendor", "device", "product"), [
    (0x10DE, 0x2335, "H200"), (0x1002, 0x74A1, "MI300X"), (0x10DE, 0x26B9, "L40S"), (0x10DE, 0x2B85, "RTX 5090"),
    (0x8086, 0xE20B, "Arc B580"), (0x8086, 0x56A0, "A770"), (0x10DE, 0x1EB8, "T4"), (0x1002, 0x1636, "Renoir"),
    (0x1002, 0x744C, "Navi 31")])  # fmt: skip
def test_the_shipped_table_names_the_gpus_of_its_year(vendor, device, product):
    reported, source = names.name_of(None, vendor, device) or ("", "")
    assert product in reported
    assert source == SHIPPED


def test_the_notice_and_the_documentation_name_the_day_of_the_table():
    day = names.table().date
    assert names.TABLE.stat().st_size < 200 << 10
    notice = " ".join((names.TABLE.parent / "pci.ids.LICENSE").read_text().split())
    assert (f"version {day.replace('-', '.')}," in notice, f"-{day[:4]} Martin Mares" in notice) == (True, True)
    assert f"`pci.ids` of {day}" in (Path(__file__).parents[2] / "docs/detection.md").read_text()


def test_without_a_machine_no_file_is_read_and_a_spoiled_table_costs_the_names_only(monkeypatch, tmp_path):
    monkeypatch.setattr(Root, "read", lambda *_: pytest.fail("a file of the host was read"))
    assert "H100" in names.name_of(None, 0x10DE, 0x2330)[0]
    for content in (b"junk", zlib.compress(b"")):
        (tmp_path / "table").write_bytes(content)
        monkeypatch.setattr(names, "TABLE", tmp_path / "table")
        names.books.cache_clear()
        assert names.name_of(None, 0x10DE, 0x2330) is None
    names.books.cache_clear()


def test_an_excerpt_has_the_names_of_the_devices_that_the_table_knows():
    devices = [(0x10DE, 0x2684), (0x10DE, 0x2330), (0x10DE, 0x2685), (0x1AF4, 0x2684), (0x1002, 0x2684)]
    lines = names.excerpt(NEWER, devices).splitlines()
    assert lines == [
        "# Date: 2099-01-01",
        "10de  -",
        "\t2330  GH100 [H100 of tomorrow]",
        "\t2684  AD102 [GeForce RTX 4090]",
        "1af4  -",
        "\t2684  Wrong vendor",
    ]
    assert names.excerpt("", devices) == ""


def test_a_recording_keeps_the_names_of_its_devices_and_no_others(h100, tmp_path, plain):
    root = h100(**{HWDATA: NEWER})
    detect.save_recording(tmp_path / "copy", root)
    assert "2684" not in (tmp_path / "copy" / HWDATA.lstrip("/")).read_text()
    assert plain(detect.inspect(sysroot=tmp_path / "copy")) == plain(detect.inspect(sysroot=root))
