"""The device `altered:0` for benchmarks/false_alarms.py: a real device that does additional work in some
sessions.

It opens the device ALTERED_DEVICE and passes every call on. ALTERED_EXTRA is a list of shares, such as
`0,0.1,0,0.2`, which the sessions take in turns. In a session with the share 0.1, every tenth launch of a case
whose size is in ALTERED_SIZES is made twice. So a sample takes a tenth longer because of real work on the device.
Each session adds a line with its share to the file ALTERED_LOG.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpubench import backends
from gpubench.backends.contract import Backend, Buffer, Launch, Session
from gpubench.base.errors import BackendError
from gpubench.kernels.contract.op import Op
from gpubench.result.case import Case
from gpubench.result.run import Device


class AlteredSession:
    """The session of the real device with a changed method `run`."""

    def __init__(self, inner: Any, device: Device, extra: float, sizes: frozenset[int]) -> None:
        self._inner = inner
        self.device = device
        self._extra = extra
        self._sizes = sizes
        self._owed: dict[
            int, float
        ] = {}  # by the id of a slowed launch: the launches still to add, less than 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def supports(self, op: Op, case: Case) -> BackendError | None:
        refusal: BackendError | None = self._inner.supports(op, self._own(case))
        return refusal

    def tune(self, op: Op, case: Case, inputs: Sequence[Buffer]) -> None:
        self._inner.tune(op, self._own(case), inputs)

    def compile(self, op: Op, case: Case, inputs: Sequence[Buffer], output: Buffer) -> Launch:
        """Compile on the real device, and remember the launch if its case is slowed."""
        launch: Launch = self._inner.compile(op, self._own(case), inputs, output)
        if self._extra and case.params["n"] in self._sizes:
            self._owed[id(launch)] = 0.0
        return launch

    def _own(self, case: Case) -> Case:
        """Return the case with the id of the real device, which is needed to find its kernels."""
        return msgspec.structs.replace(case, device_id=self._inner.device.id)

    def run(self, launch: Launch, repeat: int = 1) -> None:
        """Make `repeat` launches. For a slowed case make more launches: the session's share of `repeat`."""
        self._inner.run(launch, repeat)
        if id(launch) in self._owed:
            # The fractions of launches add up.
            owed = self._owed[id(launch)] + repeat * self._extra
            self._owed[id(launch)] = owed - int(owed)
            if int(owed):
                self._inner.run(launch, int(owed))


class AlteredBackend(Backend):
    """One device of another backend under the name `altered`."""

    name = "altered"

    def __init__(self) -> None:
        self._inner_id = os.environ.get("ALTERED_DEVICE", "numpy:0")
        self._inner = backends.load(self._inner_id.partition(":")[0])
        self.implementations = self._inner.implementations

    def devices(self) -> list[Device]:
        return [_rename(device) for device in self._inner.devices() if device.id == self._inner_id]

    def open(self, device_id: str, threads: int | None = None, *, autotune: bool = True) -> Session:
        """Open the real device for the next session. The session's share of additional work is the next in
        ALTERED_EXTRA and is added to ALTERED_LOG."""
        log = Path(os.environ["ALTERED_LOG"])
        number = len(log.read_text().splitlines()) if log.exists() else 0
        shares = [float(text) for text in os.environ.get("ALTERED_EXTRA", "0").split(",")]
        extra = shares[number % len(shares)]
        with log.open("a") as file:
            file.write(f"{extra}\n")
        # The scripted device has the same noise in every process unless told otherwise.
        os.environ["GPUBENCH_FAKE_SEED"] = str(number)
        sizes = frozenset(int(text) for text in os.environ.get("ALTERED_SIZES", "").split(",") if text)
        inner = self._inner.open(self._inner_id, threads, autotune=autotune)
        # The altered session has the methods of the inner one, so it counts as an instance of the same protocols.
        for part in type(inner).__mro__:
            if part.__module__ == Session.__module__:
                part.register(AlteredSession)  # type: ignore[attr-defined]
        session: Any = AlteredSession(inner, _rename(inner.device), extra, sizes)
        opened: Session = session
        return opened


def _rename(device: Device) -> Device:
    return msgspec.structs.replace(device, id="altered:0", backend="altered", identity=None)


BACKEND = AlteredBackend()
