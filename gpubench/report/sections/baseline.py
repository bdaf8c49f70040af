"""The CPU side in words: what computed the times that a GPU is held against, and with how many threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.estimate import CaseResult
from gpubench.analysis.speedup import NUMBA, CpuCode, cpu_codes, cpu_threads
from gpubench.base.escaping import printable
from gpubench.base.units import listed
from gpubench.report.sections.answer_text import backend_text
from gpubench.result.run import Run

_LONG_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:\.\d+)+")  # 0.3.34.0.0 is a build of 0.3.34


def cpu_names(codes: Sequence[CpuCode], *, short: bool = False, versions: bool = False) -> list[str]:
    """`numba`, `PyTorch with MKL`, `NumPy`, `OpenBLAS`, in the order of `codes`; `NumPy without numba` where that would
    be faster. `short`: `PyTorch/MKL`, and OpenBLAS stands for the NumPy that calls it."""
    names: dict[str, None] = {}
    for code in codes:
        libraries = {one.library for one in codes if one.backend == code.backend} - {"", NUMBA}
        blas = [_blas(library, versions) for library in sorted(libraries)]
        if code.backend != "numpy":
            names[("/" if short else " with ").join([backend_text(code.backend), *blas])] = None
        elif code.library:
            names[NUMBA if code.library == NUMBA else _blas(code.library, versions)] = None
        elif code.weaker or not (short and blas):
            names[backend_text(code.backend) + (f" without {NUMBA}" if code.weaker else "")] = None
    return list(names)


def plain_text(codes: Sequence[CpuCode]) -> str:
    """`plain NumPy`; of users' programs alone the libraries that they are made of."""
    return listed(cpu_names(codes)) if codes and all(code.own for code in codes) else "plain NumPy"


def _blas(text: str, versions: bool) -> str:
    """`OpenBLAS`, or `OpenBLAS 0.3.34`, of `OpenBLAS 0.3.34.0.0 (Haswell)`."""
    if not versions:
        return printable(text.partition(" ")[0])
    return printable(_LONG_VERSION.sub(r"\1", text.partition(" (")[0]))


def threads_text(run: Run) -> str:
    """`16 CPU threads`; `the CPU` where nobody counted."""
    threads = cpu_threads(run)
    return "the CPU" if threads is None else f"{threads} CPU thread{'s' if threads != 1 else ''}"


def against_text(analysis: Analysis, rows: Iterable[CaseResult]) -> str:
    """`vs 16 CPU threads: numba, PyTorch with MKL`; of baselines that are no CPU all that is known of them."""
    rows = list(rows)
    names = cpu_names(cpu_codes(analysis.run, rows))
    if not names or any(row.device_kind != "cpu" for row in rows):
        return printable(analysis.baseline)
    return f"vs {threads_text(analysis.run)}: {', '.join(names)}"
