"""Whether something that the user insists on is there."""

from __future__ import annotations

from typing import NamedTuple

from gpubench.detect import remedies
from gpubench.model.machine import Gpu, Machine

_BACKENDS = {"cupy": "cuda", "wgpu": "wgpu"}


class Lack(NamedTuple):
    """Why something is not to be had, and what to do."""

    why: str
    hint: str


def lacks(machine: Machine, wanted: str) -> Lack | None:
    """None if `wanted` (cpu, gpu, a backend, `BACKEND:N` or an id of `gpus[]`) is there and usable."""
    backend, colon, number = wanted.partition(":")
    if wanted == "cpu" or backend == "numpy":
        return None
    if wanted == "gpu" or backend in _BACKENDS:
        fit = [gpu for gpu in machine.gpus if gpu.usable.value is not False and _serves(gpu, backend)]
        need = int(number) + 1 if colon and number.isdigit() else 1
        return None if len(fit) >= need else _why(machine)
    named = [gpu for gpu in machine.gpus if wanted in (gpu.id, gpu.bdf.value, gpu.uuid.value)]
    if not named:
        listed = ", ".join(gpu.id for gpu in machine.gpus) or "none"
        return Lack(f"no device has this id; there are: {listed}", "see gpus[].id of `gpubench detect --json`")
    return None if named[0].usable.value is not False else _blocked(named[0])


def _serves(gpu: Gpu, backend: str) -> bool:
    if backend == "cupy":
        return gpu.vendor.value == "nvidia"
    return True


def _why(machine: Machine) -> Lack:
    blocked = next((gpu for gpu in machine.gpus if gpu.usable.value is False), None)
    if blocked is not None:
        return _blocked(blocked)
    codes = ("SOFTWARE_ONLY", "DISPLAY_ONLY", "GPU_UNKNOWN", "NO_GPU")
    code = next((r.code for r in machine.recommendation.reasons if r.code in codes), "NO_GPU")
    return Lack(
        f"{code}: {remedies.text(code)}", "install the vendor's driver, or run on a machine with such a GPU"
    )


def _blocked(gpu: Gpu) -> Lack:
    code = gpu.why_not[0] if gpu.why_not else "UNUSABLE"
    name = gpu.name.value or gpu.vendor.value or "a GPU"
    return Lack(f"{name} ({gpu.id}) is there but not usable: {code}", remedies.about(code, gpu))
