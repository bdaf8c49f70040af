"""Show the parts of a run's time: inputs, reference, checks, compilation, calibration, sampling, saving and
others.

Run: .venv/bin/python benchmarks/engine.py [OPTIONS OF gpubench run]

The script makes the run in this process and listens to the messages between the run and its workers. It prints
a Markdown table with the seconds and the share of the wall time of each part. *Waiting for a worker* is time in
which no worker reports its work, because it starts, wakes or answers. If several workers work at the same time,
the time counts for the one whose message comes next. So the shares add up to 1. The answer of the run itself
goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from gpubench.cli import main as gpubench
from gpubench.measure import protocol
from gpubench.measure.recorder import Recorder

# The part of the table for each step that a worker announces, and for each request without such a step.
NAMES = {
    "devices": "start", "open": "start", "overhead": "start", "peaks": "peaks", "inputs": "inputs",
    "upload": "inputs", "reference": "reference", "autotune": "trials", "compile": "compile",
    "first launch": "compile", "check": "checks", "calibrate": "calibration", "parts": "parts", "sample": "sampling",
    "release": "release", "supports": "start",
}  # fmt: skip
OWN = "the parent: plan, progress, detection"


class Listener:
    """A listener that adds the time between two messages to the current work."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._last, self._doing = time.perf_counter(), OWN
        self.heard = False

    def pass_to(self, doing: str) -> None:
        """Note that the current work changes to `doing`."""
        now = time.perf_counter()
        self.spent[self._doing] += now - self._last
        self._last, self._doing = now, doing

    def decode_reply(self, decode: Callable[[bytes], Any], line: bytes) -> Any:
        """Decode a reply in place of `protocol.decode_reply`, and note the work that it reports."""
        message = decode(line)
        self.heard = True
        self.pass_to(NAMES.get(message.name, message.name) if isinstance(message, protocol.Phase) else OWN)
        return message

    def encode_message(self, encode: Callable[[Any], bytes], message: Any) -> bytes:
        """Encode a message in place of `protocol.encode`, and note that the run now waits for a worker."""
        self.pass_to("waiting for a worker")
        return encode(message)

    def save_run(self, save: Callable[[Recorder], None], recorder: Recorder) -> None:
        """Save the run in place of `Recorder.save`, and count the time as saving."""
        before = self._doing
        self.pass_to("saving")
        save(recorder)
        self.pass_to(before)


def main() -> None:
    """Make one run, and print its table."""
    listener = Listener()
    protocol.decode_reply = partial(listener.decode_reply, protocol.decode_reply)
    protocol.encode = partial(listener.encode_message, protocol.encode)
    save = Recorder.save

    def save_and_listen(recorder: Recorder) -> None:
        listener.save_run(save, recorder)

    setattr(Recorder, "save", save_and_listen)  # noqa: B010
    sys.argv = ["gpubench", "run", "--no-progress", *sys.argv[1:]]
    with contextlib.redirect_stdout(sys.stderr):
        code = gpubench()
    if not listener.heard:  # an error, and no run
        sys.exit(code)
    listener.pass_to(OWN)
    whole = sum(listener.spent.values())
    print("| what | s | share |\n|---|---|---|")
    for name, seconds in sorted(listener.spent.items(), key=lambda pair: -pair[1]):
        print(f"| {name} | {seconds:.1f} | {seconds / whole:.0%} |")
    print(f"| all | {whole:.1f} | |")


if __name__ == "__main__":
    main()
