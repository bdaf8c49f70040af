"""Detection: what this machine is made of, and whether to compute on its CPU, its GPU or both."""

from gpubench.detect._identity import gpu_for
from gpubench.detect._inspect import inspect, to_json
from gpubench.detect._recording import save_recording
from gpubench.detect._require import lacks
from gpubench.detect.picture import machine_line, render

__all__ = ["gpu_for", "inspect", "lacks", "machine_line", "render", "save_recording", "to_json"]
