"""The parent's side of a session's monitor, and its messages: one JSON object per line.

The monitor never ends a run. If it does not answer, it delays a session by at most twice `PATIENCE_S`. If its driver
starts late, readings are missed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench.base import NVIDIA, group_by, processes
from gpubench.base.messages import WARNINGS
from gpubench.curves.stats import median
from gpubench.result.case import DEVICE_GROUP
from gpubench.result.machine import Machine
from gpubench.result.run import Block, Device, RunWarning, Telemetry

# A reading takes milliseconds, but a driver that nobody used before takes seconds to start, and a busy machine may
# stall. A monitor that has not answered by then hangs in its driver and is given up.
PATIENCE_S = 5.0
# How long a driver may take to start. Until then nobody waits for readings, and none are missed.
START_S = 30.0
# At most ten readings a second: one takes about a millisecond of the monitor's process and nothing of the device.
INTERVAL_S = 0.1


class Monitor:
    """Readings of the session's GPUs while blocks are measured. `since` is the session's monotonic start."""

    def __init__(
        self, targets: Sequence[MonitorTarget], since: float, absent: Mapping[str, str] | None = None
    ) -> None:
        self._since = since
        self._ids = [target.device_id for target in targets]
        self._absent = dict(absent or {})
        self._number = 0
        self._watched: list[str] = []
        self._readings: list[Reading] = []
        self._clocks: dict[str, list[float]] = {}
        self._child: processes.Child | None = None
        self._ready = False
        self._start_until = time.monotonic() + START_S
        if targets:
            try:
                self._child = processes.Child(processes.python("gpubench.measure.monitor_child"))
            except OSError as error:
                self._give_up(f"the monitor cannot be started: {error}")
        self._send(Begin(list(targets)))

    def users(self) -> dict[str, Users]:
        """Return the users of the devices before any worker opens one, so none of them is ours."""
        answers = self._answers(lambda answer: isinstance(answer, Ready), patient=True)
        ready = [answer for answer in answers if isinstance(answer, Ready)]
        return {name: users for answer in ready for name, users in answer.users.items() if users}

    def watch(self, *device_ids: str, every_s: float = INTERVAL_S) -> None:
        """Begin to read these devices repeatedly, as far as they can be read. Returns at once."""
        if self._child is None:
            return
        self._watched = [name for name in device_ids if name in self._ids and name not in self._absent]
        if self._watched:
            self._send(Watch(self._watched, every_s))

    def rest(self) -> list[Reading]:
        """Stop reading. Returns the readings since `watch`, in order of time."""
        if not self._watched:
            return []
        watched, self._watched = self._watched, []
        self._number += 1
        paused = Paused(self._number)
        self._send(Pause(self._number))
        answers = self._answers(lambda answer: answer == paused)
        readings = [answer for answer in answers if isinstance(answer, Reading) and answer.device_id in watched]
        self._readings += readings
        return readings

    def judge(
        self, device_id: str, block: Block, times_s: Sequence[float], readings: Sequence[Reading]
    ) -> Block:
        """Judge the block by `judge_block`, with the device's clocks in earlier blocks; then remember its own clock."""
        clocks = self._clocks.setdefault(device_id, [])
        block = judge_block(block, times_s, readings, median(clocks) if clocks else None)
        if block.clock_hz and not block.discarded:
            clocks.append(median(block.clock_hz))
        return block

    def seconds(self, moment: float) -> float:
        """Convert a monotonic time to seconds from the session's start, as the records store it."""
        return moment - self._since

    def records(self) -> list[Telemetry]:
        """Return all readings so far, for the result file."""
        by_device = group_by(self._readings, lambda reading: reading.device_id)
        return [columns(name, readings, self._since) for name, readings in by_device.items()]

    def absent(self) -> dict[str, str]:
        """Return the devices that cannot be read, each with the reason, as far as known."""
        return dict(self._absent)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill(PATIENCE_S)
            self._child = None

    def _answers(self, last: Callable[[FromMonitor], bool], *, patient: bool = False) -> list[FromMonitor]:
        """Return the monitor's messages up to the one for which `last` is true. If it does not come, give the monitor
        up, unless its driver may still be starting. `patient`: wait for that start."""
        answers: list[FromMonitor] = []
        until = time.monotonic() + (PATIENCE_S if patient or self._ready else 0.0)
        while self._child is not None:
            try:
                line = self._child.lines.get(timeout=max(0.0, until - time.monotonic()))
                answer = decode_answer(line) if line is not None else None
            except queue.Empty:
                if self._ready or (not patient and time.monotonic() > self._start_until):
                    self._give_up("the driver's management library does not answer")
                break
            except msgspec.DecodeError:
                answer = None
            if answer is None:
                self._give_up("the monitor ended")
                break
            if isinstance(answer, Ready):
                self._ready = True
                until = time.monotonic() + PATIENCE_S
                self._absent.update(answer.absent)
            answers.append(answer)
            if last(answer):
                break
        return answers

    def _send(self, message: ToMonitor) -> None:
        if self._child is None:
            return
        try:
            self._child.write(encode(message))
        except OSError:
            self._give_up("the monitor ended")

    def _give_up(self, why: str) -> None:
        for device_id in self._ids:
            self._absent.setdefault(device_id, why)
        self.close()


