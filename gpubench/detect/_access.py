"""Whether a GPU can be used from here: driver, device node, permission, environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gpubench.detect._fact import ABSENT, NOT_PROBED, known
from gpubench.model.facts import Fact
from gpubench.model.machine import Access, Gpu

_BLOCKED_NODE = {"absent": "NOT_EXPOSED", "no_permission": "NO_PERMISSION"}


class Said(NamedTuple):
    """What live sources add: state of the device node, the hiding variable, codes of failed probes."""

    device_node: Fact[str] = NOT_PROBED
    hidden_by_env: Fact[str] = NOT_PROBED
    codes: tuple[str, ...] = ()


def judge(gpu: Gpu, said: Said, live: bool) -> Gpu:
    """The GPU with `usable`, `why_not` and `access`."""
    codes, source = [], ""
    driver = gpu.driver.name
    if driver.status == "absent" and driver.source:
        codes, source = ["NO_DRIVER"], driver.source
    elif driver.value == "vfio-pci":
        codes, source = ["PASSED_THROUGH"], driver.source or ""
    if said.device_node.value in _BLOCKED_NODE and not codes:
        codes, source = [_BLOCKED_NODE[said.device_node.value]], said.device_node.source or ""
    codes += [code for code in (*gpu.why_not, *said.codes) if code not in codes]
    if said.hidden_by_env.value is not None:
        codes.append("HIDDEN_BY_ENV")
        source = source or said.hidden_by_env.source or ""
    if gpu.compute.mode.value == "prohibited":
        codes.append("COMPUTE_PROHIBITED")
        source = source or gpu.compute.mode.source or ""
    usable = known(False, source or "probe") if codes else _positive(gpu, said, live)
    access = Access(device_node=said.device_node, hidden_by_env=said.hidden_by_env)
    return msgspec.structs.replace(gpu, usable=usable, why_not=codes, access=access)


def _positive(gpu: Gpu, said: Said, live: bool) -> Fact[Any]:
    """Usable: an API lists it, or live, its device node can be opened; recorded input cannot tell."""
    if gpu.usable.value is not None:
        return gpu.usable
    if not live:
        return NOT_PROBED
    for api in gpu.apis:
        return known(True, api)
    return known(True, said.device_node.source or "") if said.device_node.value == "present" else ABSENT
