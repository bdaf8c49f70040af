"""What is said before a run begins: conditions of the machine and of the settings that its figures depend on."""

from __future__ import annotations

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
    return [*_blas(machine), *_inputs(settings), *_tf32(selection, ops, backends)]


def _blas(machine: Machine) -> Iterable[RunWarning]:
    """A BLAS whose threads do not fit the usable CPUs: the run sets them, the user's own programs may not."""
    return [
        RunWarning(code="blas-threads", message=warning.text, hint="gpubench detect --deep shows each BLAS")
        for warning in machine.warnings
        if warning.code == "BLAS_THREADS"
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
