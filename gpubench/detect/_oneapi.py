"""Which Intel GPUs the variables of Level Zero and of SYCL leave visible. Pure: text in, verdict out.

ZE_AFFINITY_MASK filters first; ONEAPI_DEVICE_SELECTOR then counts what is left. Numbers follow the driver's
order, which is the bus order only where it is asked for, or where all GPUs are of one model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpubench.detect._fact import ABSENT, known, missing
from gpubench.model.facts import Fact
from gpubench.model.machine import Gpu

MASK, SELECTOR, BY_BUS = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
# A term is `backend:devices`, accepted or, after "!", refused.
_TERM = re.compile(r"(!?)(\*|[a-z_]+):([*a-z0-9.,]+)", re.I)
# Intel GPUs are reached through the first three; a term for another backend leaves none of them.
_KNOWN = ("*", "level_zero", "opencl", "cuda", "hip", "native_cpu", "esimd_emulator", "offload")
_DEVICE = re.compile(r"(\*|cpu|gpu|fpga|acc|\d{1,4})(\.(\*|\d{1,4}))*", re.I)

Seen = tuple[bool, ...] | None  # by number; None: the text names no device that could be told


def hidden(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """`access.hidden_by_env` by GPU id, for those of Intel."""
    left, verdicts = list(gpus), {gpu.id: ABSENT for gpu in gpus}
    ordered = environ.get(BY_BUS) == "1" or len({gpu.device_id.value for gpu in gpus}) == 1
    for variable, judge in ((MASK, masked), (SELECTOR, selected)):
        text = environ.get(variable)
        if text is None or not left:
            continue
        seen = judge(text, len(left))
        if seen is None or not (ordered or len(set(seen)) == 1):
            order = "its numbers follow the driver's order, not the bus" if seen else "cannot be understood"
            doubt = missing("not_probed" if seen else "invalid", variable, f"{variable}={text}: {order}")
            return verdicts | {gpu.id: doubt for gpu in left}
        verdicts |= {
            gpu.id: known(variable, variable) for gpu, shown in zip(left, seen, strict=True) if not shown
        }
        left = [gpu for gpu, shown in zip(left, seen, strict=True) if shown]
    return verdicts


def masked(text: str, count: int) -> Seen:
    """ZE_AFFINITY_MASK: devices, or tiles of them ("0,1.0"); numbers beyond the last are ignored."""
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"\d{1,4}(\.\d{1,4})*", item) for item in items):
        return None
    numbers = {int(item.partition(".")[0]) for item in items}
    return tuple(n in numbers for n in range(count))


def selected(text: str, count: int) -> Seen:
    """ONEAPI_DEVICE_SELECTOR: shown if, on one backend, a term accepts it and none refuses it.

    Refusals alone accept all the rest.
    """
    accepted: list[tuple[str, set[int]]] = []
    refused: list[tuple[str, set[int]]] = []
    for text_of_term in text.split(";"):
        term = _TERM.fullmatch(text_of_term.strip())
        numbers = _numbers(term[3], count) if term else None
        if term is None or numbers is None or term[2].lower() not in _KNOWN:
            return None
        (refused if term[1] else accepted).append((term[2].lower(), numbers))
    accepted = accepted or [("*", set(range(count)))]

    def shown(n: int, backend: str) -> bool:
        yes, no = (
            any(name in ("*", backend) and n in of for name, of in terms) for terms in (accepted, refused)
        )
        return yes and not no

    return tuple(any(shown(n, backend) for backend in ("level_zero", "opencl")) for n in range(count))


def _numbers(devices: str, count: int) -> set[int] | None:
    """The GPUs that a list of devices names; None if it is no such list."""
    found: set[int] = set()
    for item in devices.lower().split(","):
        device = _DEVICE.fullmatch(item)
        if device is None:
            return None
        if device[1] in ("*", "gpu"):
            found |= set(range(count))
        elif device[1].isdigit() and int(device[1]) < count:
            found.add(int(device[1]))
    return found
