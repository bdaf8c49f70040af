"""Stands for nvidia-ml-py and the driver's library on a PC with one GeForce; a Mac has no such library."""

import os
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
nvmlMemory_v2, GPU = 0x2000028, "GPU-5d4a2f6e-1c3b-4e8a-9f70-2b6c8d1e0a44"


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


def nvmlInit():
    if os.environ["GPUBENCH_SIMULATED"] == "darwin":
        raise NVMLError(12)


def nvmlSystemGetDriverVersion():
    return "581.57"


def nvmlSystemGetCudaDriverVersion_v2():
    return 13000


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return GPU


def nvmlDeviceGetName(handle):
    return "NVIDIA GeForce RTX 4060"


def nvmlDeviceGetPciInfo(handle):
    return SimpleNamespace(busId="00000000:01:00.0", pciDeviceId=0x288210DE)


def nvmlDeviceGetMemoryInfo(handle, version=None):
    return SimpleNamespace(total=8585740288, free=7516192768, used=1069547520, reserved=209715200)


def __getattr__(name):
    if not name.startswith("nvmlDevice"):
        raise AttributeError(name)

    def refuse(*arguments):
        raise NVMLError(3)

    return refuse
