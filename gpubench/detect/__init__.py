"""The hardware of this machine, and the recommendation to compute on its CPU, its GPU or both.

`gpubench.detect()` inspects the machine. It returns an object that prints as `gpubench detect` does, with `mode`
("cpu", "gpu" or "hybrid") and `machine`, the whole description.

The command line, the Python interface and the start of a run call this package. The probes of libraries run in
child processes.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubench.detect.host import differences, this_host
    from gpubench.detect.inspection import gather, inspect, to_json, user_limit_s
    from gpubench.detect.merge import gpu_for
    from gpubench.detect.picture import machine_line, render
    from gpubench.detect.recommend import PROBED, Lack, lacks
    from gpubench.detect.recording import save_recording

# The modules are imported on first use, because a probe's child process and a JSON report need few of them, and
# start-up time counts.
_HOMES = {
    "PROBED": "recommend", "Lack": "recommend", "differences": "host", "gather": "inspection", "gpu_for": "merge",
    "inspect": "inspection", "lacks": "recommend", "machine_line": "picture", "render": "picture",
    "read_this_host": "host", "save_recording": "recording", "this_host": "host", "to_json": "inspection",
    "user_limit_s": "inspection",
}  # fmt: skip

__all__ = [
    "PROBED",
    "Lack",
    "differences",
    "gather",
    "gpu_for",
    "inspect",
    "lacks",
    "machine_line",
    "read_this_host",
    "render",
    "save_recording",
    "this_host",
    "to_json",
    "user_limit_s",
]


class _CallableModule(types.ModuleType):
    """The class of this package, which makes `gpubench.detect()` callable."""

    def __call__(self) -> Any:
        """Inspect the machine and return its description, like `gpubench.api.detect`."""
        return importlib.import_module("gpubench.api").detect()


sys.modules[__name__].__class__ = _CallableModule


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
