"""Whether a GPU can be used from here: driver, permission, environment, and the device node, which is never opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.cards import CARDS
from gpubench.detect.merge import MergedDevice
from gpubench.detect.records import ABSENT, Address, address, known, missing, uuid_key
from gpubench.detect.root import Root
from gpubench.result.machine import NOT_PROBED, Access, Fact, Gpu

WSL_NODE = "/dev/dxg"
_BLOCKED_NODE = {"absent": "NOT_EXPOSED", "no_permission": "NO_PERMISSION"}


class Said(NamedTuple):
    """What live sources add: state of the device node, the hiding variable, codes of failed probes."""

    device_node: Fact[str] = NOT_PROBED
    hidden_by_env: Fact[str] = NOT_PROBED
    codes: tuple[str, ...] = ()


def judge_access(gpu: Gpu, said: Said, live: bool) -> Gpu:
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


def node_state(
    gpu: Gpu, device: MergedDevice, nodes: dict[Address, str], look: Callable[[str], str] | None = None
) -> Fact[str]:
    """present, absent or no_permission for the node through which programs reach this GPU."""
    look = look or node_status
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
    # The worst of them; of equally bad ones the first, of good ones the last.
    states = [(look(path), path) for path in paths]
    worst = [known(*state) for word in ("absent", "no_permission") for state in states if state[0] == word]
    return worst[0] if worst else known(*states[-1])


def node_status(path: str) -> str:
    try:
        os.stat(path)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "no_permission"
    return "present" if os.access(path, os.R_OK | os.W_OK) else "no_permission"


def render_nodes(root: Root) -> dict[Address, str]:
    found: dict[Address, str] = {}
    for name in root.names(CARDS) or ():
        if re.fullmatch(r"renderD\d{1,4}", name):
            bdf = address(root.link(f"{CARDS}/{name}/device"))
            if bdf is not None:
                found[bdf] = name
    return found


MASK, SELECTOR, BY_BUS = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
# A term is `backend:devices`, accepted or, after "!", refused.
_TERM = re.compile(r"(!?)(\*|[a-z_]+):([*a-z0-9.,]+)", re.I)
# Intel GPUs are reached through the first three; a term for another backend leaves none of them.
_KNOWN = ("*", "level_zero", "opencl", "cuda", "hip", "native_cpu", "esimd_emulator", "offload")
_DEVICE = re.compile(r"(\*|cpu|gpu|fpga|acc|\d{1,4})(\.(\*|\d{1,4}))*", re.I)

Seen = tuple[bool, ...] | None  # by number; None: the text names no device that could be recognised


class Visible(NamedTuple):
    """What one list names: ordinals, or else uuids in full."""

    ordinals: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()


def parse_visible(text: str, count: int, uuids: Sequence[str] = ()) -> Visible:
    """The visible devices of a list: it ends at its first invalid token, and a duplicate empties it.

    Integers and uuids do not mix; a uuid may be cut short as long as one device alone begins with it.
    """
    ordinals: list[int] = []
    named: list[str] = []
    for token in (part.strip() for part in text.split(",")):
        if token.isascii() and token.isdigit() and int(token) < count and not named:
            ordinals.append(int(token))
            continue
        cut = bool(re.match(r"(GPU|MIG)-.", token))
        fitting = [uuid for uuid in uuids if cut and uuid.lower().startswith(token.lower())]
        if len(fitting) != 1 or ordinals:
            break
        named.append(fitting[0])
    if len(set(ordinals)) < len(ordinals) or len(set(named)) < len(named):
        return Visible()
    return Visible(tuple(ordinals), tuple(named))


def hidden(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """`access.hidden_by_env` by GPU id: the variable that hides it; absent if none does."""
    found = {gpu.id: ABSENT for gpu in gpus}
    for vendor, judge in (("nvidia", _nvidia), ("amd", _amd), ("intel", _intel)):
        found |= judge([gpu for gpu in gpus if gpu.vendor.value == vendor], environ)
    return found


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
    seen = parse_visible(text, len(gpus), list(owners))
    if not seen.ordinals:
        shown = {owners[uuid] for uuid in seen.uuids}
        return _hide(gpus, [gpu for gpu in gpus if gpu.id in shown], variable)
    # The default order is fastest first: position is known only where all models are equal.
    alike = len({(gpu.device_id.value, gpu.name.value) for gpu in gpus}) == 1
    if alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(seen.ordinals) == len(gpus):
        return _hide(gpus, [gpu for n, gpu in enumerate(gpus) if n in seen.ordinals], variable)
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
        seen = parse_visible(text, len(left), [gpu.uuid.value for gpu in left if gpu.uuid.value])
        keys = {uuid_key(uuid) for uuid in seen.uuids}
        kept = [
            gpu for n, gpu in enumerate(left) if n in seen.ordinals or uuid_key(gpu.uuid.value or "") in keys
        ]
        verdicts |= _hide(left, kept, variable)
        left = kept
    return verdicts


def _hide(gpus: list[Gpu], shown: list[Gpu], variable: str) -> dict[str, Fact[str]]:
    return {gpu.id: known(variable, variable) for gpu in gpus if gpu not in shown}


def _intel(gpus: list[Gpu], environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """The mask of Level Zero filters first; the selector of SYCL then counts what is left.

    Numbers follow the driver's order, which is the bus order only where it is asked for, or where all GPUs are of
    one model.
    """
    left: list[Gpu] = gpus
    verdicts: dict[str, Fact[str]] = {}
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
        kept = [gpu for gpu, shown in zip(left, seen, strict=True) if shown]
        verdicts |= _hide(left, kept, variable)
        left = kept
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
