"""What is said before a run begins: conditions of the machine and of the settings that its figures depend on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from gpubench.model.case import TF32
from gpubench.model.machine import Machine
from gpubench.model.op import Op
from gpubench.model.result import Device, RunWarning, Selection, Settings


def found(
    machine: Machine, selection: Selection, settings: Settings, ops: Mapping[str, Op], devices: Sequence[Device]
) -> list[RunWarning]:
    """All of them, for one run."""
    backends = {device.backend for device in devices}
    power = _power(machine.cpu.governor.value, on_battery=_on_battery())
    return [*_blas(machine), *power, *_shared(os.environ), *_inputs(settings), *_tf32(selection, ops, backends)]


def _blas(machine: Machine) -> Iterable[RunWarning]:
    """A BLAS whose threads do not fit the usable CPUs: the run sets them, the user's own programs may not."""
    return [
        RunWarning(code="blas-threads", message=warning.text, hint="gpubench detect --deep shows each BLAS")
        for warning in machine.warnings
        if warning.code == "BLAS_THREADS"
    ]


def _on_battery() -> bool:
    """Whether the machine says that it runs on a battery now."""
    import psutil

    try:
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    except (OSError, RuntimeError, psutil.Error):
        return False
    return battery is not None and battery.power_plugged is False


def _power(governor: str | None, *, on_battery: bool) -> Iterable[RunWarning]:
    """What keeps the CPU slow makes a slow baseline. The governor alone is only told: Intel's driver calls its
    ordinary one by that name."""
    if on_battery:
        message, hint = "the machine runs on a battery: clocks are lower, on either side", "plug it in"
        return [RunWarning(code="powersave", message=message, hint=hint)]
    if governor == "powersave":
        message, hint = "the CPU's frequency governor is powersave", "cpupower frequency-set -g performance"
        return [RunWarning(code="powersave", severity="info", message=message, hint=hint)]
    return []


def _shared(environ: Mapping[str, str]) -> Iterable[RunWarning]:
    """A runner that GitHub hosts is a virtual machine on a host with others, and each job gets another."""
    if environ.get("GITHUB_ACTIONS") != "true" or environ.get("RUNNER_ENVIRONMENT") != "github-hosted":
        return []
    message = "a runner that GitHub hosts shares its hardware: times differ from job to job"
    return [
        RunWarning(
            code="shared-host", message=message, hint="compare within one job, in turns (--append, --like)"
        )
    ]


def _inputs(settings: Settings) -> Iterable[RunWarning]:
    if settings.inputs == "random":
        return []
    message = f"all inputs are {settings.inputs}: such figures flatter the hardware and stand alone"
    return [RunWarning(code="inputs-not-random", message=message, hint="leave --inputs out")]


def _tf32(selection: Selection, ops: Mapping[str, Op], backends: set[str]) -> Iterable[RunWarning]:
    """TF32 was asked for, and there is no row that it could add."""
    able = any(backends.intersection(op.tf32) for op in ops.values())
    if TF32 not in selection.variants or (
        able and "float32" in selection.dtypes and "library" in selection.forms
    ):
        return []
    message = "--allow-tf32 adds no row: none of these cases is a float32 matmul in CuPy's library form"
    hint = "it takes --ops matmul, --dtypes float32 and an NVIDIA GPU with CuPy"
    return [RunWarning(code="no-tf32", message=message, hint=hint)]
