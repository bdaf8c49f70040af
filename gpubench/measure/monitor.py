"""The parent's side of a session's monitor, and the messages between parent and monitor: one JSON object per
line.

The monitor is a child process that reads clocks and temperatures of GPUs. It never ends a run. If it does not
answer, a session is delayed by at most twice `PATIENCE_S`. If its driver starts late, some readings are missed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench.base import NVIDIA, group_by, processes
from gpubench.curves.stats import median
from gpubench.result.case import DEVICE_GROUP
from gpubench.result.machine import Machine
from gpubench.result.run import Block, Device, RunWarning, Telemetry, warning

# A reading takes milliseconds, but a driver that nobody used before takes seconds to start, and a busy machine
# may stall. A monitor that has not answered by then hangs in its driver and is given up.
PATIENCE_S = 5.0
# How long a driver may take to start. Until then nobody waits for readings, and none are missed.
START_S = 30.0
# At most ten readings a second: one takes the monitor's process about a millisecond, and the device no time.
INTERVAL_S = 0.1


class Monitor:
    """The child process that reads the GPUs of a session while blocks are measured. `since` is the time by
    `perf_counter` at which the session started. `absent` maps the ids of devices that cannot be read to the
    reasons."""

    def __init__(self, targets: Sequence[MonitorTarget], absent: Mapping[str, str], since: float) -> None:
        self._since = since
        self._ids = [target.device_id for target in targets]
        self._absent = dict(absent)
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
        """Return how many other programs use each GPU, by device id. Unused GPUs are left out. Call it before a
        worker opens a device, because our own workers would count as users."""
        answers = self._answers(lambda answer: isinstance(answer, Ready), patient=True)
        return {
            name: users
            for answer in answers
            if isinstance(answer, Ready)
            for name, users in answer.users.items()
            if users
        }

    def watch(self, *device_ids: str, every_s: float = INTERVAL_S) -> None:
        """Start to read these devices every `every_s` seconds, and return at once. Ignores devices that cannot
        be read."""
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
        """Return the block as `judge_block` judges it. The device's usual clock is the median over its earlier
        blocks without discarded samples."""
        clocks = self._clocks.setdefault(device_id, [])
        block = judge_block(block, times_s, readings, median(clocks) if clocks else None)
        if block.clock_hz and not block.discarded:
            clocks.append(median(block.clock_hz))
        return block

    def seconds(self, moment: float) -> float:
        """Convert a time by `perf_counter` to seconds since the session's start, as in the file."""
        return moment - self._since

    def records(self) -> list[Telemetry]:
        """Return all readings so far, for the result file."""
        by_device = group_by(self._readings, lambda reading: reading.device_id)
        return [columns(name, readings, self._since) for name, readings in by_device.items()]

    def absent(self) -> dict[str, str]:
        """Return the devices that are known to be unreadable, each with the reason."""
        return dict(self._absent)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill(PATIENCE_S)
            self._child = None

    def _answers(self, last: Callable[[FromMonitor], bool], *, patient: bool = False) -> list[FromMonitor]:
        """Return the monitor's messages up to the first one for which `last` is true, as far as they come in
        time."""
        answers: list[FromMonitor] = []
        until = time.monotonic() + (PATIENCE_S if patient or self._ready else 0.0)
        while self._child is not None:
            try:
                line = self._child.lines.get(timeout=max(0.0, until - time.monotonic()))
                answer = decode_answer(line) if line is not None else None
            except queue.Empty:
                # A driver that may still be starting is waited for only if `patient`, and is not given up.
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


def find_targets(devices: Sequence[Device], machine: Machine) -> tuple[list[MonitorTarget], dict[str, str]]:
    """Return the GPUs and splits that can be read, and the reasons against the others, by device id. Other
    devices are ignored, and so is a split whose GPU is unknown."""
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
        elif device.kind == "gpu":  # for a split, the entry of its GPU gives the reason
            absent[device.id] = UNKNOWN_GPU
    return targets, absent


