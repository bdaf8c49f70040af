"""The child process that reads clocks, temperature, power and throttle reasons: `python -m gpubench.measure.gauge`.

It stands apart because a driver's management library may hang or crash, and because it must be still while a CPU
case is timed: it reads only between Watch and Rest. End-of-file on stdin ends it at once.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NoReturn

from gpubench.measure.readings import (
    Begin,
    FromGauge,
    Reading,
    Ready,
    Rest,
    Rested,
    Target,
    Users,
    Watch,
    decode_order,
    encode,
)

# At most ten readings a second: one takes about a millisecond of this process and nothing of the device.
INTERVAL_S = 0.1
# Whoever is on a GPU is looked for again after so long: a driver frees what a dead process held within that time.
PAUSES_S = (0.1, 0.2, 0.4)
Source = Callable[[], Mapping[str, Any]]  # the fields of a Reading beside its device and time


def sources(targets: Sequence[Target]) -> tuple[dict[str, Source], dict[str, str]]:
    """What reads each device, and why the others cannot be read."""
    scripted = [target for target in targets if target.device_id.startswith("fake:")]
    real = [target for target in targets if target not in scripted]
    found: dict[str, Source] = {}
    absent: dict[str, str] = {}
    if scripted:
        from gpubench.backends import _fake_telemetry

        for target in scripted:
            found[target.device_id] = _fake_telemetry.source(target.device_id.partition(":")[2])
    if real:
        from gpubench.detect.probes import nvml_readings

        found |= nvml_readings.sources(real, absent)
    return found, absent


def users(targets: Sequence[Target]) -> dict[str, Users]:
    """Who is on each device now, as far as it tells."""
    scripted = [target.device_id for target in targets if target.device_id.startswith("fake:")]
    real = [target for target in targets if target.device_id not in scripted]
    found: dict[str, Users] = {}
    if scripted:
        from gpubench.backends import _fake_telemetry

        found |= {name: Users(**_fake_telemetry.users(name.partition(":")[2])) for name in scripted}
    if real:
        from gpubench.detect.probes import nvml_users

        found |= {name: Users(**told) for name, told in nvml_users.users(real).items()}
    return found


def staying(look: Callable[[], dict[str, Users]]) -> dict[str, Users]:
    """Who is on the devices and stays: a worker of the session before may still be on its way out."""
    found = look()
    for pause_s in PAUSES_S:
        if not any(users.computing or users.unseen for users in found.values()):
            break  # who draws is no worker of ours
        time.sleep(pause_s)
        found = look()
    return found


def serve(orders: queue.Queue[bytes], send: Callable[[FromGauge], None], begin: Begin) -> NoReturn:
    """Answer orders; while a device is watched, read it at every interval."""
    found, absent = sources(begin.targets)
    send(Ready(absent, staying(lambda: users(begin.targets))))
    watched: str | None = None

    def read() -> None:
        if watched is not None:
            at = time.monotonic()
            send(Reading(watched, at, **found[watched]()))

    while True:
        try:
            order = decode_order(orders.get(timeout=None if watched is None else INTERVAL_S))
        except queue.Empty:
            read()
            continue
        if isinstance(order, Watch):
            watched = order.device_id if order.device_id in found else None
            read()
        elif isinstance(order, Rest):
            read()
            watched = None
            send(Rested(order.number))


def _read_orders(stream: BinaryIO, into: queue.Queue[bytes]) -> NoReturn:
    for line in stream:
        into.put(line)
    os._exit(0)  # the parent is gone


def main() -> int:
    """Serve until end-of-file."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints cannot break the protocol
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_orders, args=(sys.stdin.buffer, orders), daemon=True).start()

    def send(message: FromGauge) -> None:
        out.write(encode(message))
        out.flush()

    begin = decode_order(orders.get())
    assert isinstance(begin, Begin)
    serve(orders, send, begin)


if __name__ == "__main__":
    sys.exit(main())
