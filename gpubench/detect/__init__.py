"""Detection: what this machine is made of, and whether to compute on its CPU, its GPU or both."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpubench.detect._host import differences
    from gpubench.detect._identity import gpu_for
    from gpubench.detect._inspect import inspect, to_json
    from gpubench.detect._recording import save_recording
    from gpubench.detect._require import lacks
    from gpubench.detect.picture import machine_line, render

# Resolved on first use: a probe's child and a JSON report need few of these, and start-up is measured.
_HOMES = {
    "differences": "_host", "gpu_for": "_identity", "inspect": "_inspect", "lacks": "_require",
    "machine_line": "picture", "render": "picture", "save_recording": "_recording", "to_json": "_inspect",
}  # fmt: skip

__all__ = ["differences", "gpu_for", "inspect", "lacks", "machine_line", "render", "save_recording", "to_json"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
