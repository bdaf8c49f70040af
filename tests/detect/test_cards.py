"""GPUs on no PCI bus and of no known maker: unknown is not "there is no GPU"."""

from __future__ import annotations

import pytest

from gpubench import detect

DRM, SOC, PLATFORM = "/sys/class/drm", "/sys/devices/platform/soc", "/sys/bus/platform/devices"
GIB = 1 << 30


def card(number, device, driver, *, render=None, compatible="", place=SOC):
    """The nodes of one DRM device, and its own folder."""
    folder = f"{place}/{device}"
    tree = {
        f"{folder}/uevent": f"DRIVER={driver}\nOF_FULLNAME=/soc/{device}\nOF_COMPATIBLE_0={compatible}",
        f"{PLATFORM}/{device}": f"-> ../../..{folder.removeprefix('/sys')}",
    }
    for name in [f"card{number}"] + ([f"renderD{render}"] if render else []):
        tree |= {
            f"{folder}/drm/{name}/device": "-> ../../",
            f"{DRM}/{name}": f"-> ../..{folder.removeprefix('/sys')}/drm/{name}",
        }
    return tree


def device(name, driver=None, compatible="", place=SOC):
    """A platform device that has no card."""
    lines = [f"DRIVER={driver}"] if driver else []
    lines += ["OF_FULLNAME=/soc/gpu", f"OF_COMPATIBLE_0={compatible}"]
    return {
        f"{place}/{name}/uevent": "\n".join(lines),
        f"{PLATFORM}/{name}": f"-> ../../..{place.removeprefix('/sys')}/{name}",
    }


ADRENO = device("3d00000.gpu", "adreno", "qcom,adreno-43050c01")
ONE_GPU = {
    "msm_dpu": card(0, "ae01000.display-controller", "msm_dpu"),
    "msm_mdp, with its render node": card(0, "900000.mdss", "msm_mdp", render=128),
    "mdp4": card(0, "5100000.mdp", "mdp4"),
    "card and GPU of an Adreno": card(0, "ae01000.display-controller", "msm_dpu", render=128) | ADRENO,
    "Adreno without a card": ADRENO,
    "kgsl": device("3d00000.qcom,kgsl-3d0", "kgsl-3d"),
    "nvgpu without a card": device("17000000.ga10b", "gk20a", "nvidia,ga10b"),
    "nvgpu beside its display": device("17000000.gpu", "nvgpu") | card(0, "13800000.display", "nv_platform"),
    "host1x": card(0, "drm", "drm", place="/sys/devices/platform/50000000.host1x"),
    "host1x and nouveau": card(0, "drm", "drm") | card(1, "57000000.gpu", "nouveau", render=128, compatible="nvidia,gm20b"),
    "panfrost beside its display": card(0, "ff9a0000.gpu", "panfrost", render=128) | card(1, "display-subsystem", "rockchip-drm"),
    "panthor": card(0, "fb000000.gpu", "panthor", render=128),
    "lima": card(0, "1c40000.gpu", "lima", render=128),
    "Mali by its own driver": device("13000000.mali", "mali", "arm,mali-valhall"),
    "three cores of a Vivante": card(0, "etnaviv", "etnaviv", render=128) | device("130000.gpu", "etnaviv-gpu")
    | device("134000.gpu", "etnaviv-gpu"),
    "v3d beside vc4": card(0, "fec00000.v3d", "v3d", render=128) | card(1, "gpu", "vc4-drm"),
    "powervr": card(0, "fd00000.gpu", "powervr", render=128, compatible="img,img-axe"),
    "a driver in no list": card(0, "fd00000.gpu2", "newgpu", render=128),
    "no driver": device("fd00000.gpu", None, "arm,mali-bifrost"),
    "a render node without a card": {f"{DRM}/renderD128/device/uevent": "DRIVER=newgpu"},
}  # fmt: skip


@pytest.mark.parametrize("tree", ONE_GPU.values(), ids=ONE_GPU)
def test_a_gpu_of_the_device_tree_is_one_gpu(look, host, tree):
    machine = look(host | tree)
    assert machine.gpu_count.value == len(machine.gpus) == 1
    assert "NO_GPU" not in [reason.code for reason in machine.recommendation.reasons]
    assert machine.warnings == []


@pytest.mark.parametrize(
    ("tree", "kind"),
    [
        (ONE_GPU["msm_dpu"], "integrated"),
        (ONE_GPU["host1x and nouveau"], "integrated"),
        (ONE_GPU["a driver in no list"], None),
    ],
)
def test_the_kind_is_told_where_the_family_is_known(look, host, tree, kind):
    (gpu,) = look(host | tree).gpus
    assert (gpu.kind.value, gpu.memory.unified.value) == (kind, True if kind else None)


def test_a_gpu_without_a_driver_cannot_be_used(look, host):
    (gpu,) = look(host | ONE_GPU["no driver"]).gpus
    assert (gpu.usable.value, gpu.why_not) == (False, ["NO_DRIVER"])


