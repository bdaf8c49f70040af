"""`run --mode`: which sides are measured, as the user or the detection says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpubench.cli._measured import read_result
from gpubench.errors import UsageError
from gpubench.measure.targets import Mode, Wish
from gpubench.suggestions import require_choice

MODES = ("cpu", "gpu", "hybrid", "auto")


def wished(text: str | None, *, allow_software: bool, named: bool) -> Wish | None:
    """The devices of a mode; None: no mode was given. `auto` says on stderr what detection recommends, and asks for
    nothing that is not there. Raises UsageError beside devices that were `named`."""
    if text is None:
        return None
    require_choice(text, MODES, "--mode")
    if named:
        raise UsageError(
            "mode-and-devices", f"--mode {text} beside --backends or --devices",
            why="a mode chooses the devices, and so do they", hint="leave one of them out",
        )  # fmt: skip
    if text != "auto":
        return Wish(allow_software=allow_software, mode=_mode(text))
    mode = _recommended()
    # What cannot be had was only a recommendation: nothing is required but the CPU.
    return Wish(allow_software=allow_software, mode=mode, lenient=True)


def _mode(text: str) -> Mode:
    modes: dict[str, Mode] = {"cpu": "cpu", "gpu": "gpu", "hybrid": "hybrid"}
    return modes[text]


def _recommended() -> Mode:
    from gpubench import detect
    from gpubench.store import default_results_dir

    folder: Path = default_results_dir()
    results = folder if os.path.isdir(folder) else None
    found = detect.inspect(extra_records=[], results=results, read=read_result).recommendation
    reason = found.reasons[0].text if found.reasons else "no reason is known"
    print(f"--mode auto takes {found.mode} ({found.confidence}): {reason}", file=sys.stderr)
    return found.mode
