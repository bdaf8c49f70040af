"""Which GPUs the environment hides from CUDA, ROCm and oneAPI. Pure: variables and devices in, verdicts out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpubench.detect import _oneapi
from gpubench.detect._fact import ABSENT, known, missing
from gpubench.detect._record import uuid_key
from gpubench.model.facts import Fact
from gpubench.model.machine import Gpu


class Visible(NamedTuple):
    """What one list names: ordinals, or else uuids in full."""

    ordinals: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()


def parse(text: str, count: int, uuids: Sequence[str] = ()) -> Visible:
    """The visible devices of a list: it ends at its first invalid token, and a duplicate empties it.

    Integers and uuids do not mix; a uuid may be cut short as long as one device alone begins with it.
    """
    ordinals: list[int] = []
    named: list[str] = []
    for token in (part.strip() for part in text.split(",")):
        if token.isascii() and token.isdigit() and int(token) < count and not named:
            ordinals.append(int(token))
            continue
        fitting = [uuid for uuid in uuids if _begins(uuid, token)]
        if len(fitting) != 1 or ordinals:
            break
        named.append(fitting[0])
    if len(set(ordinals)) < len(ordinals) or len(set(named)) < len(named):
        return Visible()
    return Visible(tuple(ordinals), tuple(named))


def hidden(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """`access.hidden_by_env` by GPU id: the variable that hides it; absent if none does."""
    found = {gpu.id: ABSENT for gpu in gpus}
    for vendor, judge in (("nvidia", _nvidia), ("amd", _amd), ("intel", _oneapi.hidden)):
        found |= judge([gpu for gpu in gpus if gpu.vendor.value == vendor], environ)
    return found


def _begins(uuid: str, token: str) -> bool:
    return bool(re.match(r"(GPU|MIG)-.", token)) and uuid.lower().startswith(token.lower())


def _nvidia(gpus: list[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    variable = "CUDA_VISIBLE_DEVICES"
    text = environ.get(variable)
    if text is None or not gpus:
        return {}
    owners = {
        uuid: gpu.id
        for gpu in gpus
        for uuid in (gpu.uuid.value, *(p.id for p in gpu.compute.partitions))
        if uuid
    }
    seen = parse(text, len(gpus), list(owners))
    if not seen.ordinals:
        shown = {owners[uuid] for uuid in seen.uuids}
        return {gpu.id: _verdict(gpu.id in shown, variable) for gpu in gpus}
    # The default order is fastest first: position is known only where all models are equal.
    alike = len({(gpu.device_id.value, gpu.name.value) for gpu in gpus}) == 1
    if alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(seen.ordinals) == len(gpus):
        return {gpu.id: _verdict(n in seen.ordinals, variable) for n, gpu in enumerate(gpus)}
    note = f"{variable}={text}: its numbers follow speed, not the bus"
    return {gpu.id: missing("not_probed", variable, note) for gpu in gpus}


def _amd(gpus: list[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """ROCR filters first; the lists of HIP then count what is left."""
    if any(gpu.compute.partitions for gpu in gpus):
        return {}  # the numbers count partitions, whose order no file tells
    left = list(gpus)
    verdicts: dict[str, Fact[str]] = {}
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        text = environ.get(variable)
        if text is None:
            continue
        seen = parse(text, len(left), [gpu.uuid.value for gpu in left if gpu.uuid.value])
        keys = {uuid_key(uuid) for uuid in seen.uuids}
        kept = [
            g
            for n, g in enumerate(left)
            if n in seen.ordinals or (g.uuid.value and uuid_key(g.uuid.value) in keys)
        ]
        verdicts |= {gpu.id: known(variable, variable) for gpu in left if gpu not in kept}
        left = kept
    return verdicts


def _verdict(shown: bool, variable: str) -> Fact[str]:
    return ABSENT if shown else known(variable, variable)
