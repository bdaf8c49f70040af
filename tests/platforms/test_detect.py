"""`detect` on a simulated Windows and macOS: libraries tell what files do not."""

import json

import pytest

from tests.platforms.conftest import SIMULATED


def describe(here, *options):
    return json.loads(here.run("detect", "--json", *options, status=0).stdout)


def test_windows(computer):
    here = computer("win32")
    machine = describe(here)
    cpu, gpus = machine["cpu"], machine["gpus"]
    assert cpu["model"]["value"] == "AMD Ryzen 7 5800X 8-Core Processor"
    assert (cpu["isa"]["value"], cpu["base_hz"]["value"]) == (["avx", "avx2", "fma", "f16c"], 3800e6)
    if SIMULATED:
        assert (cpu["now_hz"]["value"], cpu["max_hz"]["value"]) == (2400e6, 3200e6)
    assert [(c["level"], c["size_bytes"]) for c in cpu["caches"]["value"]] == [(2, 4 << 20), (3, 32 << 20)]
    assert None not in (cpu["cores"]["value"], cpu["logical"]["value"], cpu["affinity"]["value"])
    assert machine["memory"]["total_bytes"]["source"] == "psutil"
    assert machine["platform"]["arch"]["value"] in ("x86_64", "aarch64")
    assert [gpu["name"]["value"] for gpu in gpus] == ["NVIDIA GeForce RTX 4060", "AMD Radeon(TM) Graphics"]
    assert sorted(gpus[0]["apis"]) == ["nvml", "wgpu:dx12", "wgpu:gl", "wgpu:vulkan"]
    assert gpus[0]["driver"]["version"]["value"] == "581.57"
    if SIMULATED:  # by the registry, which also has an entry of a card that is gone
        assert gpus[1]["memory"]["dedicated_bytes"]["value"] == 512 << 20
        assert gpus[1]["driver"]["version"]["value"] == "32.0.21025.1024"
    assert [renderer["name"] for renderer in machine["software_renderers"]] == ["Microsoft Basic Render Driver"]
    assert machine["recommendation"]["mode"] == "gpu"
    assert {warning["code"] for warning in machine["warnings"]} <= {"RUNTIME_MISSING"}
    shown = here.run("detect")  # which fits an old code page
    assert (shown.returncode, "GeForce" in shown.stdout) == (0, True), shown.stderr
    auto = here.run(*"run --mode auto --ops add --sizes 64 --dry-run".split())
    assert "--mode auto takes gpu" in auto.stderr, auto.stderr


def test_macos(computer):
    here = computer("darwin")
    machine = describe(here)
    (gpu,) = machine["gpus"]
    assert machine["cpu"]["model"]["value"] == gpu["name"]["value"] == "Apple M3"
    assert (gpu["vendor"]["value"], gpu["memory"]["unified"]["value"]) == ("apple", True)
    assert machine["cpu"]["caches"]["value"] is None, "the library tells the size 0"
    assert gpu["memory"]["usable_bytes"]["value"] == machine["memory"]["usable_bytes"]["value"]
    assert not SIMULATED or machine["cpu"]["now_hz"]["value"] == 3228e6
    assert (machine["recommendation"]["mode"], machine["warnings"]) == ("gpu", [])
    told = here.run("detect", "--deep").stderr
    assert {"nvml", "cuda"}.isdisjoint(told.split()), "it lacks no driver of NVIDIA"


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_without_any_library_the_number_of_gpus_is_unknown(computer, system):
    here = computer(system, libraries=False)
    machine = describe(here)
    assert machine["gpu_count"]["value"] is None
    assert machine["recommendation"]["reasons"][0]["code"] == "GPU_UNKNOWN"
    shown = here.run("detect")
    assert (shown.returncode, "wgpu is not installed" in shown.stderr) == (0, True)
