"""The counters of energy that a kernel shows as files, and the power between two of their steps.

RAPL of the CPU's packages (`/sys/class/powercap/intel-rapl:N`, AMD's too) and `energy1_input` of amdgpu's sensors count
microjoules. NVIDIA's counter is read by the monitor from NVML. Since 2020 most kernels let only root read RAPL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gpubench.measure.monitor import CounterFile

POWERCAP = "sys/class/powercap"
PACKAGE = re.compile(r"intel-rapl:\d+")


def package_counters(root: Path) -> list[CounterFile] | str:
    """Return the counters of the CPU's packages, or why there are none."""
    folder = root / POWERCAP
    try:
        names = sorted(path.name for path in folder.iterdir() if PACKAGE.fullmatch(path.name))
    except OSError:
        return "the kernel shows no energy counters (/sys/class/powercap)"
    packages = [name for name in names if _text(folder / name / "name").startswith("package")]
    if not packages:
        return "no counter of a package is in /sys/class/powercap"
    counters = []
    for name in packages:
        if not _text(folder / name / "energy_uj"):
            return f"/{POWERCAP}/{name}/energy_uj cannot be read: run as root, or let your user read it"
        wraps = _text(folder / name / "max_energy_range_uj")
        counters.append(CounterFile(str(folder / name / "energy_uj"), int(wraps) if wraps.isdigit() else None))
    return counters


def board_counters(root: Path, pci: str | None) -> list[CounterFile] | str:
    """Return the counter of an AMD GPU at this PCI address, or why there is none."""
    sensors = sorted((root / f"sys/bus/pci/devices/{pci}/hwmon").glob("hwmon*/energy1_input")) if pci else []
    readable = [CounterFile(str(path)) for path in sensors if _text(path)]
    return readable[:1] or "its driver shows no energy counter (hwmon energy1_input)"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


class MeanPower(NamedTuple):
    """The power between the first and the last step of a counter."""

    watts: float  # the mean
    steps: int  # of the counter


def mean_power(readings: Sequence[tuple[float, float]]) -> MeanPower | None:
    """Return the mean power from readings (time, joules); None where the counter took fewer than two steps, or went
    back.

    A counter stands still between its steps, so time and energy are taken at steps: what the ends cut off of one
    counts for neither.
    """
    steps = [later for earlier, later in pairwise(readings) if later[1] != earlier[1]]
    if len(steps) < 2 or any(later[1] < earlier[1] for earlier, later in pairwise(readings)):
        return None
    (first_s, first_j), (last_s, last_j) = steps[0], steps[-1]
    return MeanPower((last_j - first_j) / (last_s - first_s), len(steps) - 1)
