"""Stands for nvidia-ml-py and the driver's library on a PC with one GeForce; a Mac has no such library."""

import os
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
nvmlMemory_v2 = 0x2000028


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


def nvmlInit():
    if os.environ["GPUBENCH_SIMULATED"] == "darwin":
        raise NVMLError(12)


ANSWERS = {
    "nvmlSystemGetDriverVersion": "581.57", "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": 0, "nvmlDeviceGetUUID": "GPU-5d4a2f6e-1c3b-4e8a-9f70-2b6c8d1e0a44",
    "nvmlDeviceGetName": "NVIDIA GeForce RTX 4060",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:01:00.0", pciDeviceId=0x288210DE),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=8585740288, free=7516192768, used=1069547520, reserved=209715200)}  # fmt: skip


def __getattr__(name):
    if name in ANSWERS:
        return lambda *_: ANSWERS[name]
    if not name.startswith("nvmlDevice"):
        raise AttributeError(name)

    def refuse(*arguments):
        raise NVMLError(3)

    return refuse
