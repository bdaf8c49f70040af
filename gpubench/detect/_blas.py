"""BLAS: whether it is worth asking, and a warning where its threads do not fit the usable CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpubench.detect._fact import known, missing
from gpubench.detect._request import Answer
from gpubench.model.facts import Fact
from gpubench.model.machine import Cpu, CpuBlas, MachineWarning

# OpenBLAS and MKL look at the affinity, never at a quota; these variables overrule both.
VARIABLES = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# The OpenBLAS inside NumPy's wheels is built for at most so many threads.
MOST_THREADS = 64
_FITTING = ("online", "affinity")


def doubtful(cpu: Cpu, environ: Mapping[str, str]) -> bool:
    """Whether the threads that a BLAS starts on its own may differ from the usable CPUs."""
    if any(environ.get(name) for name in VARIABLES):
        return True
    available, bound = cpu.available.value, cpu.limited_by.value
    return available is not None and (bound not in _FITTING or available > MOST_THREADS)


def fact(answer: Answer) -> Fact[list[CpuBlas]]:
    """What the probe said."""
    if answer.provider.status != "ok":
        return missing(answer.provider.status, "blas")
    try:
        return known(msgspec.convert(answer.extra.get("blas"), list[CpuBlas]), "blas")
    except msgspec.ValidationError:
        return missing("invalid", "blas")


def misfit(blas: CpuBlas, cpu: Cpu) -> bool:
    """Whether the library starts another number of threads than CPUs are usable."""
    return cpu.available.value is not None and blas.threads not in (None, cpu.available.value)


def warnings(cpu: Cpu) -> list[MachineWarning]:
    """Too many threads fight for the CPUs, too few leave some idle: either makes the CPU look slow."""
    return [
        MachineWarning(
            code="BLAS_THREADS", refs=[blas.library],
            text=f"{blas.library} starts {_count(blas.threads, 'thread')}, but "
            f"{_count(cpu.available.value, 'CPU')} may be kept busy; gpubench run sets the number itself, for other "
            f"programs set {_variable(blas)}={cpu.available.value}.",
        )
        for blas in cpu.blas.value or () if misfit(blas, cpu)
    ]  # fmt: skip


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _variable(blas: CpuBlas) -> str:
    own = {"openblas": "OPENBLAS_NUM_THREADS", "mkl": "MKL_NUM_THREADS", "blis": "BLIS_NUM_THREADS"}
    return own.get(blas.library, "OMP_NUM_THREADS")
