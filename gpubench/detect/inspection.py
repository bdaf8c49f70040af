"""One inspection of a machine: read the files, run the probes for which there is evidence, and add the facts of
the live system."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from gpubench.base import AMD, NVIDIA, disk
from gpubench.base.errors import name_limit
from gpubench.base.installation import cupy_commands, install_command, torch_command
from gpubench.base.streams import encode_json, inert_json, printable
from gpubench.detect.cpu import blas_warnings, doubtful_blas
from gpubench.detect.facts import ABSENT, DeviceRecord, Root, first_field, make_fact, missing, parse_record
from gpubench.detect.gpu import (
    GpuContext,
    accelerators,
    build_gpus,
    display_adapters,
    hidden,
    software_renderers,
)
from gpubench.detect.host import CpuinfoFacts, Files, read_cpuinfo, read_files, read_this_host
from gpubench.detect.merge import MergedDevice, find_gpu, merge
from gpubench.detect.pci import ASLEEP, CHIP_NODE, FREE_DRIVERS, name_of
from gpubench.detect.recommend import Reader, apply_results, recommend, verify
from gpubench.detect.vendors import NVIDIA_FOLDER
from gpubench.result.machine import (
    NOT_PROBED,
    Access,
    Cpu,
    CpuBlas,
    Fact,
    Gpu,
    Machine,
    MachineWarning,
    Mode,
    Platform,
    Provider,
    Status,
)

if TYPE_CHECKING:
    from gpubench.base.processes import Ended


class Gathered(NamedTuple):
    """All facts about a machine before the records are merged."""

    files: Files  # the machine as its files describe it
    root: Root | None = None  # the root of the files; None if no files were read
    providers: Sequence[Provider] = ()  # the outcome of each source
    records: Sequence[DeviceRecord] = ()  # the records of the probes
    warnings: Sequence[MachineWarning] = ()  # warnings about the BLAS and missing libraries
    took_s: float = 0.0  # the time of the whole detection, in seconds


def inspect(
    *, sysroot: Path | None = None, records: list[dict[str, Any]] | None = None,
    extra_records: Iterable[dict[str, Any]] | None = None, mode: str | None = None, debug: bool = False,
    results: Path | None = None, read: Reader | None = None, gathered: Gathered | None = None,
) -> Machine:  # fmt: skip
    """Return the description of this machine, of a recorded machine (`sysroot`), or of the devices in
    `records`. Raises ValueError for a malformed record.

    `extra_records` are further records, and `gathered` is an earlier result of `gather`. Without a `mode`,
    `results` (a folder or file) can decide it, and `read` turns a result into evidence. `debug` keeps the raw
    records.
    """
    start = time.perf_counter() - (gathered.took_s if gathered else 0.0)
    extra = [parse_record(raw) for raw in (*(records or ()), *(extra_records or ()))]
    live = records is None and sysroot is None
    if records is not None:
        blank = Machine()
        files = Files(Platform(), blank.cpu, blank.memory, blank.numa, [], [], ["records"], NOT_PROBED, False)
        gathered = Gathered(files)
    elif sysroot is not None:
        root = Root(str(sysroot))
        files = read_files(root, NOT_PROBED)
        gathered = Gathered(files, root, [_files_provider(start)])
    elif gathered is None:
        gathered = gather()
    machine = assemble(gathered, extra, live=live, debug=debug)
    advice = recommend(machine, cast("Mode | None", mode))
    if live:
        lacking = torch_warnings(machine.gpus, wsl=bool(machine.platform.wsl.value))
        machine = replace(machine, warnings=[*machine.warnings, *lacking])
        checked = [record for record in (*extra, *gathered.records) if record.checked]
        ids = {find_gpu(machine, r.uuid, r.bdf, r.vendor_id, r.device_id) for r in checked}
        advice = verify(advice, ids)
    if results is not None and read is not None and mode is None:
        advice = apply_results(machine, advice, results, read)
    return replace(
        machine, sysroot=str(sysroot) if sysroot else None, recommendation=advice,
        took_s=round(time.perf_counter() - start, 6),
    )  # fmt: skip


def _files_provider(start: float) -> Provider:
    return Provider(name="files", status="ok", took_s=round(time.perf_counter() - start, 6))


def assemble(
    gathered: Gathered,
    extra: Sequence[DeviceRecord] = (),
    *,
    live: bool,
    debug: bool = False,
) -> Machine:
    """Return the machine's description without its recommendation. `extra` holds further records of devices.
    `live` is False for a recorded machine, and `debug` keeps the raw records."""
    files = gathered.files
    merged = merge([*files.records, *extra, *gathered.records])
    context = GpuContext(files.memory, files.soc.value is not None, partial(name_of, gathered.root), debug)
    gpus = build_gpus(merged.devices, context)
    if live and gathered.root is not None:
        gpus = read_access(
            gathered.providers, gpus, merged.devices, contained=files.platform.container.value is not None
        )
        numbered = [gpu for gpu in gpus if _UNNUMBERED.isdisjoint(judge_access(gpu, live).why_not)]
        hiding = hidden(numbered, os.environ)
        gpus = [
            replace(gpu, access=replace(gpu.access, hidden_by_env=hiding.get(gpu.id, ABSENT))) for gpu in gpus
        ]
    gpus = [judge_access(gpu, live) for gpu in gpus]
    sources = [*files.gpu_folders, *(device.records[0].source for device in merged.devices)]
    count = missing("absent", None, "no folder of the system lists all GPUs")
    # In a guest of Windows, no folder lists the GPUs behind this node.
    if sources and (gpus or not (files.doubtful or (live and os.path.exists(WSL_NODE)))):
        count = make_fact(len(gpus), sources[0])
    # Where no folder lists GPUs, as in WSL, each adapter is one that nothing else knows.
    odd = merged.warnings if files.gpu_folders and not files.platform.wsl.value else []
    return Machine(
        live=live, providers=list(gathered.providers),
        warnings=[*files.warnings, *gathered.warnings, *odd], platform=files.platform, cpu=files.cpu,
        memory=files.memory, numa=files.numa, gpu_count=count, gpus=gpus, accelerators=accelerators(merged),
        display_adapters=display_adapters(merged), software_renderers=software_renderers(merged),
    )  # fmt: skip


def to_json(machine: Machine) -> str:
    """Return the document of the machine as JSON text, indented and without a line end."""
    return inert_json(msgspec.json.format(encode_json(machine))).decode()


# The time limits of probes. A driver that is not in use is loaded first. On nodes with several NVIDIA GPUs
# without persistence mode this took more than 25 s, on an APU with 111 GiB of GTT 5 to 10 s.
DRIVER_LIMIT_S, LIBRARY_LIMIT_S = 30.0, 10.0
# The longest time of all probes together, and the part of it for ending them.
TOTAL_S, END_S = 40.0, 3.0
LIMIT_VARIABLE = "GPUBENCH_PROBE_LIMIT"
# What each probe waits for, as text.
_WAITING = {
    "nvml": "NVIDIA's driver (NVML)", "cuda": "CUDA (CuPy)", "wgpu": "WebGPU (wgpu)", "drm": "the render nodes",
    "blas": "NumPy's BLAS", "cpuinfo": "py-cpuinfo",
}  # fmt: skip
Tell = Callable[[str], None]


class ProbeRequest(NamedTuple):
    """A request to run a probe."""

    name: str  # the name of the probe
    limit_s: float = DRIVER_LIMIT_S  # the seconds after which the probe is ended
    options: dict[str, Any] = {}  # its keyword arguments
    command: tuple[str, ...] = ()  # another program to run instead, for tests


class ProbeMessage(msgspec.Struct, kw_only=True):
    """The message that a probe writes. A field for which the probe has no answer is None or empty."""

    records: list[dict[str, Any]] = []  # the records of devices, in the form that --records reads
    partial: bool = False  # whether the probe has not finished yet
    status: Status = "ok"  # the status of the library
    version: str | None = None  # the version of the library
    error_code: str | None = None  # the error that the library reported
    hint: str | None = None  # the remedy
    cuda_driver: int | None = None  # the newest CUDA version that NVIDIA's driver supports, such as 13000
    blas: list[CpuBlas] | None = None  # the answer of the probe `blas`
    cpu: CpuinfoFacts | None = None  # the answer of the probe `cpuinfo`


class ProbeAnswer(NamedTuple):
    """The outcome of a probe."""

    provider: Provider  # the probe as a source of the document, with its status
    records: list[DeviceRecord]  # the parsed records
    message: ProbeMessage  # the last message; without an answer if the probe failed


def gather(
    *,
    deep: bool = False,
    wake: bool = False,
    blas: bool = False,
    root: Root | None = None,
    tell: Tell | None = None,
) -> Gathered:
    """Read the files of this machine, and run the probes that they suggest side by side. `deep` opens the
    devices, `wake` also probes sleeping GPUs, and `blas` forces the probe of the BLAS. `tell` takes a line of
    text if probes are slow. Raises UsageError if GPUBENCH_PROBE_LIMIT is no duration."""
    root = root or Root()
    start = time.perf_counter()
    files = read_this_host(root)
    providers = [_files_provider(start)]
    requests, skipped = plan(files, deep=deep, wake=wake)
    if deep or blas or doubtful_blas(files.cpu, os.environ):
        requests.append(ProbeRequest("blas", LIBRARY_LIMIT_S))
    requests += render_queries(files.records, wake=wake)
    limit_s, left_s = user_limit_s(), max(1.0, TOTAL_S - END_S - (time.perf_counter() - start))
    requests = [request._replace(limit_s=limit_s or min(request.limit_s, left_s)) for request in requests]
    answers = run_probes(requests, tell)
    records = [record for answer in answers for record in answer.records]
    cpu = _with_probes(files.cpu, answers)
    providers += sorted(
        (*skipped, *(answer.provider for answer in answers)), key=lambda provider: provider.name
    )
    cuda = max((answer.message.cuda_driver or 0 for answer in answers), default=0)
    bound = any(r.vendor_id == NVIDIA and r.value("driver.name") == "nvidia" for r in files.records)
    capabilities = [
        int(match[1])
        for record in records
        if (match := re.fullmatch(r"sm_(\d{2,3})", record.value("compute.arch") or ""))
    ]
    warnings = blas_warnings(cpu) + runtime_warnings(bound or cuda > 0, cuda or None, capabilities)
    return Gathered(files._replace(cpu=cpu), root, providers, records, warnings, time.perf_counter() - start)


def user_limit_s() -> float | None:
    """Return the time limit of a probe that GPUBENCH_PROBE_LIMIT sets, in seconds, or None if it is not set.
    Raises UsageError if it is not a duration."""
    text = os.environ.get(LIMIT_VARIABLE)
    from gpubench.base.units import parse_duration

    return parse_duration(text, option=LIMIT_VARIABLE) if text else None


def plan(files: Files, *, deep: bool, wake: bool) -> tuple[list[ProbeRequest], list[Provider]]:
    """Return the probes to run, and those that are suggested but skipped. `deep` adds the probes that open
    devices. Without `wake`, no probe runs that would wake a sleeping GPU."""
    requests: list[ProbeRequest] = []
    skipped: list[Provider] = []

    def skip(why: str, *names: str) -> None:
        skipped.extend(Provider(name=name, status="not_probed", hint=why) for name in names)

    # A class that cannot be read may be a GPU's.
    gpus = [record for record in files.records if (record.pci_class or 0x0300) >> 8 in (0x03, 0x12)]
    asleep = [] if wake else [record for record in gpus if _sleeps(record)]
    nvidia = [record for record in gpus if record.vendor_id == NVIDIA]
    unseen, wsl = not files.gpu_folders, os.path.exists(WSL_NODE)
    # no folder can list GPUs, as on Windows and macOS
    if unseen:
        requests.append(ProbeRequest("nvml"))
    elif nvidia and all(record in asleep for record in nvidia):
        skip("every NVIDIA GPU sleeps; --wake asks nevertheless", "nvml")
    elif nvidia or wsl:
        bound = sorted({str(r.bdf) for r in nvidia if r.bdf and r.value("driver.name") == "nvidia"})
        requests.append(ProbeRequest("nvml", options={"addresses": bound}))
    if files.cpu.model.status == "absent" and sys.platform != "linux":
        requests.append(ProbeRequest("cpuinfo", LIBRARY_LIMIT_S))
    if deep and asleep:
        why = "a GPU sleeps, and opening the devices would wake it; --wake does it nevertheless"
        skip(why, "cuda", "wgpu")
    elif deep:
        fit = nvidia + [r for r in gpus if r.vendor_id == AMD and importlib.util.find_spec("cupy")]
        served = any(record.value("driver.name") not in FREE_DRIVERS for record in fit)
        names = ["cuda"] if served or unseen or wsl else []
        requests += map(ProbeRequest, (*names, "wgpu"))
    elif unseen:
        requests.append(ProbeRequest("wgpu", options={"check": False}))
    return requests, skipped


def _sleeps(record: DeviceRecord) -> bool:
    return record.value("power.state") in ASLEEP


# The fact for which the render node of each driver is queried.
_QUERIED = {"amdgpu": "kind", "i915": "memory.dedicated_bytes", "xe": "memory.dedicated_bytes"}


def render_queries(records: Sequence[DeviceRecord], *, wake: bool) -> list[ProbeRequest]:
    """Return a request to query the render nodes of AMD and Intel GPUs whose kind or memory no file reports, or
    an empty list. Integrated GPUs are left out, and sleeping ones unless `wake` is True."""
    queries = []
    for record in records:
        driver = record.value("driver.name")
        if driver not in _QUERIED or None in (record.node, record.bdf) or (_sleeps(record) and not wake):
            continue
        if record.value("kind") != "integrated" and record.value(_QUERIED[driver]) is None:
            queries.append({"node": record.node, "bdf": str(record.bdf), "driver": driver})
    return [ProbeRequest("drm", options={"nodes": queries})] if queries else []


def _with_probes(cpu: Cpu, answers: Sequence[ProbeAnswer]) -> Cpu:
    """Return the CPU with the answers of the probes `blas` and `cpuinfo`."""
    for provider, _, message in answers:
        if provider.name == "blas":
            status = "invalid" if provider.status == "ok" else provider.status
            blas = missing(status, "blas") if message.blas is None else make_fact(message.blas, "blas")
            cpu = replace(cpu, blas=blas)
        if message.cpu is not None:
            cpu = read_cpuinfo(cpu, message.cpu)
    return cpu


def run_probes(requests: Sequence[ProbeRequest], tell: Tell | None = None) -> list[ProbeAnswer]:
    """Run all probes side by side and return their answers, in the same order. A probe that hangs, crashes or
    writes nonsense loses its own answer alone. `tell` takes a line of text if probes are slow."""
    if not requests:
        return []
    from gpubench.base import processes  # subprocess costs 3 ms of start-up, and most machines need no probe

    children = []
    for request in requests:
        # One that asks several devices side by side ends before its limit.
        within = {"limit_s": 0.8 * request.limit_s} if "nodes" in request.options else {}
        options = json.dumps(request.options | within)
        command = request.command or processes.python("gpubench.detect.probes.libraries", request.name, options)
        children.append((command, request.limit_s))

    def tell_names(places: Sequence[int]) -> None:
        names = " and ".join(_WAITING.get(requests[at].name, requests[at].name) for at in places)
        if tell is not None:
            tell(f"waiting for {names}, up to {max(requests[at].limit_s for at in places):.0f} s")

    try:
        ended = processes.run_all(children, tell=tell_names)
    except OSError as error:
        # No process, no memory: each probe says so, and the files have told what they know.
        ended = [processes.Ended(1, "", f"it cannot be started: {disk.reason(error)}", 0.0)] * len(requests)
    return [_answer(request, end) for request, end in zip(requests, ended, strict=True)]


def _answer(request: ProbeRequest, ended: Ended) -> ProbeAnswer:
    """Return the answer of an ended probe, or only the records of a partial message."""
    message, records = ProbeMessage(partial=True), []
    # a complete message counts, however the process ended
    if ended.status == 0 or ended.framed:
        with contextlib.suppress(ValueError, RecursionError):
            answer = msgspec.json.decode(ended.message, type=ProbeMessage)
            records, message = [parse_record(raw) for raw in answer.records], answer
    if message.partial:
        status, code, hint = _failure(request, ended)
        message = ProbeMessage(status=status, error_code=code, hint=hint)
    provider = Provider(
        name=request.name, status=message.status, version=message.version, took_s=round(ended.took_s, 6),
        error_code=message.error_code, hint=message.hint,
    )  # fmt: skip
    return ProbeAnswer(provider, records, message)


def _failure(request: ProbeRequest, ended: Ended) -> tuple[Status, str, str | None]:
    """Return the status, the error code and the hint (or None) for a probe that did not finish."""
    lines = ended.errors.splitlines()
    if ended.status == 0 and ended.noise:
        lines = [ended.noise]
    hint = printable(lines[-1])[:300] if lines else None
    if ended.status is None:
        remedy = f"{LIMIT_VARIABLE}=2m waits longer"
        if request.name in ("nvml", "cuda"):
            remedy = f"nvidia-smi -pm 1 (persistence mode) keeps the driver loaded, {remedy}"
        return "timeout", f"no answer in {request.limit_s:.3g} s", f"{hint}; {remedy}" if hint else remedy
    if not ended.status:
        return "invalid", "the answer is no JSON of the expected form", hint
    if (limit := name_limit(ended.errors)) and limit not in (hint or ""):
        hint = f"{hint}; {limit}"
    code = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
    return "crashed", code, hint


# ---------------------------------------------------------------- whether a GPU can be used from here

WSL_NODE, UVM_NODE = "/dev/dxg", "/dev/nvidia-uvm"
# The reason against a GPU of NVIDIA that no API lists, by the outcome of the probe `cuda`.
_BY_CUDA = {"absent": "RUNTIME_MISSING", "mismatch": "UNUSABLE", "invalid": "UNUSABLE"}
# The reasons for which a library does not list a GPU, so that the numbers of environment variables skip it.
_UNNUMBERED = {"NO_DRIVER", "PASSED_THROUGH", "EXCLUDED", "NOT_EXPOSED", "NO_PERMISSION", "GPU_LOST"}
# The place of the reason EXCLUDED.
_EXCLUSION = missing("absent", f"{NVIDIA_FOLDER}/gpus/*/information")
# The drivers that reserve a device for a virtual machine: KVM's, those of vendors for it, the older one, Xen's.
_FOR_GUESTS = r"(.*-)?vfio-pci|pci-stub|(xen-)?pciback"


def judge_access(gpu: Gpu, live: bool) -> Gpu:
    """Return the GPU with its field `usable`, and with the reasons against its use in `why_not`. Any reason
    makes it unusable. Without one, an API or a device node must show it. `live` is False for a recorded
    machine, whose GPUs are unusable or not probed."""
    driver, mode = gpu.driver.name, gpu.compute.mode
    node, hiding = gpu.access.device_node, gpu.access.hidden_by_env
    doors = (
        ("NO_DRIVER", driver, (driver.value or "").endswith("fb") or (driver.status == "absent" and driver.source)),
        ("PASSED_THROUGH", driver, re.fullmatch(_FOR_GUESTS, driver.value or "")),
        ("NOT_EXPOSED", node, node.value == "absent"), ("NO_PERMISSION", node, node.value == "no_permission"),
        *((code, _EXCLUSION if code == "EXCLUDED" else NOT_PROBED, True) for code in gpu.why_not),
        # WebGPU heeds no environment variable
        ("HIDDEN_BY_ENV", hiding, hiding.value and not _by_webgpu(gpu)),
        ("COMPUTE_PROHIBITED", mode, mode.value == "prohibited"),
    )  # fmt: skip
    closed = {code: fact for code, fact, holds in reversed(doors) if holds}
    usable: Fact[Any] = NOT_PROBED
    if closed:
        usable = make_fact(
            False, next((fact.source for _, fact, holds in doors if holds and fact.source), "probe")
        )
    elif live:
        sources = [*gpu.apis, *([node.source] if node.value == "present" else [])]
        usable = make_fact(True, sources[0]) if sources else ABSENT
    return replace(gpu, usable=usable, why_not=list(closed)[::-1])


def read_access(
    providers: Sequence[Provider], gpus: Sequence[Gpu], devices: Sequence[MergedDevice], *, contained: bool
) -> list[Gpu]:
    """Return the GPUs with their device nodes, and with the reasons that the answers of the probes give in
    `why_not`. `devices` has the order of `gpus`. `contained` tells that this process runs in a container."""
    statuses = {provider.name: provider.status for provider in providers}
    nvml = statuses.get("nvml")
    shown = any(r.source == "proc-nvidia" for device in devices for r in device.records)
    described = []
    for gpu, device in zip(gpus, devices, strict=True):
        nvidia = gpu.vendor.value == "nvidia"
        node = _node_state(gpu, device, shown)
        # CUDA computes through this node, which its driver makes on demand, but not in a container.
        if contained and gpu.driver.name.value == "nvidia" and node.value == "present" and not _by_webgpu(gpu):
            node = make_fact(node_status(UVM_NODE), UVM_NODE)
        failed = ["DRIVER_MISMATCH"] if nvidia and nvml == "mismatch" else []
        if nvidia and not gpu.apis and nvml == "permission":
            failed = ["NO_PERMISSION"]
        elif (
            gpu.driver.name.value == "nvidia"
            and not (gpu.apis or gpu.why_not)
            and (nvml, node.value) == ("ok", "present")
        ):
            failed = ["GPU_LOST"]
        if nvidia and (code := _BY_CUDA.get(statuses.get("cuda", "ok"))) and not _by_webgpu(gpu):
            failed = failed or [code]
        described.append(replace(gpu, access=Access(device_node=node), why_not=[*gpu.why_not, *failed]))
    return described


def _by_webgpu(gpu: Gpu) -> bool:
    return any(api.startswith("wgpu") for api in gpu.apis)


def _node_state(gpu: Gpu, device: MergedDevice, shown: bool) -> Fact[str]:
    """Return whether the GPU's device node is present, absent or no_permission, or not probed if it
    is unknown."""
    driver = gpu.driver.name.value
    if driver == "nvidia":
        own = next((r for r in device.records if r.source == "proc-nvidia"), None)
        # in a container, NVIDIA's /proc lists only GPUs that the container was given
        if own is None and shown:
            return make_fact("absent", f"{NVIDIA_FOLDER}/gpus")
        paths = [*([f"/dev/nvidia{own.ordinal}"] if own and own.ordinal is not None else []), "/dev/nvidiactl"]
    elif driver and gpu.vendor.value == "nvidia" and driver not in FREE_DRIVERS:
        paths = [CHIP_NODE] if device.bdf is None else []
    elif name := first_field(device.records, "node"):
        paths = [f"/dev/dri/{name}"]
    elif driver is None and node_status(WSL_NODE) != "absent":
        paths = [WSL_NODE]
    else:
        paths = []
    states = [make_fact(node_status(path), path) for path in paths]
    return min(states, key=lambda state: _WORST_FIRST.index(state.value), default=NOT_PROBED)


_WORST_FIRST = ("absent", "no_permission", "present")


def node_status(path: str) -> str:
    """Return `present`, `absent` or `no_permission` for the device node at `path`."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "no_permission"
    return "present" if os.access(path, os.R_OK | os.W_OK) else "no_permission"


