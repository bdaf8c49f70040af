"""This machine: files, then the probes that the evidence allows, then what only a live system tells."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpubench.detect import _blas, _files, _nodes, _portable, _visibility
from gpubench.detect._access import Said
from gpubench.detect._fact import NOT_PROBED, known
from gpubench.detect._files import NVIDIA, Files
from gpubench.detect._gpu import Context
from gpubench.detect._intel import INTEGRATED
from gpubench.detect._merge import Device
from gpubench.detect._names import Names
from gpubench.detect._pci import ASLEEP
from gpubench.detect._record import Address, Record
from gpubench.detect._request import Answer, Request
from gpubench.detect._root import Root
from gpubench.model.facts import Fact
from gpubench.model.machine import Cpu, Gpu, MachineWarning, Provider

NVML_LIMIT_S, DRM_LIMIT_S, CPUINFO_LIMIT_S, BLAS_LIMIT_S = 2.0, 2.0, 5.0, 5.0
_QUERIED = ("amdgpu", "i915", "xe")
# An APU with 111 GiB of GTT has been seen to need 5 to 10 s.
DEEP_LIMIT_S = 10.0


class Gathered(NamedTuple):
    """All that was collected about this machine before the merge."""

    files: Files
    providers: list[Provider]
    records: list[Record]
    warnings: list[MachineWarning]
    root: Root


def gather(
    given: Sequence[Record], *, deep: bool, wake: bool, blas: bool = False, root: Root | None = None
) -> Gathered:
    """Read the files, look at the evidence, run the probes side by side; `blas` asks for the BLAS in any case."""
    root = root or Root()
    start = time.perf_counter()
    affinity = _portable.affinity()
    files = _files.acquire(root, affinity)
    files = _portable.completed(files, affinity)
    providers = [Provider(name="files", status="ok", took_s=round(time.perf_counter() - start, 6))]
    requests, skipped = plan(files, deep=deep, wake=wake)
    if deep or blas or _blas.doubtful(files.cpu, os.environ):
        requests.append(Request("blas", DEEP_LIMIT_S if deep else BLAS_LIMIT_S))
    requests += render_queries(files.records, _nodes.render_nodes(root), wake=wake)
    answers = _run(requests)
    records = [*files.records, *given] + [record for answer in answers for record in answer.records]
    cpu = _with_probes(files.cpu, answers)
    providers += skipped + [answer.provider for answer in answers]
    providers.sort(key=lambda provider: (provider.name != "files", provider.name))
    warnings = _blas.warnings(cpu) + _runtime_warnings(files, answers)
    return Gathered(files._replace(cpu=cpu), providers, records, warnings, root)


def _run(requests: Sequence[Request]) -> list[Answer]:
    if not requests:
        return []
    from gpubench.detect import _child  # subprocess costs 3 ms of start-up, and most machines need no probe

    return _child.run(requests)


def plan(files: Files, *, deep: bool, wake: bool) -> tuple[list[Request], list[Provider]]:
    """The probes to run, and those that were left out although there is evidence for them."""
    requests: list[Request] = []
    skipped: list[Provider] = []
    nvidia = [r for r in files.records if r.vendor_id == NVIDIA and _is_gpu(r)]
    if nvidia or os.path.exists(_nodes.WSL_NODE):
        if wake or not nvidia or any(not _sleeps(r) for r in nvidia):
            requests.append(Request("nvml", NVML_LIMIT_S))
        else:
            hint = "every NVIDIA GPU sleeps; --wake asks nevertheless"
            skipped.append(Provider(name="nvml", status="not_probed", hint=hint))
    if files.cpu.model.status == "absent" and sys.platform != "linux":
        requests.append(Request("cpuinfo", CPUINFO_LIMIT_S))
    asleep = [r for r in files.records if _is_gpu(r) and _sleeps(r)]
    if deep and asleep and not wake:
        hint = "a GPU sleeps, and opening the devices would wake it; --wake does it nevertheless"
        skipped += [Provider(name=name, status="not_probed", hint=hint) for name in ("cuda", "wgpu")]
    elif deep:
        names = ["cuda"] if nvidia or os.path.exists(_nodes.WSL_NODE) else []
        requests += [Request(name, DEEP_LIMIT_S) for name in (*names, "wgpu")]
    return requests, skipped


def render_queries(records: Sequence[Record], nodes: Mapping[Address, str], *, wake: bool) -> list[Request]:
    """Queries on the render nodes of AMD and Intel GPUs whose kind or memory no file told, if they are awake."""
    asked = []
    for record in records:
        driver = record.facts.get("driver.name")
        if record.bdf is None or record.bdf not in nodes or (_sleeps(record) and not wake):
            continue
        if driver is None or driver.value not in _QUERIED:
            continue
        fact = record.facts.get("kind" if driver.value == "amdgpu" else "memory.dedicated_bytes")
        integrated = driver.value != "amdgpu" and record.bdf == INTEGRATED
        if not integrated and (fact is None or fact.value is None):
            asked.append({"node": nodes[record.bdf], "bdf": str(record.bdf), "driver": driver.value})
    return [Request("drm", DRM_LIMIT_S, {"nodes": asked})] if asked else []


def access(gathered: Gathered, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> dict[str, Said]:
    """What live sources say about reaching each GPU, by id."""
    hiding = _visibility.hidden(gpus, environ)
    nvml = next((p for p in gathered.providers if p.name == "nvml"), None)
    mismatch = nvml is not None and nvml.status == "mismatch"
    statuses = {p.name: p.status for p in gathered.providers}
    found = {}
    for gpu in gpus:
        nvidia = gpu.vendor.value == "nvidia"
        codes: tuple[str, ...] = ("DRIVER_MISMATCH",) if mismatch and nvidia else ()
        if nvidia and statuses.get("cuda") == "absent" and not any(api.startswith("wgpu") for api in gpu.apis):
            codes += ("RUNTIME_MISSING",)
        found[gpu.id] = Said(NOT_PROBED, hiding[gpu.id], codes)
    return found


def context(gathered: Gathered, debug: bool) -> Context:
    """What the GPUs of this machine depend on."""
    soc = gathered.files.soc.value is not None
    return Context(True, gathered.files.memory, debug, soc, Names(gathered.root))


def said(
    gathered: Gathered, environ: Mapping[str, str], gpus: Sequence[Gpu], devices: Sequence[Device]
) -> list[Said]:
    """`access` with the states of the device nodes, in the order of `gpus`."""
    nodes = _nodes.render_nodes(gathered.root)
    table = access(gathered, environ, gpus)
    return [
        table[gpu.id]._replace(device_node=_nodes.state(gpu, device, nodes))
        for gpu, device in zip(gpus, devices, strict=True)
    ]


def _is_gpu(record: Record) -> bool:
    return record.source == "proc-nvidia" or (record.pci_class or 0x0300) >> 8 in (0x03, 0x12)


def _sleeps(record: Record) -> bool:
    state: Fact[Any] | None = record.facts.get("power.state")
    return state is not None and state.value in ASLEEP


def _with_probes(cpu: Cpu, answers: Sequence[Answer]) -> Cpu:
    """The CPU with its BLAS and, without /proc, with what py-cpuinfo says."""
    extra = {answer.provider.name: answer for answer in answers}
    if "blas" in extra:
        cpu = msgspec.structs.replace(cpu, blas=_blas.fact(extra["blas"]))
    told = extra["cpuinfo"].extra.get("cpu") if "cpuinfo" in extra else None
    if isinstance(told, dict):
        facts = {
            key: known(told[key], "cpuinfo") for key in ("model", "vendor") if isinstance(told.get(key), str)
        }
        cpu = msgspec.structs.replace(cpu, **facts)
    return cpu


def _runtime_warnings(files: Files, answers: Sequence[Answer]) -> list[MachineWarning]:
    """An NVIDIA driver without CuPy: named with the extra that fits the driver."""
    bound = [
        r
        for r in files.records
        if r.vendor_id == NVIDIA and (f := r.facts.get("driver.name")) and f.value == "nvidia"
    ]
    if not bound or importlib.util.find_spec("cupy") is not None:
        return []
    extra = "cuda12 or cuda13"
    for answer in answers:
        cuda = answer.extra.get("cuda_driver")
        if isinstance(cuda, int):
            extra = "cuda13" if cuda >= 13000 else "cuda12"
    text = f"CuPy is not installed, so nothing can be measured through CUDA: pip install 'gpubench[{extra}]'."
    return [MachineWarning(code="RUNTIME_MISSING", text=text, refs=["cupy"])]
