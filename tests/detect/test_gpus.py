from __future__ import annotations

import pytest

from gpubench import detect

GIB = 1 << 30
DRM = "/sys/class/drm"


def only(machine):
    assert machine.gpu_count.value == len(machine.gpus) == 1
    return machine.gpus[0]


def test_xe_card_sums_its_tiles(look, host, pci):
    tiles = {"tile0__physical_vram_size_bytes": str(8 * GIB), "tile1__physical_vram_size_bytes": str(8 * GIB)}
    gpu = only(look(host | pci("0000:03:00.0", "8086", "e20b", "xe", **tiles)))
    assert (gpu.kind.value, gpu.memory.dedicated_bytes.value) == ("discrete", 16 * GIB)


def test_one_spoiled_tile_spoils_the_sum_only(look, host, pci):
    tiles = {"tile0__physical_vram_size_bytes": str(8 * GIB), "tile1__physical_vram_size_bytes": "8G"}
    gpu = only(look(host | pci("0000:03:00.0", "8086", "e20b", "xe", **tiles)))
    assert gpu.memory.dedicated_bytes.status == "invalid"
    assert gpu.device_id.value == "e20b"


def test_i915_card_keeps_its_memory_in_the_card_folder(look, host, pci):
    host |= pci("0000:03:00.0", "8086", "56a0", "i915")
    host |= {
        f"{DRM}/card1/device": "-> ../../../bus/pci/devices/0000:03:00.0",
        f"{DRM}/card1/lmem_total_bytes": str(16 * GIB),
    }
    assert only(look(host)).memory.dedicated_bytes.value == 16 * GIB


def test_mainline_i915_publishes_no_size_and_none_is_guessed(look, host, pci):
    machine = look(host | pci("0000:03:00.0", "8086", "56a0", "i915"))
    assert only(machine).memory.dedicated_bytes.status == "absent"
    assert [r.code for r in machine.recommendation.reasons] == ["VRAM_UNKNOWN"]


def amdgpu(vram: int, gtt: int, **more: str) -> dict[str, str]:
    sizes = {"vram_total": vram, "vis_vram_total": min(vram, 256 << 20), "gtt_total": gtt, "vram_used": 0}
    return {f"mem_info_{name}": str(size) for name, size in sizes.items()} | more


def test_apu_reports_both_views_of_one_ram_and_never_the_sum(look, host, pci):
    gpu = only(look(host | pci("0000:c5:00.0", "1002", "1586", "amdgpu", **amdgpu(GIB, 124 * GIB))))
    memory = gpu.memory
    assert (gpu.kind.value, memory.unified.value) == ("integrated", True)
    assert (memory.dedicated_bytes.value, memory.shared_limit_bytes.value) == (GIB, 124 * GIB)
    assert memory.usable_bytes.value == 6 * GIB  # all usable RAM: the window is larger


def test_small_card_beside_a_large_window_is_discrete(look, host, pci):
    files = amdgpu(4 * GIB, 32 * GIB, mem_info_vram_vendor="samsung")
    machine = look(host | pci("0000:03:00.0", "1002", "67df", "amdgpu", **files))
    gpu = only(machine)
    assert (gpu.kind.value, gpu.memory.usable_bytes.value) == ("discrete", 4 * GIB)
    assert gpu.memory.visible_bytes.value == 256 << 20
    assert machine.recommendation.mode == "gpu"


def test_a_sleeping_card_is_asked_for_totals_only(look, host, pci):
    files = amdgpu(8 * GIB, 8 * GIB, current_link_speed="16.0 GT/s PCIe", unique_id="0123456789abcdef")
    machine = look(
        host | pci("0000:03:00.0", "1002", "73bf", "amdgpu", power__runtime_status="suspended", **files)
    )
    gpu = only(machine)
    assert gpu.power.state.value == "suspended"
    assert gpu.memory.dedicated_bytes.value == 8 * GIB
    for fact in (gpu.memory.free_bytes, gpu.link.gen_now, gpu.uuid):
        assert fact.status == "not_probed"
    assert machine.recommendation.mode == "gpu"
    assert "WILL_WAKE" in [r.code for r in machine.recommendation.reasons]


def test_a_sleeping_card_of_unknown_size_is_no_candidate(look, host, pci):
    machine = look(host | pci("0000:01:00.0", "10de", "2684", "nvidia", power__runtime_status="suspended"))
    assert [r.code for r in machine.recommendation.rejected] == ["GPU_ASLEEP"]