# ---------------------------------------------------------------- what measuring needs and is not installed


def runtime_warnings(nvidia: bool, cuda: int | None, capabilities: Collection[int]) -> list[MachineWarning]:
    """Return a warning if Numba is missing, and one if CuPy is missing beside NVIDIA's driver (`nvidia`).
    `cuda` is the newest CUDA version of the driver, such as 13000, or None. `capabilities` are the GPUs'
    compute capabilities, such as 75 for 7.5."""
    lacking = []
    if importlib.util.find_spec("numba") is None:
        text = f"Numba is not installed, so the CPU's kernels are not compiled: {install_command()}"
        lacking.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["numba"]))
    # CUDA 13 serves no capability below 75, and CUDA 12 none below 50
    if nvidia and max(capabilities, default=50) >= 50 and importlib.util.find_spec("cupy") is None:
        old = min(capabilities, default=75) < 75
        remedy = install_command("cuda12" if old or cuda < 13000 else "cuda13") if cuda else cupy_commands()
        if cuda and cuda < 12000:
            remedy = f"update NVIDIA's driver, which is too old for CUDA 12, then {remedy}"
        text = f"CuPy is not installed, so nothing can be measured through CUDA: {remedy}"
        lacking.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["cupy"]))
    return lacking


# The name of each vendor's platform in PyTorch, and the mark in the version of the wheels for it.
_TORCH = {"amd": ("ROCm", "+rocm"), "intel": ("XPU", "+xpu")}


