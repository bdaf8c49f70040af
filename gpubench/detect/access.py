"""Whether a GPU can be used from here: driver, permission, environment, and the device node, which is never opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.detect.cards import CARDS
from gpubench.detect.merge import MergedDevice
from gpubench.detect.records import ABSENT, Address, address, make_fact, missing, uuid_key
from gpubench.detect.root import Root
from gpubench.result.machine import NOT_PROBED, Access, Fact, Gpu, Provider, Status

WSL_NODE = "/dev/dxg"
_BLOCKED_NODE = {"absent": "NOT_EXPOSED", "no_permission": "NO_PERMISSION"}


class Said(NamedTuple):
    """The findings of live sources: state of the device node, the hiding variable, codes of failed probes."""

    device_node: Fact[str] = NOT_PROBED
    hidden_by_env: Fact[str] = NOT_PROBED
    codes: tuple[str, ...] = ()


def judge_access(gpu: Gpu, reach: Said | None, live: bool) -> Gpu:
    """The GPU with `usable`, `why_not` and `access`."""
    reach = reach or Said()
    codes, source = [], ""
    driver, node, hiding = gpu.driver.name, reach.device_node, reach.hidden_by_env
    if driver.status == "absent" and driver.source:
        codes, source = ["NO_DRIVER"], driver.source
    elif driver.value == "vfio-pci":
        codes, source = ["PASSED_THROUGH"], driver.source or ""
    elif node.value in _BLOCKED_NODE:
        codes, source = [_BLOCKED_NODE[node.value]], node.source or ""
    codes += [code for code in (*gpu.why_not, *reach.codes) if code not in codes]
    for blocked, code, fact in (
        (hiding.value is not None, "HIDDEN_BY_ENV", hiding),
        (gpu.compute.mode.value == "prohibited", "COMPUTE_PROHIBITED", gpu.compute.mode),
    ):
        if blocked:
            codes.append(code)
            source = source or fact.source or ""
    usable = make_fact(False, source or "probe") if codes else _positive(gpu, node, live)
    access = Access(device_node=node, hidden_by_env=hiding)
    return msgspec.structs.replace(gpu, usable=usable, why_not=codes, access=access)


def _positive(gpu: Gpu, node: Fact[str], live: bool) -> Fact[Any]:
    """Usable: an API lists it, or live, its device node can be opened; recorded input cannot tell."""
    if not live:
        return NOT_PROBED
    sources = [*gpu.apis, *([node.source] if node.value == "present" else [])]
    return make_fact(True, sources[0]) if sources else ABSENT


def read_access(
    providers: Sequence[Provider], environ: Mapping[str, str], gpus: Sequence[Gpu], devices: Sequence[MergedDevice],
    nodes: Mapping[Address | None, str],
) -> dict[str, Said]:  # fmt: skip
    """Return by id what live sources say about reaching each GPU; `nodes` are the names of the render nodes."""
    statuses = {provider.name: provider.status for provider in providers}
    hiding = hidden(gpus, environ)
    reach = {}
    for gpu, device in zip(gpus, devices, strict=True):
        codes: tuple[str, ...] = ()
        if gpu.vendor.value == "nvidia":
            codes = ("DRIVER_MISMATCH",) if statuses.get("nvml") == "mismatch" else ()
            if statuses.get("cuda") == "absent" and not any(api.startswith("wgpu") for api in gpu.apis):
                codes += ("RUNTIME_MISSING",)
        reach[gpu.id] = Said(_node_state(gpu, device, nodes), hiding[gpu.id], codes)
    return reach


def _node_state(gpu: Gpu, device: MergedDevice, nodes: Mapping[Address | None, str]) -> Fact[str]:
    """present, absent or no_permission for the node through which programs reach this GPU."""
    driver = gpu.driver.name.value
    if driver == "nvidia":
        minor = next((r.ordinal for r in device.records if r.source == "proc-nvidia"), None)
        paths = ["/dev/nvidiactl"] + ([f"/dev/nvidia{minor}"] if minor is not None else [])
    elif device.bdf in nodes:
        paths = [f"/dev/dri/{nodes[device.bdf]}"]
    elif driver is None and node_status(WSL_NODE) != "absent":
        paths = [WSL_NODE]
    else:
        return NOT_PROBED
    # The worst of them; of equally bad ones the first, of good ones the last.
    states = [make_fact(node_status(path), path) for path in paths]
    blocked = [state for word in ("absent", "no_permission") for state in states if state.value == word]
    return blocked[0] if blocked else states[-1]


def node_status(path: str) -> str:
    try:
        os.stat(path)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "no_permission"
    return "present" if os.access(path, os.R_OK | os.W_OK) else "no_permission"


def render_nodes(root: Root) -> Mapping[Address | None, str]:
    """The names of the render nodes by the address of their GPU."""
    names = [name for name in root.names(CARDS) or () if re.fullmatch(r"renderD\d{1,4}", name)]
    return {bdf: name for name in names if (bdf := address(root.link(f"{CARDS}/{name}/device"))) is not None}


MASK, SELECTOR, BY_BUS = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
# A term is `backend:devices`, accepted or, after "!", refused.
_TERM = re.compile(r"(!?)(\*|[a-z_]+):([*a-z0-9.,]+)", re.I)
# Intel GPUs are reached through the first three; a term for another backend leaves none of them.
_KNOWN = ("*", "level_zero", "opencl", "cuda", "hip", "native_cpu", "esimd_emulator", "offload")
_DEVICE = re.compile(r"(\*|cpu|gpu|fpga|acc|\d{1,4})(\.(\*|\d{1,4}))*", re.I)

Seen = tuple[bool, ...] | None  # by number; None: the text names no device that could be recognised


class Visible(NamedTuple):
    """The devices that one list names: ordinals, or else uuids in full."""

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
    """`access.hidden_by_env` by GPU id: the variable that hides it; absent if none does.

    The first variable of a vendor filters, and the next one counts what is visible.
    """
    verdicts = {gpu.id: ABSENT for gpu in gpus}
    for vendor, (judge, variables) in _FILTERS.items():
        visible = [gpu for gpu in gpus if gpu.vendor.value == vendor]
        for variable in variables:
            if variable not in environ or not visible:
                continue
            shown = judge(variable, visible, environ)
            if isinstance(shown, Fact):
                verdicts |= {gpu.id: shown for gpu in visible}
                break
            verdicts |= {gpu.id: make_fact(variable, variable) for gpu in visible if gpu not in shown}
            visible = shown
    return verdicts


def _cuda(variable: str, gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu] | Fact[str]:
    """The GPUs that the list shows, or the reason why nobody knows."""
    owners = {
        uuid: gpu.id
        for gpu in gpus
        for uuid in (gpu.uuid.value, *(p.id for p in gpu.compute.partitions))
        if uuid
    }
    seen = parse_visible(environ[variable], len(gpus), list(owners))
    if not seen.ordinals:
        shown = {owners[uuid] for uuid in seen.uuids}
        return [gpu for gpu in gpus if gpu.id in shown]
    # The default order is fastest first: position is known only where all models are equal.
    alike = len({(gpu.device_id.value, gpu.name.value) for gpu in gpus}) == 1
    if alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(seen.ordinals) == len(gpus):
        return [gpu for n, gpu in enumerate(gpus) if n in seen.ordinals]
    note = f"{variable}={environ[variable]}: its numbers follow speed, not the bus"
    return missing("not_probed", variable, note)


def _rocm(variable: str, gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    if any(gpu.compute.partitions for gpu in gpus):
        return gpus  # the numbers count partitions, whose order no file tells
    seen = parse_visible(environ[variable], len(gpus), [gpu.uuid.value for gpu in gpus if gpu.uuid.value])
    keys = set(map(uuid_key, seen.uuids))
    return [gpu for n, gpu in enumerate(gpus) if n in seen.ordinals or uuid_key(gpu.uuid.value or "") in keys]


def _oneapi(variable: str, gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu] | Fact[str]:
    """Numbers follow the driver's order, which is the bus order only where it is asked for, or where all GPUs are of
    one model."""
    seen = (read_mask if variable == MASK else read_selector)(environ[variable], len(gpus))
    ordered = environ.get(BY_BUS) == "1" or len({gpu.device_id.value for gpu in gpus}) == 1
    if seen is None or not (ordered or len(set(seen)) == 1):
        why = "its numbers follow the driver's order, not the bus" if seen else "cannot be understood"
        status: Status = "not_probed" if seen else "invalid"
        return missing(status, variable, f"{variable}={environ[variable]}: {why}")
    return [gpu for gpu, shown in zip(gpus, seen, strict=True) if shown]


_Judge = Callable[[str, list[Gpu], Mapping[str, str]], "list[Gpu] | Fact[str]"]
_FILTERS: Mapping[str, tuple[_Judge, Sequence[str]]] = {
    "nvidia": (_cuda, ("CUDA_VISIBLE_DEVICES",)),
    "amd": (_rocm, ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    "intel": (_oneapi, (MASK, SELECTOR)),
}


def read_mask(text: str, count: int) -> Seen:
    """ZE_AFFINITY_MASK: devices, or tiles of them ("0,1.0"); numbers beyond the last are ignored."""
    items = [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"\d{1,4}(\.\d{1,4})*", item) for item in items):
        return None
    numbers = {int(item.partition(".")[0]) for item in items}
    return tuple(n in numbers for n in range(count))


def read_selector(text: str, count: int) -> Seen:
    """ONEAPI_DEVICE_SELECTOR: shown if, on one backend, a term accepts it and none refuses it.

    Refusals alone accept all the rest.
    """
    terms: dict[bool, list[tuple[str, set[int]]]] = {True: [], False: []}  # that accept, and that refuse
    for text_of_term in text.split(";"):
        term = _TERM.fullmatch(text_of_term.strip())
        numbers = _numbers(term[3], count) if term else None
        if term is None or numbers is None or term[2].lower() not in _KNOWN:
            return None
        terms[not term[1]].append((term[2].lower(), numbers))
    terms[True] = terms[True] or [("*", set(range(count)))]

    def lists(n: int, backend: str, *, accepts: bool) -> bool:
        return any(name in ("*", backend) and n in numbers for name, numbers in terms[accepts])

    return tuple(
        any(
            lists(n, backend, accepts=True) and not lists(n, backend, accepts=False)
            for backend in ("level_zero", "opencl")
        )
        for n in range(count)
    )


def _numbers(devices: str, count: int) -> set[int] | None:
    """The GPUs that a list of devices names; None if it is no such list."""
    numbers: set[int] = set()
    for item in devices.lower().split(","):
        device = _DEVICE.fullmatch(item)
        if device is None:
            return None
        if device[1] in ("*", "gpu"):
            numbers |= set(range(count))
        elif device[1].isdigit() and int(device[1]) < count:
            numbers.add(int(device[1]))
    return numbers