def warn_of_absent(absent: Mapping[str, str]) -> RunWarning | None:
    """Return one warning for all devices whose clocks cannot be read, or None if `absent` is empty."""
    if not absent:
        return None
    whys = "; ".join(dict.fromkeys(absent.values()))
    message = f"clocks and throttling of {', '.join(sorted(absent))} cannot be read: {whys}"
    return warning("no-telemetry", message, severity="info")


def warn_of_users(users: Mapping[str, Users], session: int) -> list[RunWarning]:
    """Return the warnings about other users of the GPUs, found before the session with this index. Devices with
    equal users share one warning. Its severity is "info" unless other processes compute there."""
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
            warning(
                "other-gpu-users", f"{what} before the session began", session=session,
                severity="warning" if seen.computing else "info",
                data={"devices": where, "used_bytes": seen.used_bytes},
            )
        )  # fmt: skip
    return warnings


def _processes(count: int) -> str:
    return "another process was" if count == 1 else f"{count} other processes were"


# Throttle reasons, as nvidia-smi names them, of a GPU that is too hot or gets too little power. `sw_power_cap`
# is a large GPU's normal state in a matrix product, and the other reasons are settings, not faults.
SLOWED = frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"})
POWER_CAP = "sw_power_cap"
SLOW_SHARE = 0.9


def judge_block(
    block: Block, times_s: Sequence[float], readings: Sequence[Reading], usual_hz: float | None
) -> Block:
    """Return the block with throttled samples in `discarded`, the clock of each sample, and the throttle
    reasons. `times_s` are the begin of the block and the end of each entry of `wall_s`, on the clock of the
    readings. `usual_hz` is the device's usual SM clock. If it is None, a low clock discards no sample."""
    if not readings:
        return block
    discarded, clocks = dict(block.discarded), []
    for index in range(block.warmup, len(block.wall_s)):
        near = _near(times_s[index], times_s[index + 1], readings)
        clocks.append(median([r.clock_hz for r in near if r.clock_hz] or [0.0]))
        if any(is_slowed_down(reading, usual_hz) for reading in near):
            discarded[str(index)] = "throttled"
    # Clocks that the device counted itself are more exact than readings.
    return msgspec.structs.replace(
        block, discarded=discarded, clock_hz=block.clock_hz or (clocks if all(clocks) and clocks else None),
        throttle=sorted({word for reading in readings for word in reading.throttle}),
    )  # fmt: skip


def is_slowed_down(reading: Reading, usual_hz: float | None) -> bool:
    """Return whether the device says that heat or a failing power supply slows it down, or runs far below its
    usual clock, `usual_hz` (None: unknown). A clock that the power limit lowers does not count: that is normal
    under load."""
    if SLOWED.intersection(reading.throttle):
        return True
    if usual_hz is None or not reading.clock_hz or POWER_CAP in reading.throttle:
        return False
    return reading.clock_hz < SLOW_SHARE * usual_hz


def _near(begin_s: float, end_s: float, readings: Sequence[Reading]) -> list[Reading]:
    inside = [reading for reading in readings if begin_s <= reading.t_s <= end_s]
    return inside or [min(readings, key=lambda reading: max(begin_s - reading.t_s, reading.t_s - end_s))]


# ---------------------------------------------------------------- messages

# An idle driver holds less memory than this, and a process that uses CUDA holds more.
IDLE_BYTES = 256 * 2**20


UNKNOWN_GPU = "it is not known which GPU this is"


class ToMonitor(msgspec.Struct, frozen=True, tag=True):
    """Base of the messages to a monitor."""


class FromMonitor(msgspec.Struct, frozen=True, tag=True):
    """Base of the monitor's answers."""


class CounterFile(msgspec.Struct, frozen=True):
    """A file that holds a growing number of microjoules."""

    path: str  # path of the file
    wraps_uj: int | None = None  # the value after which the counter begins at 0 again; None if unknown


