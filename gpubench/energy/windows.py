"""The measurement of the energy of a call. Each case runs alone for some seconds, which are its *window*, while
the energy counter of its device is read.

The Linux kernel shows two kinds of counters as files, in microjoules: RAPL of the CPU's packages, also of AMD's
(`/sys/class/powercap/intel-rapl:N`), and `energy1_input` of amdgpu's sensors. The counter of an NVIDIA GPU is
read by `measure/monitor.py` through NVML. Since 2020 most Linux kernels let only root read RAPL.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gpubench.base import AMD
from gpubench.measure.case_run import CaseRun, Runtime
from gpubench.measure.monitor import CounterFile, Monitor, MonitorTarget, Reading, find_targets
from gpubench.measure.plan import Workload
from gpubench.measure.schedule import Companion
from gpubench.result.case import DEVICE_GROUP
from gpubench.result.run import Device, EnergyWindow

POWERCAP = "sys/class/powercap"
PACKAGE = re.compile(r"intel-rapl:\d+")


def package_counters(root: Path) -> list[CounterFile] | str:
    """Return the energy counters of all packages of the CPU, or the reason why they cannot all be read. `root` is the
    folder that contains `sys`."""
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
    """Return a list with the energy counter of the AMD GPU at the PCI address `pci`, or the reason why it has none.
    `root` is the folder that contains `sys`."""
    sensors = sorted((root / f"sys/bus/pci/devices/{pci}/hwmon").glob("hwmon*/energy1_input")) if pci else []
    readable = [CounterFile(str(path)) for path in sensors if _text(path)]
    return readable[:1] or "its driver shows no energy counter (hwmon energy1_input)"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


class MeanPower(NamedTuple):
    """The mean power between the first and the last step of a counter."""

    watts: float  # mean power
    steps: int  # number of steps after the first one


def mean_power(readings: Sequence[tuple[float, float]]) -> MeanPower | None:
    """Return the mean power between the first and the last step of a counter, from readings (seconds, joules). A step
    is a change of the counter. Returns None if the counter made fewer than two steps or decreased."""
    steps = [later for earlier, later in pairwise(readings) if later[1] != earlier[1]]
    if len(steps) < 2 or any(later[1] < earlier[1] for earlier, later in pairwise(readings)):
        return None
    (first_s, first_j), (last_s, last_j) = steps[0], steps[-1]
    return MeanPower((last_j - first_j) / (last_s - first_s), len(steps) - 1)


# Steps of the counter that a window should have, and the least and most seconds of a window.
STEPS, LEAST_S, MOST_S = 50, 2.0, 15.0
# Seconds without work, before and after the window.
IDLE_S = 1.0
# Seconds of work before the window, in which caches, clock and fan settle.
WARM_UP_S = 0.5
# Seconds from the request to the start of this work.
AHEAD_S = 0.1
READ_EVERY_S = 0.02
STILL = "its counter does not move, or went back"
UNREAD = "nothing was read of it in time: its driver may still have been starting"
UNCOUNTED = "its driver counts no energy"


class EnergyCompanion(Companion):
    """The companion that measures the energy of each case once, in the first session that measures the case."""

    root = Path("/")
    _monitor: Monitor | None = None
    _sources: dict[str, str]

    def follow_cases(self, runtime: Runtime, workload: Workload, runs: Sequence[CaseRun]) -> None:
        """Run each timed case of the workload again, while the energy counter of its device is read, and record the
        energy. Cases that have an energy are left out. Does nothing if the run does not measure energy."""
        if not self.spec.settings.energy:
            return
        for run in runs:
            outcome = self.recorder.outcome(run.case.id)
            if run.case.workload == workload.key and run.measured and not getattr(outcome, "energy", None):
                window = self._window(run, runtime)
                if run.measured:  # a case that broke in its window is a failure by now
                    self.recorder.add(run.case.id, energy=window)

    def clean_up(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def _window(self, run: CaseRun, runtime: Runtime) -> EnergyWindow:
        device_id = run.case.device_id
        if self._monitor is None:
            self._monitor = self._start()
        monitor = self._monitor

        def lack(why: str) -> EnergyWindow:
            return EnergyWindow(session=runtime.session, source=self._sources.get(device_id, ""), reason=why)

        if why := monitor.absent().get(device_id):
            return lack(why)
        readings = _read_idle(monitor, device_id)
        idle = _power(readings)
        if idle is None:
            return lack(monitor.absent().get(device_id) or _name_fault(readings))
        window_s = min(MOST_S, max(LEAST_S, 1.2 * STEPS * IDLE_S / idle.steps))
        monitor.watch(device_id, every_s=READ_EVERY_S)
        start_at = time.perf_counter() + AHEAD_S + WARM_UP_S
        worked = run.work(start_at, WARM_UP_S, window_s)
        readings = monitor.rest()
        if worked is None:
            return lack("the case broke in its window")
        begin_s, end_s = start_at + worked.begin_s, start_at + worked.ends_s[-1]
        inside = [reading for reading in readings if begin_s <= reading.t_s <= end_s]
        power = _power(inside)
        if power is None:
            return lack(STILL)
        rest = _power(_read_idle(monitor, device_id))
        sensed = [reading.power_w for reading in inside if reading.power_w is not None]
        return EnergyWindow(
            session=runtime.session, source=self._sources[device_id], window_s=end_s - begin_s,
            calls=worked.repeat * len(worked.ends_s) * (run.case.calls or 1), power_w=power.watts, steps=power.steps,
            idle_w=[side.watts for side in (idle, rest) if side is not None],
            sensor_w=fmean(sensed) if sensed else None,
        )  # fmt: skip

    def _start(self) -> Monitor:
        """Start the child process that reads the counters of all devices."""
        machine = self.spec.run.machine
        devices = [target.device for target in self.spec.constraints.targets]
        targets, absent = find_targets(devices, machine)
        self._sources = {target.device_id: "nvml" for target in targets}
        for device in devices:
            files, source = self._files(device)
            if isinstance(files, list):
                targets.append(MonitorTarget(device.id, files=files))
                self._sources[device.id] = source
                absent.pop(device.id, None)
            elif source:
                absent[device.id] = files
        monitor = Monitor(targets, absent, time.perf_counter())
        monitor.users()  # waits until the driver has started
        return monitor

    def _files(self, device: Device) -> tuple[list[CounterFile] | str, str]:
        """Return the counter files of a device, or the reason why it has none, and the kind of counter."""
        if device.kind == "cpu":
            return package_counters(self.root), "rapl"
        if device.kind == "software":
            return "it is the CPU, by a driver's code", "rapl"
        if device.kind != "gpu" or device.backend == DEVICE_GROUP:
            return "several devices share its work", "nvml"
        if device.identity is not None and device.identity.vendor_id == AMD:
            return board_counters(self.root, device.identity.pci), "hwmon"
        return "", ""  # NVML reads the counter, if there is one


def _read_idle(monitor: Monitor, device_id: str) -> list[Reading]:
    """Return the readings of the device's counters in IDLE_S seconds without a launch."""
    monitor.watch(device_id, every_s=READ_EVERY_S)
    time.sleep(IDLE_S)
    return monitor.rest()


def _power(readings: Sequence[Reading]) -> MeanPower | None:
    return mean_power([(reading.t_s, reading.energy_j) for reading in readings if reading.energy_j is not None])


def _name_fault(readings: Sequence[Reading]) -> str:
    """Return the reason why no power can be computed from the readings."""
    if not readings:
        return UNREAD
    return UNCOUNTED if all(reading.energy_j is None for reading in readings) else STILL