def test_passed_through_and_driverless_cards_are_not_usable(look, host, pci):
    host |= pci("0000:01:00.0", "10de", "2684", "vfio-pci") | pci("0000:02:00.0", "10de", "2684")
    assert [(gpu.usable.value, gpu.why_not) for gpu in look(host).gpus] == [
        (False, ["PASSED_THROUGH"]), (False, ["NO_DRIVER"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("vendor", "device", "role"),
    [
        ("1a03", "2000", "bmc"),
        ("102b", "0538", "bmc"),
        ("1af4", "1050", "virtual"),
        ("1414", "5353", "virtual"),
        ("10ec", "1", "other"),
    ],
)
def test_adapters_that_only_draw_are_no_gpus(look, host, pci, vendor, device, role):
    machine = look(host | pci("0000:05:00.0", vendor, device.rjust(4, "0")))
    assert machine.gpu_count.value == 0
    assert [adapter.role.value for adapter in machine.display_adapters] == [role]
    assert [r.code for r in machine.recommendation.reasons] == ["DISPLAY_ONLY"]


def test_accelerators_are_listed_apart_unless_a_gpu_driver_has_them(look, host, pci):
    host |= pci("0000:05:00.0", "1bcf", "001c", "ve_drv", pci_class="0b40")
    host |= pci("0000:06:00.0", "1002", "74a1", "amdgpu", pci_class="1200")
    host |= pci("0000:07:00.0", "1da3", "1020", "habanalabs", pci_class="1200")
    machine = look(host)
    assert [a.id for a in machine.accelerators] == ["pci:0000:05:00.0", "pci:0000:07:00.0"]
    assert only(machine).bdf.value == "0000:06:00.0"


def test_second_function_is_no_device(look, host, pci):
    host |= pci("0000:00:02.0", "8086", "0046", "i915") | pci("0000:00:02.1", "8086", "0047", pci_class="0380")
    machine = look(host)
    assert only(machine).kind.value == "integrated"
    assert machine.display_adapters == []


def test_wsl_shows_no_gpu_of_its_own(look, host, pci):
    host["/proc/version"] = "Linux version 5.15.1-microsoft-standard-WSL2"
    machine = look(host | pci("0001:00:00.0", "1414", "008e", pci_class="0302"))
    assert machine.platform.wsl.value is True
    assert machine.gpu_count.value == 0


def kfd_node(number: int, **table: int) -> dict[str, str]:
    base = {"cpu_cores_count": 0, "simd_count": 152, "simd_per_cu": 4, "vendor_id": 4098, "device_id": 29857,
            "location_id": 0x0500, "domain": 1, "gfx_target_version": 90402}  # fmt: skip
    folder = f"/sys/class/kfd/kfd/topology/nodes/{number}"
    return {f"{folder}/properties": "\n".join(f"{key} {value}" for key, value in (base | table).items())}


def bank(node: int, number: int, heap: int, size: int) -> dict[str, str]:
    path = f"/sys/class/kfd/kfd/topology/nodes/{node}/mem_banks/{number}/properties"
    return {path: f"heap_type {heap}\nsize_in_bytes {size}"}


def test_kfd_partitions_of_one_gpu(look):
    tree = (
        kfd_node(0, cpu_cores_count=96, simd_count=0)
        | kfd_node(1, unique_id=77)
        | kfd_node(2, unique_id=77, location_id=0x0501)
    )
    gpu = only(look(tree | bank(1, 0, 1, 24 * GIB) | bank(2, 0, 1, 24 * GIB)))
    assert (gpu.bdf.value, gpu.compute.units.value, gpu.compute.arch.value) == ("0001:05:00.0", 76, "gfx942")
    assert gpu.uuid.value == "GPU-000000000000004d"
    assert (gpu.memory.dedicated_bytes.value, gpu.memory.usable_bytes.value) == (48 * GIB, 24 * GIB)
    assert [p.units.value for p in gpu.compute.partitions] == [38, 38]


def test_one_unreadable_bank_gives_no_partial_sum(look):
    tree = (
        kfd_node(1, unique_id=77)
        | bank(1, 0, 1, GIB)
        | {"/sys/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties": "?"}
    )
    gpu = only(look(tree))
    assert gpu.memory.dedicated_bytes.status == "invalid"
    assert gpu.compute.units.value == 38


def test_kfd_node_with_cpu_cores_is_integrated(look):
    assert only(look(kfd_node(0, cpu_cores_count=16))).kind.value == "integrated"


def test_a_spoiled_kfd_node_is_still_a_gpu(look):
    tree = (
        kfd_node(1, unique_id=77)
        | {"/sys/class/kfd/kfd/topology/nodes/2/gpu_id": "9028"}
        | bank(2, 0, 1, 16 * GIB)
    )
    machine = look(tree | {"/sys/class/kfd/kfd/topology/nodes/2/properties": "?"})
    assert machine.gpu_count.value == 2
    spoiled = machine.gpus[1]
    assert (spoiled.compute.units.status, spoiled.memory.dedicated_bytes.value) == ("invalid", 16 * GIB)


def test_i915_card_is_found_below_the_devices_own_folder_too(look, host, pci):
    host |= pci("0000:03:00.0", "8086", "56a0", "i915", drm__card1__lmem_total_bytes=str(16 * GIB))
    assert only(look(host)).memory.dedicated_bytes.value == 16 * GIB


@pytest.mark.parametrize("spoiled", ["class", "vendor"])
def test_what_nvml_lists_keeps_its_link_numa_and_power_facts(plant, host, pci, spoiled):
    bdf = "0000:01:00.0"
    host |= pci(
        bdf,
        "10de",
        "2335",
        pci_class="0302",
        numa_node="1",
        max_link_width="16",
        power__runtime_status="active",
    )
    host[f"/sys/bus/pci/devices/{bdf}/{spoiled}"] = "?"
    nvml = {"source": "nvml", "bdf": bdf, "vendor_id": "10de", "device_id": "2335", "memory_bytes": 141 * GIB}
    gpu = only(detect.inspect(sysroot=plant(host), extra_records=[nvml]))
    assert (gpu.numa_node.value, gpu.link.width_max.value, gpu.power.state.value) == (1, 16, "active")
    assert gpu.memory.dedicated_bytes.value == 141 * GIB


def test_a_spoiled_partition_costs_the_units_of_its_own_gpu_alone(look):
    tree = {}
    for number in range(1, 5):
        tree |= kfd_node(
            number, unique_id=77 + (number > 2), location_id=0x0500 + (number > 2) * 0x2200 + (number + 1) % 2
        )
        tree |= bank(number, 0, 1, 24 * GIB)
    for spoiled in range(1, 5):
        folder = "/sys/class/kfd/kfd/topology/nodes"
        machine = look(tree | {f"{folder}/{spoiled}/properties": "?"})
        units = [gpu.compute.units for gpu in machine.gpus]
        assert [fact.value for fact in units] == ([None, 76] if spoiled < 3 else [76, None])
        assert {gpu.memory.dedicated_bytes.value for gpu in machine.gpus} == {48 * GIB}
        assert units[spoiled > 2].source == f"{folder}/{spoiled}/properties"


BARE = "processor : 0\nflags : lm"
LMEM, REGULAR = {"drm__card1__lmem_total_bytes": str(16 * GIB)}, {}


@pytest.mark.parametrize(
    ("bdf", "device", "driver", "files", "cpuinfo", "kind"),
    [
        ("0000:06:10.0", "4680", "i915", REGULAR, f"{BARE} hypervisor", "integrated"),  # given to a guest
        ("0000:00:10.0", "a780", "i915", REGULAR, f"{BARE} hypervisor", "integrated"),
        (
            "0000:00:02.0",
            "56a0",
            "xe",
            REGULAR,
            f"{BARE} hypervisor",
            "discrete",
        ),  # a card at an iGPU's address
        ("0000:00:02.0", "56a0", "vfio-pci", REGULAR, BARE, "discrete"),
        ("0000:00:02.0", "ee00", "xe", REGULAR, BARE, "integrated"),  # newer than any list
        ("0000:00:02.0", "ee00", "xe", REGULAR, f"{BARE} hypervisor", None),
        ("0000:03:00.0", "ee00", "xe", REGULAR, BARE, None),
        ("0000:03:00.0", "ee00", "i915", LMEM, BARE, "discrete"),
        ("0000:00:02.0", "ee00", "i915", LMEM, BARE, "discrete"),
        ("0000:03:00.0", "ee00", "xe", {"tile0__physical_vram_size_bytes": str(GIB)}, BARE, "discrete"),
        ("0000:03:00.0", "e20b", "xe", {"power__runtime_status": "suspended"}, BARE, "discrete"),
    ],
)
def test_the_kind_of_an_intel_gpu_is_not_read_off_its_address(
    look, host, pci, bdf, device, driver, files, cpuinfo, kind
):
    host["/proc/cpuinfo"] = cpuinfo
    gpu = only(look(host | pci(bdf, "8086", device, driver, **files)))
    assert (gpu.kind.value, gpu.kind.status) == (kind, "ok" if kind else "absent")
    assert gpu.memory.unified.value == (kind and kind == "integrated")