class MonitorTarget(msgspec.Struct, frozen=True):
    """A device to read. If the driver does not know the device, its backend may read it."""

    device_id: str  # the id of the device in this run
    uuid: str | None = None  # the UUID of the GPU for the driver; None if unknown
    pci: str | None = None  # the PCI address, such as `0000:09:00.0`; None if unknown
    files: list[CounterFile] = []  # the energy counters to read from files, in place of the driver's

    @property
    def known(self) -> bool:
        """Whether the UUID or the address identifies the GPU for the driver."""
        return bool(self.uuid or self.pci)


class Begin(ToMonitor, frozen=True):
    """The first order to the monitor, which answers Ready."""

    targets: list[MonitorTarget]  # the devices of the session


class Watch(ToMonitor, frozen=True):
    """Order: read the devices now and then repeatedly until Pause."""

    device_ids: list[str]  # the devices to read
    every_s: float  # seconds from one reading to the next


class Pause(ToMonitor, frozen=True):
    """Order: stop reading. The monitor answers Paused. Before that it reads once more, unless Watch came less
    than FRESH_S ago."""

    number: int  # number of this order


class Users(msgspec.Struct, frozen=True):
    """The processes that use a GPU."""

    computing: int = 0  # number of processes that compute on the GPU
    drawing: int = 0  # number of processes that draw a screen with the GPU
    used_bytes: int = 0  # memory in use, also by processes that cannot be seen

    @property
    def unseen(self) -> bool:
        """Whether more memory is in use than an idle driver holds, although no process can be seen, as in a
        container."""
        return not (self.computing or self.drawing) and self.used_bytes > IDLE_BYTES

    def __bool__(self) -> bool:
        return bool(self.computing or self.drawing) or self.unseen


class Ready(FromMonitor, frozen=True):
    """The answer to Begin, or the news that a device can no longer be read."""

    absent: dict[str, str]  # by id of a device that cannot be read: the reason
    users: dict[str, Users] = {}  # by id of a device that reports them: its users


class Reading(FromMonitor, frozen=True):
    """One reading of a device. A quantity is None if the device does not report it."""

    device_id: str  # the device that was read
    # The time by `perf_counter`, which all processes of a machine share. (`monotonic` has steps of 1/64 s on
    # Windows.)
    t_s: float
    clock_hz: float | None = None  # the clock of the SMs
    memory_clock_hz: float | None = None  # the clock of the memory
    temperature_c: float | None = None  # the temperature of the chip
    power_w: float | None = None  # the power of the board
    energy_j: float | None = None  # a running total, of which only differences have a meaning
    throttle: list[str] = []  # reasons for a lowered clock, in the words of nvidia-smi
    pcie_generation: int | None = None  # current generation of the link to the host
    pcie_width: int | None = None  # current number of lanes of that link


class Paused(FromMonitor, frozen=True):
    """The answer to Pause, sent after all readings."""

    number: int  # number of the order


def encode(message: ToMonitor | FromMonitor) -> bytes:
    """Return the message as one line."""
    return msgspec.json.encode(message) + b"\n"


# Both raise msgspec.DecodeError.
decode_order = msgspec.json.Decoder(Begin | Watch | Pause).decode
decode_answer = msgspec.json.Decoder(Ready | Reading | Paused).decode


def columns(device_id: str, readings: list[Reading], since: float) -> Telemetry:
    """Return the readings of a device as the result file stores them: one list per quantity. Times are in
    seconds since the session's start `since`."""
    # A field of `Reading` has the same name in `Telemetry`.
    quantities = set(Telemetry.__struct_fields__) - {"device_id", "t_s"}
    lists = {name: [getattr(reading, name) for reading in readings] for name in quantities}
    return Telemetry(device_id=device_id, t_s=[reading.t_s - since for reading in readings], **lists)