@pytest.mark.parametrize(
    ("rendering", "count", "code"), [(False, None, "GPU_UNKNOWN"), (True, 1, "INTEGRATED_UNMEASURED")]
)
def test_a_card_in_no_list_leaves_the_number_of_gpus_open(look, host, rendering, count, code):
    tree = card(0, "display", "new_drm")
    if rendering:  # then the kernel shows render nodes, and this card has none
        tree |= card(1, "fb000000.gpu", "panthor", render=128)
    machine = look(host | tree)
    assert machine.gpu_count.value == count
    assert [reason.code for reason in machine.recommendation.reasons] == [code]


@pytest.mark.parametrize(
    "tree",
    [
        card(0, "vgem", "vgem", render=128),
        {f"{DRM}/card0/device/uevent": "DRIVER=newusb\nMODALIAS=usb:v17E9p4301"},
        {f"{DRM}/renderD129/device/uevent": "MODALIAS=platform:amdgpu_xcp"},  # a partition of an AMD GPU
        card(0, "fe000000.dp", "mali-dp"),
    ],
)
def test_displays_and_partitions_are_no_gpus(look, host, tree):
    assert look(host | tree).gpu_count.value == 0


@pytest.mark.parametrize(
    ("ids", "nodes", "gpus"),
    [
        (("1ed5", "0201", "mtgpu"), ["renderD128"], 1),  # a maker in no list
        (("1ed5", "0201", "mtgpu"), [], 0),
        (("15ad", "0405", "vmwgfx"), ["renderD128"], 0),  # an emulated adapter draws on the host
        (("1a03", "2000", "ast"), [], 0),
    ],
)
def test_a_pci_card_with_a_render_node_is_a_gpu_whoever_made_it(look, host, pci, ids, nodes, gpus):
    host |= pci("0000:03:00.0", *ids)
    for node in ["card0", *nodes]:
        host[f"{DRM}/{node}/device"] = "-> ../../../bus/pci/devices/0000:03:00.0"
    machine = look(host)
    assert (len(machine.gpus), len(machine.display_adapters)) == (gpus, 1 - gpus)


def test_vulkan_and_the_device_tree_list_one_gpu(plant, host):
    for name, vendor in (
        ("msm_dpu", "5143"),
        ("a driver in no list", "5143"),
        ("panthor", "13b5"),
        ("panthor", "10de"),
    ):
        adapter = {
            "source": "wgpu:vulkan",
            "name": "Some GPU",
            "vendor_id": vendor,
            "device_id": "1",
            "adapter_type": "integrated",
        }
        machine = detect.inspect(
            sysroot=plant(host | ONE_GPU[name], f"{name}{vendor}"), extra_records=[adapter]
        )
        assert len(machine.gpus) == (2 if vendor == "10de" else 1)


# ---------------------------------------------------------------- SR-IOV


def virtual_functions(pci, parent, count, driver="i915", **more):
    tree = {}
    for number in range(1, count + 1):
        bdf = f"{parent[:-1]}{number}"
        tree |= pci(bdf, "8086", "4680", driver, **more) | {
            f"/sys/bus/pci/devices/{bdf}/physfn": f"-> ../{parent}"
        }
        tree[f"{DRM}/card{number}/device"] = f"-> ../../../bus/pci/devices/{bdf}"
    return tree


@pytest.mark.parametrize(("driver", "pci_class"), [("i915", "0300"), ("vfio-pci", "0302"), (None, "0380")])
def test_virtual_functions_are_their_device(look, host, pci, driver, pci_class):
    host |= pci("0000:00:02.0", "8086", "4680", "i915")
    machine = look(host | virtual_functions(pci, "0000:00:02.0", 7, driver, pci_class=pci_class))
    assert [gpu.bdf.value for gpu in machine.gpus] == ["0000:00:02.0"]
    assert machine.display_adapters == []


def test_a_virtual_function_of_a_guest_is_a_device(look, host, pci):
    assert len(look(host | pci("0000:00:06.0", "8086", "4680", "i915")).gpus) == 1


def test_virtual_functions_whose_device_is_not_shown_are_one(look, host, pci):
    machine = look(host | virtual_functions(pci, "0000:03:00.0", 3))
    assert [gpu.bdf.value for gpu in machine.gpus] == ["0000:03:00.1"]


def test_an_api_that_lists_the_virtual_functions_adds_no_gpu(plant, host, pci):
    host |= pci("0000:00:02.0", "8086", "4680", "i915") | virtual_functions(pci, "0000:00:02.0", 2)
    adapter = {"source": "wgpu:vulkan", "vendor_id": "8086", "device_id": "4680", "adapter_type": "integrated"}
    placed = [adapter | {"source": "vulkan", "bdf": f"0000:00:02.{number}"} for number in range(3)]
    machine = detect.inspect(sysroot=plant(host), extra_records=[adapter] * 3 + placed)
    assert (len(machine.gpus), machine.warnings) == (1, [])
    assert len(detect.inspect(sysroot=plant(host), extra_records=[adapter] * 4).gpus) == 2  # a second GPU