def of_session(devices: Sequence[Device], machine: Machine, since: float) -> Monitor:
    """Return the monitor for these devices. Each is identified by itself, or by its GPU's entry in `machine`."""
    targets, absent = find_targets(devices, machine)
    return Monitor(targets, since, absent)


def find_targets(devices: Sequence[Device], machine: Machine) -> tuple[list[MonitorTarget], dict[str, str]]:
    """Return the devices that can be read, and for each other GPU the reason why not."""
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    targets: list[MonitorTarget] = []
    absent: dict[str, str] = {}
    for device in devices:
        if device.kind not in ("gpu", "hybrid") or device.backend == DEVICE_GROUP:
            continue
        own, gpu = device.identity, gpus.get(device.gpu_id or "")
        pci = (own.pci if own else None) or (gpu.bdf.value if gpu else None)
        uuid = (own.uuid if own else None) or (gpu.uuid.value if gpu else None)
        if own is None and device.gpu_id is None and device.kind == "gpu":
            targets.append(MonitorTarget(device.id))  # its backend may read it
        elif own is not None and own.vendor_id not in (None, NVIDIA):
            absent[device.id] = "only NVIDIA's driver is asked for clocks so far"
        elif uuid or pci:
            targets.append(MonitorTarget(device.id, uuid, pci))
        elif device.kind == "gpu":  # of a split, the GPU itself says so
            absent[device.id] = UNKNOWN_GPU
    return targets, absent


def warning(absent: Mapping[str, str]) -> RunWarning | None:
    """Return one warning for all devices whose clocks cannot be read; None if there are none."""
    if not absent:
        return None
    whys = "; ".join(dict.fromkeys(absent.values()))
    return RunWarning(
        code="no-telemetry", severity="info",
        message=f"clocks and throttling of {', '.join(sorted(absent))} cannot be read: {whys}",
        hint=WARNINGS["no-telemetry"].remedy,
    )  # fmt: skip


def warn_of_users(users: Mapping[str, Users], session: int) -> list[RunWarning]:
    """Return warnings about other users of the GPUs; devices on the same GPU share one. The severity is only "info" for
    processes that draw a screen and for memory without a visible holder, which may be the driver's."""
    warnings = []
    for seen in dict.fromkeys(users.values()):
        where = ", ".join(sorted(name for name, other in users.items() if other == seen))
        if seen.unseen:
            what = f"memory of {where} was held by processes that cannot be seen from here"
        elif seen.computing:
            what = f"{_processes(seen.computing)} computing on {where}"
        else:
            what = f"{_processes(seen.drawing)} drawing on {where}"
        warnings.append(
            RunWarning(
                code="other-gpu-users", severity="warning" if seen.computing else "info", session=session,
                message=f"{what} before the session began", data={"devices": where, "used_bytes": seen.used_bytes},
                hint=WARNINGS["other-gpu-users"].remedy,
            )
        )  # fmt: skip
    return warnings


def _processes(count: int) -> str:
    return "another process was" if count == 1 else f"{count} other processes were"


# In the words of nvidia-smi: too hot, or too little power. `sw_power_cap` is a large GPU's normal state under a
# matrix product, and other reasons tell of settings, not of a fault.
SLOWED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"})
POWER_CAP = "sw_power_cap"
SLOW_SHARE = 0.9


def judge_block(
    block: Block, times_s: Sequence[float], readings: Sequence[Reading], usual_hz: float | None
) -> Block:
    """Return the block with its throttled samples discarded, all throttle reasons, and the clock of each used sample,
    unless the device counted that itself.

    `times_s`: when the block began and when each entry of `wall_s` ended, on the clock of the readings. A sample is
    judged by the readings during it, or by the nearest one if there are none. `usual_hz`: the device's SM clock in the
    run so far. If it is None, a low clock alone does not discard a sample.
    """
    if not readings:
        return block
    discarded, clocks = dict(block.discarded), []
    for index in range(block.warmup, len(block.wall_s)):
        near = _near(times_s[index], times_s[index + 1], readings)
        clocks.append(median([r.clock_hz for r in near if r.clock_hz] or [0.0]))
        if any(is_slowed_down(reading, usual_hz) for reading in near):
            discarded[str(index)] = "throttled"
    return msgspec.structs.replace(
        block, discarded=discarded, clock_hz=block.clock_hz or (clocks if all(clocks) and clocks else None),
        throttle=sorted({word for reading in readings for word in reading.throttle}),
    )  # fmt: skip


