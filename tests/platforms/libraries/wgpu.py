"""Stands for wgpu: the adapters of a PC with a GeForce and a processor with graphics, and that of a Mac."""

import os
from types import SimpleNamespace

__version__ = "0.32.0"


def adapter(api, name, kind, vendor_id=0, device_id=0, vendor=""):
    info = {"backend_type": api, "device": name, "adapter_type": kind, "vendor_id": vendor_id, "device_id": device_id,
            "vendor": vendor, "description": ""}  # fmt: skip
    return SimpleNamespace(info=info, summary=name)


def adapters():
    if os.environ["GPUBENCH_SIMULATED"] == "darwin":
        return [adapter("Metal", "Apple M3", "IntegratedGPU")]
    geforce, radeon = "NVIDIA GeForce RTX 4060", "AMD Radeon(TM) Graphics"
    return [adapter("Vulkan", geforce, "DiscreteGPU", 0x10DE, 0x2882, "NVIDIA"),
            adapter("Vulkan", radeon, "IntegratedGPU", 0x1002, 0x164E, "AMD proprietary driver"),
            adapter("D3D12", geforce, "DiscreteGPU", 0x10DE, 0x2882),
            adapter("D3D12", radeon, "IntegratedGPU", 0x1002, 0x164E),
            adapter("D3D12", "Microsoft Basic Render Driver", "CPU", 0x1414, 0x8C),
            adapter("OpenGL", geforce, "Other", 0x10DE, 0, "")]  # fmt: skip


gpu = SimpleNamespace(enumerate_adapters_sync=adapters)