def torch_warnings(gpus: Sequence[Gpu], *, wsl: bool = False) -> list[MachineWarning]:
    """Return a warning if the PyTorch for AMD's GPUs is missing, and one if that for Intel's is. Only discrete
    GPUs count, and no GPU that is unusable, is in a Mac or is too old for ROCm. In WSL (`wsl`) the warnings
    name the packages for Windows."""
    # The vendor's PyTorch may not drive its integrated GPUs.
    fit = [gpu for gpu in gpus if gpu.kind.value == "discrete" and gpu.usable.value is not False]
    served = {gpu.vendor.value for gpu in fit if not re.match("gfx([678]|101)", gpu.compute.arch.value or "")}
    vendors = served & _TORCH.keys() if sys.platform != "darwin" else set()
    version = _torch_version() if vendors else ""
    warnings = []
    for vendor, (name, mark) in _TORCH.items():
        if vendor in vendors and mark not in version:
            text = (
                f"PyTorch for {name} is not installed, so WebGPU alone measures there: "
                f"{torch_command(vendor, 'win32' if wsl else sys.platform)}"
            )
            warnings.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["torch"]))
    return warnings


def _torch_version() -> str:
    """Return the version of the installed PyTorch without importing it, or ""."""
    from importlib import metadata

    with contextlib.suppress(Exception):  # spoiled metadata is no reason to fail
        return str(metadata.version("torch"))
    return ""
