"""NVML: clocks, temperature, power and throttle reasons of devices that are being measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from gpubench.detect._record import address, uuid_key
from gpubench.detect.probes._failure import ProbeFailure
from gpubench.detect.probes.nvml import bdf, library, text, throttle_words


class Wanted(Protocol):
    """A device by the driver's own names for it."""

    @property
    def device_id(self) -> str:
        """Its id in the run."""

    @property
    def uuid(self) -> str | None:
        """The GPU's uuid, with or without dashes and prefix."""

    @property
    def pci(self) -> str | None:
        """Its PCI address."""


Source = Callable[[], Mapping[str, Any]]


def sources(wanted: Iterable[Wanted], absent: dict[str, str], nvml: Any = None) -> dict[str, Source]:
    """A function for each device that reads it now; `absent` is told why the others have none."""
    nvml, found = handles(wanted, absent, nvml)
    return {name: partial(_read, nvml, handle) for name, handle in found.items()}


def handles(wanted: Iterable[Wanted], absent: dict[str, str], nvml: Any = None) -> tuple[Any, dict[str, Any]]:
    """The library, and its handle of each device; `absent` is told why the others have none."""
    wanted = list(wanted)
    try:
        nvml = nvml or library()
        nvml.nvmlInit()
        listed = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except ProbeFailure as failure:
        absent.update({target.device_id: failure.hint for target in wanted})
        return nvml, {}
    except Exception as error:
        absent.update({target.device_id: f"NVML: {error}" for target in wanted})
        return nvml, {}
    found: dict[str, Any] = {}
    for target in wanted:
        handle = next((known for known in listed if _is(nvml, known, target)), None)
        if handle is None:
            absent[target.device_id] = "NVML lists no such GPU"
        else:
            found[target.device_id] = handle
    return nvml, found


def _is(nvml: Any, handle: Any, target: Wanted) -> bool:
    """By uuid or by address, never by name. A partition's uuid is none of a GPU's: its address is."""
    own = None
    with contextlib.suppress(nvml.NVMLError):
        own = text(nvml.nvmlDeviceGetUUID(handle))
    if own and target.uuid and uuid_key(own) == uuid_key(target.uuid):
        return True
    return target.pci is not None and address(bdf(nvml, handle)) == address(target.pci)


def _read(nvml: Any, handle: Any) -> dict[str, Any]:
    """Each quantity has its own try: what a card does not tell is None."""

    def ask(name: str, factor: float, *more: Any) -> float | None:
        try:
            return float(getattr(nvml, name)(handle, *more)) * factor
        except (nvml.NVMLError, AttributeError, TypeError, ValueError):
            return None

    return {
        "clock_hz": ask("nvmlDeviceGetClockInfo", 1e6, nvml.NVML_CLOCK_SM),
        "memory_clock_hz": ask("nvmlDeviceGetClockInfo", 1e6, nvml.NVML_CLOCK_MEM),
        "temperature_c": ask("nvmlDeviceGetTemperature", 1.0, nvml.NVML_TEMPERATURE_GPU),
        "power_w": ask("nvmlDeviceGetPowerUsage", 1e-3),
        "throttle": throttle_words(nvml, handle),
    }
