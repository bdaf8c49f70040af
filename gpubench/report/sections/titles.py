"""What a picture names, since it travels without its report: the two sides, the machine, the dtypes, the date and the
version."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from gpubench import __version__
from gpubench.analysis.analyse import Analysis
from gpubench.analysis.labels import workers
from gpubench.analysis.speedup import blas_text
from gpubench.foreign_text import printable, shortened
from gpubench.report.sections.answer_text import backend_text

_LONG_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:\.\d+)+")  # 0.3.34.0.0 is a build of 0.3.34


def sides_text(analysis: Analysis, device_ids: Sequence[str]) -> str:
    """`NVIDIA H200 (CuPy) against 16 CPU threads (NumPy, OpenBLAS 0.3.34)`; without devices the CPU alone."""
    cpu = _cpu_text(analysis)
    names = {device.id: shortened(device.name) for device in analysis.run.devices}
    backends: dict[str, list[str]] = {}
    for device_id in device_ids:
        backends.setdefault(names.get(device_id, device_id), []).append(device_id)
    gpus = []
    for name, ids in backends.items():
        counts = Counter(backend_text(device_id) for device_id in ids)
        many = max(counts.values())
        gpus.append(f"{f'{many} x ' if many > 1 else ''}{name} ({', '.join(counts)})")
    text = f"{', '.join(gpus)} against {cpu}" if gpus else cpu
    return printable(text[:1].upper() + text[1:])


def _cpu_text(analysis: Analysis) -> str:
    run = analysis.run
    cpus = [device.id for device in run.devices if device.kind == "cpu"]
    records = [record for device_id in cpus for record in workers(run, device_id)]
    threads = min((record.threads for record in records if record.threads), default=None)
    counted = "the CPU" if threads is None else f"{threads} CPU thread{'s' if threads != 1 else ''}"
    blas = next((blas_text(record.blas).partition(" (")[0] for record in records if record.blas), None)
    blas = blas and _LONG_VERSION.sub(r"\1", blas)
    libraries = dict.fromkeys([*map(backend_text, cpus), *([blas] if blas else [])])
    return f"{counted} ({', '.join(libraries)})" if libraries else counted


def origin_text(analysis: Analysis, dtypes: Iterable[str] = ()) -> str:
    """`float32 · 2026-11-20 · gpubench 0.1.0 · AMD EPYC 7763, 16 CPUs, 126 GiB RAM`."""
    run = analysis.run
    host = analysis.machine.partition("; ")[0]
    label = [shortened(run.label, 30)] if run.label else []
    version = run.tool.get("gpubench", __version__)
    parts = [*dict.fromkeys(dtypes), run.started_at[:10], f"gpubench {version}", *label, host]
    return printable(" · ".join(parts))
