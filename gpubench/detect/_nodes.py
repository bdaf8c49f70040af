"""Device nodes: looked at with stat, never opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from gpubench.detect._drm import CARDS
from gpubench.detect._fact import NOT_PROBED, known
from gpubench.detect._merge import Device
from gpubench.detect._record import Address, address
from gpubench.detect._root import Root
from gpubench.model.facts import Fact
from gpubench.model.machine import Gpu

WSL_NODE = "/dev/dxg"


def state(
    gpu: Gpu, device: Device, nodes: dict[Address, str], look: Callable[[str], str] | None = None
) -> Fact[str]:
    """present, absent or no_permission for the node through which programs reach this GPU."""
    look = look or status
    driver = gpu.driver.name.value
    if driver == "nvidia":
        minor = next((r.ordinal for r in device.records if r.source == "proc-nvidia"), None)
        paths = ["/dev/nvidiactl"] + ([f"/dev/nvidia{minor}"] if minor is not None else [])
    elif device.bdf in nodes:
        paths = [f"/dev/dri/{nodes[device.bdf]}"]
    elif driver is None and look(WSL_NODE) != "absent":
        paths = [WSL_NODE]
    else:
        return NOT_PROBED
    states = [(look(path), path) for path in paths]
    for word in ("absent", "no_permission"):
        for found, path in states:
            if found == word:
                return known(word, path)
    return known("present", states[-1][1])


def status(path: str) -> str:
    """The word for one node."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "no_permission"
    return "present" if os.access(path, os.R_OK | os.W_OK) else "no_permission"


def render_nodes(root: Root) -> dict[Address, str]:
    """Name of the render node of each PCI address."""
    found: dict[Address, str] = {}
    for name in root.names(CARDS) or ():
        if re.fullmatch(r"renderD\d{1,4}", name):
            bdf = address(root.link(f"{CARDS}/{name}/device"))
            if bdf is not None:
                found[bdf] = name
    return found
