"""The child process that reads clocks, temperature, power and throttle reasons of GPUs.

It is a separate process because a driver's management library may hang or crash. At the start it lists the
users of the GPUs. Then it reads only between Watch and Pause, so that nothing is read while a CPU case is
timed. End-of-file on stdin ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpubench import backends
from gpubench.backends.contract import Backend, Observed
from gpubench.base.child_main import Messages, lines_of_parent
from gpubench.base.plugins import error_text
from gpubench.measure.monitor import (
    UNKNOWN_GPU,
    Begin,
    CounterFile,
    FromMonitor,
    MonitorTarget,
    Pause,
    Paused,
    Reading,
    Ready,
    Users,
    Watch,
    decode_order,
    encode,
)

# Pauses before the users of a GPU are listed again: a driver needs them to free the memory of a dead process.
PAUSES_S = (0.1, 0.2, 0.4)
# A block this short needs no second reading: the next block would wait for it, and a reading takes 4 ms on the
# host of an H200, as long as a short block.
FRESH_S = 0.02
Source = Callable[[], Mapping[str, Any]]  # returns the fields of a Reading except device and time


class EnergyFiles:
    """The sum of energy counters in files, in joules. It keeps growing if a counter with a known `wraps_uj`
    restarts at 0."""

    def __init__(self, files: Sequence[CounterFile]) -> None:
        self._files = files
        self._last = dict.fromkeys(files, 0)
        self._turns = dict.fromkeys(files, 0)

    def __call__(self) -> Mapping[str, Any]:
        """Return `{"energy_j": joules}`, or an empty mapping if a file cannot be read now."""
        total = 0
        for file in self._files:
            try:
                count = int(Path(file.path).read_text(encoding="ascii"))
            except (OSError, ValueError):
                return {}
            if count < self._last[file] and file.wraps_uj:
                self._turns[file] += file.wraps_uj + 1
            self._last[file] = count
            total += count + self._turns[file]
        return {"energy_j": total * 1e-6}


def sources(targets: Sequence[MonitorTarget]) -> tuple[dict[str, Source], dict[str, str]]:
    """Return a reader for each device that can be read, and the reason for each one that cannot."""
    real = [target for target in targets if target.known]
    readers: dict[str, Source] = {
        target.device_id: EnergyFiles(target.files) for target in targets if target.files
    }
    absent: dict[str, str] = {}
    if real:
        from gpubench.detect.probes import nvml

        readers |= nvml.gpu_readers(real, absent)
    for name in _of_backends(targets):
        try:
            backend = _backend(name)
            if isinstance(backend, Observed):
                readers[name] = backend.telemetry(name)
            else:
                absent[name] = UNKNOWN_GPU
        except Exception as error:  # one backend that breaks must not hide the others' devices
            absent[name] = error_text(error)
    return readers, absent


def users(targets: Sequence[MonitorTarget]) -> dict[str, Users]:
    """Return how many other programs use each device now, and how much memory is in use. Children of the run do
    not count. Devices that do not report their users are left out."""
    real = [target for target in targets if target.known]
    counted = {}
    for name in _of_backends(targets):
        with contextlib.suppress(Exception):  # a backend that breaks tells of no user
            backend = _backend(name)
            if isinstance(backend, Observed):
                counted[name] = Users(**backend.users(name))
    if real:
        import psutil

        from gpubench.detect.probes import nvml

        # The driver counts our workers that have listed adapters as processes that draw.
        own = [process.pid for process in psutil.Process(os.getppid()).children(recursive=True)]
        counted |= {name: Users(**counts) for name, counts in nvml.gpu_users(real, own=own).items()}
    return counted


def _of_backends(targets: Sequence[MonitorTarget]) -> list[str]:
    """Return the ids of the devices that only their backends can read."""
    return [target.device_id for target in targets if not target.known and not target.files]


def _backend(device_id: str) -> Backend:
    return backends.load(device_id.partition(":")[0])


def who_stays(look: Callable[[], dict[str, Users]]) -> dict[str, Users]:
    """Return the users of each device, as `look` finds them. If a program computes on one, or memory is in use there
    although no process can be seen, look again after short waits: a worker of the last session may be ending."""
    users_seen = look()
    for pause_s in PAUSES_S:
        if not any(users.computing or users.unseen for users in users_seen.values()):
            break  # who draws is no worker of ours
        time.sleep(pause_s)
        users_seen = look()
    return users_seen


def serve(orders: queue.SimpleQueue[bytes], send: Callable[[FromMonitor], None], begin: Begin) -> NoReturn:
    """Answer the orders that follow `begin`, by `send`. Between Watch and Pause, read the devices at every
    interval. A device that cannot be read any more is reported by another Ready."""
    readers, absent = sources(begin.targets)
    send(Ready(absent, who_stays(lambda: users(begin.targets))))
    watched: list[str] = []
    every_s = since = 0.0

    def read() -> None:
        for name in list(watched):
            at = time.perf_counter()
            try:
                reading = Reading(name, at, **readers[name]())
            except Exception as error:  # one backend that breaks must not hide the others' devices
                watched.remove(name)
                send(Ready({name: error_text(error)}))
            else:
                send(reading)

    while True:
        try:
            order = decode_order(orders.get(timeout=every_s if watched else None))
        except queue.Empty:
            read()
            continue
        if isinstance(order, Watch):
            watched, every_s = [name for name in order.device_ids if name in readers], order.every_s
            since = time.perf_counter()
            read()
        elif isinstance(order, Pause):
            if time.perf_counter() - since > FRESH_S:
                read()
            watched = []
            send(Paused(order.number))


def main() -> int:
    """Serve orders until end-of-file."""
    messages = Messages()
    orders = lines_of_parent()

    def send(message: FromMonitor) -> None:
        messages.write(encode(message))

    begin = decode_order(orders.get())
    assert isinstance(begin, Begin)
    serve(orders, send, begin)


if __name__ == "__main__":
    sys.exit(main())
