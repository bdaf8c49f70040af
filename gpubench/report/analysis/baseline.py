"""The name of the baseline: a speedup printed without it is a bug (measurement.md, section 9)."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.model.result import Run
from gpubench.model.session import Blas, WorkerRecord
from gpubench.report.analysis.labels import workers
from gpubench.report.analysis.machine import fact, usable_cpus
from gpubench.report.analysis.types import Speedup


def baseline_line(run: Run, rows: Sequence[Speedup]) -> str:
    """`vs numpy tuned, OpenBLAS 0.3.29 (Haswell), 16 of 16 threads`; of several forms, tables name each."""
    forms = sorted({row.baseline.case.form for row in rows}) or ["library", "tuned"]
    devices = list(dict.fromkeys(row.baseline.case.device_id for row in rows)) or _cpu_devices(run)
    form = forms[0] if len(forms) == 1 else "library or tuned (the faster one)"
    return "vs " + "; ".join(_device_text(run, device_id, form) for device_id in devices)


def cpu_line(run: Run) -> str:
    """The CPU side by itself: `numpy, OpenBLAS 0.3.29 (Haswell), 2 of 2 threads`."""
    return "; ".join(_device_text(run, device_id, "") for device_id in _cpu_devices(run))


def blas_text(blas: Blas | None) -> str:
    """`OpenBLAS 0.3.29 (Haswell)`; what is unknown is said to be."""
    if blas is None:
        return "BLAS unknown"
    name = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.get(blas.library.lower(), blas.library)
    version = f" {blas.version}" if blas.version else ""
    return f"{name}{version}" + (f" ({blas.kernel})" if blas.kernel else "")


def cpu_limit(run: Run) -> str | None:
    """Why the CPU side is not the whole machine: fewer threads than usable CPUs, or a quota; None if it is."""
    usable = usable_cpus(run)
    for device_id in _cpu_devices(run):
        threads = _threads(workers(run, device_id))
        if threads is not None and usable is not None and threads < usable:
            return f"the baseline uses {threads} of {usable} usable CPUs"
    quota = fact(run.machine, "cpu", "quota_cpus")
    logical = fact(run.machine, "cpu", "logical")
    if isinstance(quota, int | float) and isinstance(logical, int | float) and quota < logical:
        return f"a quota leaves {quota:g} of {logical} CPUs to the baseline"
    return None


def _device_text(run: Run, device_id: str, form: str) -> str:
    backend = device_id.partition(":")[0]
    device = next((device for device in run.devices if device.id == device_id), None)
    if device is not None and device.kind != "cpu":
        return f"{device_id} {form}, {device.name}"
    told = workers(run, device_id)
    blas = next((worker.blas for worker in told if worker.blas is not None), None)
    threads, usable = _threads(told), usable_cpus(run)
    count = "threads unknown" if threads is None else f"{threads} of {usable or '?'} threads"
    limited = " (cpu-limited)" if cpu_limit(run) else ""
    return f"{backend} {form}".rstrip() + f", {blas_text(blas)}, {count}{limited}"


def _threads(told: Sequence[WorkerRecord]) -> int | None:
    """The fewest threads over the sessions."""
    return min((worker.threads for worker in told if worker.threads is not None), default=None)


def _cpu_devices(run: Run) -> list[str]:
    return [device.id for device in run.devices if device.kind == "cpu"] or ["numpy:0"]