def is_slowed_down(reading: Reading, usual_hz: float | None) -> bool:
    """Whether the device is hot, lacks power, or runs far below its usual clock for a reason other than the power
    cap."""
    if SLOWED.intersection(reading.throttle):
        return True
    if usual_hz is None or not reading.clock_hz or POWER_CAP in reading.throttle:
        return False
    return reading.clock_hz < SLOW_SHARE * usual_hz


def _near(begin_s: float, end_s: float, readings: Sequence[Reading]) -> list[Reading]:
    inside = [reading for reading in readings if begin_s <= reading.t_s <= end_s]
    return inside or [min(readings, key=lambda reading: _distance(reading.t_s, begin_s, end_s))]


def _distance(t_s: float, begin_s: float, end_s: float) -> float:
    return max(begin_s - t_s, t_s - end_s, 0.0)


# ---------------------------------------------------------------- messages

# What a driver may hold by itself is less, and what a process takes to begin with CUDA is more.
IDLE_BYTES = 256 * 2**20


UNKNOWN_GPU = "it is not known which GPU this is"


class ToMonitor(msgspec.Struct, frozen=True, tag=True):
    """Base of the messages to a monitor."""


class FromMonitor(msgspec.Struct, frozen=True, tag=True):
    """Base of the monitor's answers."""


class CounterFile(msgspec.Struct, frozen=True):
    """A file with a number of microjoules that grows."""

    path: str  # its place
    wraps_uj: int | None = None  # where it begins at 0 again


class MonitorTarget(msgspec.Struct, frozen=True):
    """A device to read. If the driver does not know it, its backend may read it."""

    device_id: str  # its id in this run
    uuid: str | None = None  # by which the driver knows it
    pci: str | None = None  # its address, as in `0000:09:00.0`
    files: list[CounterFile] = []  # counters of energy that are read in the driver's place

    @property
    def known(self) -> bool:
        """Whether the driver can tell which GPU this is."""
        return bool(self.uuid or self.pci)


class Begin(ToMonitor, frozen=True):
    """The first order; the monitor answers Ready."""

    targets: list[MonitorTarget]  # the devices of the session


class Watch(ToMonitor, frozen=True):
    """The order to read devices now, and repeatedly until Pause."""

    device_ids: list[str]  # those to read
    every_s: float  # from one reading to the next


class Pause(ToMonitor, frozen=True):
    """The order to read once more and then stop; the monitor answers Paused."""

    number: int  # of this order


class Users(msgspec.Struct, frozen=True):
    """Users of a GPU."""

    computing: int = 0  # processes that compute there
    drawing: int = 0  # processes that draw there
    used_bytes: int = 0  # memory that all processes hold, listed here or not

    @property
    def unseen(self) -> bool:
        """Whether memory is in use although no process is listed, as in a container."""
        return not (self.computing or self.drawing) and self.used_bytes > IDLE_BYTES

    def __bool__(self) -> bool:
        return bool(self.computing or self.drawing) or self.unseen


class Ready(FromMonitor, frozen=True):
    """The answer to Begin."""

    absent: dict[str, str]  # by device, why it cannot be read
    users: dict[str, Users] = {}  # of the devices that tell


class Reading(FromMonitor, frozen=True):
    """One reading; a quantity is None if the device does not tell it."""

    device_id: str  # the device that was read
    # Of `perf_counter`, which all processes of a machine share: Windows' `monotonic` goes in steps of 1/64 s.
    t_s: float
    clock_hz: float | None = None  # of the SMs
    memory_clock_hz: float | None = None  # of the memory
    temperature_c: float | None = None  # of the chip
    power_w: float | None = None  # of the board
    energy_j: float | None = None  # of a counter that begins anywhere
    throttle: list[str] = []  # reasons for a lowered clock, in the words of nvidia-smi
    pcie_generation: int | None = None  # of the link to the host, now
    pcie_width: int | None = None  # lanes of that link, now


class Paused(FromMonitor, frozen=True):
    """The answer to Pause: all readings have been sent."""

    number: int  # of the order


def encode(message: ToMonitor | FromMonitor) -> bytes:
    """Return the message as one line."""
    return msgspec.json.encode(message) + b"\n"


# Both raise msgspec.DecodeError.
decode_order = msgspec.json.Decoder(Begin | Watch | Pause).decode
decode_answer = msgspec.json.Decoder(Ready | Reading | Paused).decode


def columns(device_id: str, readings: list[Reading], since: float) -> Telemetry:
    """Return readings as the result file stores them: one list per quantity, times from the session's start."""
    # A field of `Reading` has the same name in `Telemetry`.
    quantities = set(Telemetry.__struct_fields__) - {"device_id", "t_s"}
    lists = {name: [getattr(reading, name) for reading in readings] for name in quantities}
    return Telemetry(device_id=device_id, t_s=[reading.t_s - since for reading in readings], **lists)
