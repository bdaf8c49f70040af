"""Parent side: the gauge of one session. It never ends a run; one that does not answer delays a session by at most
twice `PATIENCE_S`."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpubench.measure import readings
from gpubench.measure.child import Child, environment
from gpubench.measure.readings import Reading, Target, Users
from gpubench.model.machine import Machine
from gpubench.model.result import Device, RunWarning
from gpubench.model.session import Telemetry as Record

# A reading takes milliseconds, but a driver that nobody used before takes seconds to start, and a busy machine may
# stall. A gauge that has not answered by then hangs in its driver and is given up.
PATIENCE_S = 5.0
NVIDIA = 0x10DE


class Telemetry:
    """Readings of the session's GPUs, beside their blocks. `since` is the session's monotonic start."""

    def __init__(
        self, targets: Sequence[Target], since: float, absent: Mapping[str, str] | None = None
    ) -> None:
        self._since = since
        self._ids = [target.device_id for target in targets]
        self._absent = dict(absent or {})
        self._number = 0
        self._watched: str | None = None
        self._known: dict[str, list[Reading]] = {}
        self._child: Child | None = None
        if targets:
            try:
                self._child = Child("gpubench.measure.gauge", environment())
            except OSError as error:
                self._give_up(f"the gauge cannot be started: {error}")
        self._send(readings.Begin(list(targets)))

    def users(self) -> dict[str, Users]:
        """Who is on the devices before a worker opens one: none of them is ours. To be asked once, and by then."""
        told = self._answers(lambda answer: isinstance(answer, readings.Ready), patient=True)
        return {
            name: found
            for answer in told
            if isinstance(answer, readings.Ready)
            for name, found in answer.users.items()
            if found
        }

    def watch(self, device_id: str) -> None:
        """Begin to read this device, if it can be read. Returns at once."""
        if self._child is not None and device_id in self._ids and device_id not in self._absent:
            self._watched = device_id
            self._send(readings.Watch(device_id))

    def rest(self) -> list[Reading]:
        """Stop reading, and be still. Returns what was read since `watch`, in order of time."""
        if self._watched is None:
            return []
        device_id, self._watched = self._watched, None
        self._number += 1
        self._send(readings.Rest(self._number))
        number = self._number
        told = self._answers(lambda answer: isinstance(answer, readings.Rested) and answer.number == number)
        found = [one for one in told if isinstance(one, Reading) and one.device_id == device_id]
        self._known.setdefault(device_id, []).extend(found)
        return found

    def records(self) -> list[Record]:
        """What was read so far, for the result file."""
        return [readings.columns(name, found, self._since) for name, found in self._known.items() if found]

    def absent(self) -> dict[str, str]:
        """The devices that cannot be read, and why, as far as it is known."""
        return dict(self._absent)

    def close(self) -> None:
        """End the gauge."""
        if self._child is not None:
            self._child.kill(PATIENCE_S)
            self._child = None

    def _answers(
        self, last: Callable[[readings.FromGauge], bool], *, patient: bool = False
    ) -> list[readings.FromGauge]:
        """What the gauge says up to the answer that is the last. If that does not come, the gauge is given up, or, with
        `patient`, left to begin in its own time."""
        told: list[readings.FromGauge] = []
        until = time.monotonic() + PATIENCE_S
        while self._child is not None:
            try:
                line = self._child.lines.get(timeout=max(0.0, until - time.monotonic()))
                answer = readings.decode_answer(line) if line is not None else None
            except queue.Empty:
                if not patient:
                    self._give_up("the driver's management library does not answer")
                break
            except msgspec.DecodeError:
                answer = None
            if answer is None:
                self._give_up("the gauge ended")
                break
            if isinstance(answer, readings.Ready):
                self._absent.update(answer.absent)
            told.append(answer)
            if last(answer):
                break
        return told

    def _send(self, message: readings.ToGauge) -> None:
        if self._child is None:
            return
        try:
            self._child.write(readings.encode(message))
        except OSError:
            self._give_up("the gauge ended")

    def _give_up(self, why: str) -> None:
        for device_id in self._ids:
            self._absent.setdefault(device_id, why)
        self.close()


def of_session(devices: Sequence[Device], machine: Machine, since: float) -> Telemetry:
    """The gauge for these devices, by their own identity or by that of the GPU of `machine` that they are."""
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    targets, absent = [], {}
    for device in devices:
        if device.kind not in ("gpu", "hybrid"):
            continue
        own, gpu = device.identity, gpus.get(device.gpu_id or "")
        pci = (own.pci if own else None) or (gpu.bdf.value if gpu else None)
        uuid = own.uuid if own else None
        if device.backend == "fake":
            targets.append(Target(device.id))
        elif own is not None and own.vendor_id not in (None, NVIDIA):
            absent[device.id] = "only NVIDIA's driver is asked for clocks so far"
        elif uuid or pci:
            targets.append(Target(device.id, uuid, pci))
        elif device.kind == "gpu":  # of a split, the GPU itself says so
            absent[device.id] = "it is not known which GPU this is"
    return Telemetry(targets, since, absent)


def warning(absent: Mapping[str, str]) -> RunWarning | None:
    """One finding for all devices whose clocks cannot be read; None if there are none."""
    if not absent:
        return None
    whys = "; ".join(dict.fromkeys(absent.values()))
    return RunWarning(
        code="no-telemetry", severity="info",
        message=f"clocks and throttling of {', '.join(sorted(absent))} cannot be read: {whys}",
        hint="gpubench detect shows whether the driver answers; throttling goes unnoticed here",
    )  # fmt: skip


def shared(users: Mapping[str, Users], session: int) -> list[RunWarning]:
    """What others do on the GPUs, once for devices that are one GPU. To draw a screen is little, and memory that nobody
    is seen to hold may belong to a driver: that is only told."""
    found = []
    for told in dict.fromkeys(users.values()):
        where = ", ".join(sorted(name for name, other in users.items() if other == told))
        if told.unseen:
            what = f"memory of {where} was held by processes that cannot be seen from here"
        elif told.computing:
            what = f"{_processes(told.computing)} computing on {where}"
        else:
            what = f"{_processes(told.drawing)} drawing on {where}"
        found.append(
            RunWarning(
                code="other-gpu-users", severity="warning" if told.computing else "info", session=session,
                message=f"{what} before the session began", data={"devices": where, "used_bytes": told.used_bytes},
                hint="nvidia-smi on the host names them; end them, or take another GPU with --devices",
            )
        )  # fmt: skip
    return found


def _processes(count: int) -> str:
    return "another process was" if count == 1 else f"{count} other processes were"
