"""One inspection: files, then the probes that the evidence allows, then what only a live system tells."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import msgspec

from gpubench.base.errors import UsageError, limit_named, suggest
from gpubench.base.installation import install_command
from gpubench.base.messages import DETECTION
from gpubench.detect import registry
from gpubench.detect.access import WSL_NODE, Said, hidden, node_state, render_nodes
from gpubench.detect.cpu import blas_warnings, doubtful_blas
from gpubench.detect.gpu import (
    AccessReader,
    GpuContext,
    accelerators,
    build_gpus,
    display_adapters,
    software_renderers,
)
from gpubench.detect.host import NVIDIA, Files, read_files, read_this_host
from gpubench.detect.libraries import read_cpuinfo, torch_warnings
from gpubench.detect.merge import MergedDevice, find_gpu, merge
from gpubench.detect.pci import ASLEEP, Names
from gpubench.detect.recommend import Reader, about, apply_results, mark_verified, recommend
from gpubench.detect.records import ABSENT, Address, DeviceRecord, known, missing, parse_record
from gpubench.detect.root import Root
from gpubench.result.machine import (
    NOT_PROBED,
    Cpu,
    CpuBlas,
    Fact,
    Gpu,
    Machine,
    MachineWarning,
    Mode,
    Platform,
    Provider,
)

if TYPE_CHECKING:
    from gpubench.base.processes import Ended


class Lack(NamedTuple):
    """Why something is not to be had, and what to do."""

    why: str
    hint: str


def inspect(
    *, sysroot: Path | None = None, records: list[dict[str, Any]] | None = None,
    extra_records: Iterable[dict[str, Any]] | None = None, mode: str | None = None, deep: bool = False,
    wake: bool = False, debug: bool = False, results: Path | None = None, read: Reader | None = None,
    gathered: Gathered | None = None,
) -> Machine:  # fmt: skip
    """Describe a machine: this one, a recorded one, or the devices of given provider records.

    `extra_records` are records that the caller gathered; they are merged like any other. Who gives them is about
    to measure, so the BLAS is asked too. `gathered` is what `gather` found before, on this machine. `results` is a
    folder or file of measured results. Raises UsageError for an unknown mode and ValueError for a malformed record;
    whatever is wrong with the machine itself is a status in the document.
    """
    if mode is not None and mode not in get_args(Mode):
        raise UsageError("unknown-mode", f"There is no mode {mode!r}.")
    start = time.perf_counter() - (gathered.took_s if gathered else 0.0)
    given = [parse_record(raw) for raw in extra_records or ()]
    if records is not None:
        machine = _from_records([parse_record(raw) for raw in records] + given, debug)
    elif sysroot is not None:
        machine = _recorded(Root(str(sysroot)), str(sysroot), given, debug)
    else:
        found = gathered or gather(deep=deep, wake=wake, blas=extra_records is not None)
        machine, given = _this_machine(found, given, debug)
    advice = recommend(machine, cast("Mode | None", mode))
    advice = mark_verified(advice, _checked(machine, given)) if machine.live else advice
    if results is not None and read is not None and mode is None:
        advice = apply_results(machine, advice, results, read)
    took = round(time.perf_counter() - start, 6)
    return msgspec.structs.replace(machine, recommendation=advice, took_s=took)


def _recorded(root: Root, name: str, given: Sequence[DeviceRecord], debug: bool) -> Machine:
    start = time.perf_counter()
    files = read_files(root, NOT_PROBED)
    provider = Provider(name="files", status="ok", took_s=round(time.perf_counter() - start, 6))
    return assemble(
        files,
        [*files.records, *given],
        [provider],
        _context(files, root, live=False, debug=debug),
        sysroot=name,
    )


def _checked(machine: Machine, found: Sequence[DeviceRecord]) -> frozenset[str]:
    """Ids of GPUs on which a checked kernel ran."""
    ids = [find_gpu(machine, r.uuid, r.bdf, r.vendor_id, r.device_id) for r in found if r.checked]
    return frozenset(gpu_id for gpu_id in ids if gpu_id is not None)


def _this_machine(
    found: Gathered, given: Sequence[DeviceRecord], debug: bool
) -> tuple[Machine, list[DeviceRecord]]:
    """The document of this machine, and the records it was made of."""
    files = found.files._replace(warnings=[*found.files.warnings, *found.warnings])
    records = [*files.records, *given, *found.records]
    machine = assemble(
        files, records, found.providers, _context(files, found.root, live=True, debug=debug), sysroot=None,
        access=lambda gpus, devices: read_access(found, os.environ, gpus, devices),
    )  # fmt: skip
    lacking = torch_warnings(machine.gpus)
    return msgspec.structs.replace(machine, warnings=[*machine.warnings, *lacking]), records


def _context(files: Files, root: Root, *, live: bool, debug: bool) -> GpuContext:
    return GpuContext(live, files.memory, debug, files.soc.value is not None, Names(root))


def gpus_of_files(files: Files, root: Root) -> list[Gpu]:
    """The GPUs that files of this machine list, whatever the probes would add."""
    return assemble(files, files.records, [], _context(files, root, live=True, debug=False), sysroot=None).gpus


def _from_records(found: list[DeviceRecord], debug: bool) -> Machine:
    blank = Machine()
    files = Files(Platform(), blank.cpu, blank.memory, blank.numa, [], [], ["records"], missing("not_probed"))
    return assemble(files, found, [], GpuContext(False, blank.memory, debug, device_name=Names()), sysroot=None)


def assemble(
    files: Files, found: Sequence[DeviceRecord], providers: list[Provider], context: GpuContext, *, sysroot: str | None,
    access: AccessReader | None = None,
) -> Machine:  # fmt: skip
    """The document without its recommendation."""
    merged = merge(found)
    gpus = build_gpus(merged, context, access)
    listed = [provider.name for provider in providers if provider.name == "wgpu" and provider.status == "ok"]
    sources = [*files.gpu_folders, *(device.records[0].source for device in merged.devices), *listed]
    count = missing("absent", None, "no folder of the system lists all GPUs")
    if sources and (gpus or not files.doubtful):
        count = known(len(gpus), sources[0])
    # Where no folder lists GPUs, each adapter is one that nothing else knows.
    odd = merged.warnings if files.gpu_folders else []
    return Machine(
        sysroot=sysroot, live=context.live, providers=providers, warnings=[*files.warnings, *odd],
        platform=files.platform, cpu=files.cpu, memory=files.memory, numa=files.numa, gpu_count=count, gpus=gpus,
        accelerators=accelerators(merged), display_adapters=display_adapters(merged),
        software_renderers=software_renderers(merged),
    )  # fmt: skip


def to_json(machine: Machine) -> str:
    from gpubench.base.escaping import json_in_order

    return json_in_order(msgspec.json.format(msgspec.json.encode(machine))).decode()


# The backends whose devices the facts of a machine tell.
PROBED = ("numpy", "cupy", "wgpu")


def lacks(machine: Machine, wanted: str) -> Lack | None:
    """None if `wanted` (cpu, gpu, a backend, `BACKEND:N` or an id of `gpus[]`) is there and usable."""
    backend, colon, number = wanted.partition(":")
    if wanted == "cpu" or backend == "numpy":
        return None
    if wanted == "gpu" or backend in ("cupy", "wgpu"):
        fit = [gpu for gpu in machine.gpus if gpu.usable.value is not False
               and (backend != "cupy" or gpu.vendor.value == "nvidia")]  # fmt: skip
        need = int(number) + 1 if colon and number.isdigit() else 1
        return None if len(fit) >= need else _why_none(machine)
    named = [gpu for gpu in machine.gpus if wanted in (gpu.id, gpu.bdf.value, gpu.uuid.value)]
    if not named:
        listed = ", ".join(gpu.id for gpu in machine.gpus) or "none"
        near = suggest(wanted, [gpu.id for gpu in machine.gpus])
        return Lack(
            f"no device has this id; there are: {listed}", near or "see gpus[].id of `gpubench detect --json`"
        )
    return None if named[0].usable.value is not False else _blocked(named[0])


def _why_none(machine: Machine) -> Lack:
    blocked = next((gpu for gpu in machine.gpus if gpu.usable.value is False), None)
    if blocked is not None:
        return _blocked(blocked)
    codes = ("SOFTWARE_ONLY", "DISPLAY_ONLY", "GPU_UNKNOWN", "NO_GPU")
    code = next((r.code for r in machine.recommendation.reasons if r.code in codes), "NO_GPU")
    return Lack(
        f"{code}: {DETECTION.get(code, '')}", "install the vendor's driver, or run on a machine with such a GPU"
    )


def _blocked(gpu: Gpu) -> Lack:
    code = gpu.why_not[0] if gpu.why_not else "UNUSABLE"
    name = gpu.name.value or gpu.vendor.value or "a GPU"
    return Lack(f"{name} ({gpu.id}) is there but not usable: {code}", about(code, gpu))


# A driver that nobody uses is loaded first. On nodes of several NVIDIA GPUs without persistence mode that has been seen
# to take more than 25 s, on an APU with 111 GiB of GTT 5 to 10 s.
DRIVER_LIMIT_S, LIBRARY_LIMIT_S = 30.0, 10.0
# All probes together take no longer, with their ends.
TOTAL_S, END_S = 40.0, 3.0
LIMIT_VARIABLE = "GPUBENCH_PROBE_LIMIT"
_QUERIED = ("amdgpu", "i915", "xe")
# The probes by the name of what they wait for.
_WAITING = {
    "nvml": "NVIDIA's driver (NVML)", "cuda": "CUDA (CuPy)", "wgpu": "WebGPU (wgpu)", "drm": "the render nodes",
    "blas": "NumPy's BLAS", "cpuinfo": "py-cpuinfo",
}  # fmt: skip
Tell = Callable[[str], None]


class ProbeRequest(NamedTuple):
    """A probe to run: its name, its options and how long it may take, in seconds."""

    name: str
    limit_s: float
    options: dict[str, Any] = {}
    command: tuple[str, ...] = ()  # for tests: another program in its place


class ProbeAnswer(NamedTuple):
    """What a probe said; `extra` holds the rest of its JSON object."""

    provider: Provider
    records: list[DeviceRecord]
    extra: dict[str, Any]


class Gathered(NamedTuple):
    """All that was collected about this machine before the merge. `records` are those of the probes."""

    files: Files
    providers: list[Provider]
    records: list[DeviceRecord]
    warnings: list[MachineWarning]
    root: Root
    took_s: float


def gather(
    *,
    deep: bool = False,
    wake: bool = False,
    blas: bool = False,
    root: Root | None = None,
    tell: Tell | None = None,
) -> Gathered:
    """Read the files, look at the evidence, run the probes side by side; `blas` asks for the BLAS in any case.

    `tell` gets a line about the probes that are slow. Raises UsageError for a limit that is no duration.
    """
    root = root or Root()
    start = time.perf_counter()
    files = read_this_host(root)
    providers = [Provider(name="files", status="ok", took_s=round(time.perf_counter() - start, 6))]
    requests, skipped = plan(files, deep=deep, wake=wake)
    if deep or blas or doubtful_blas(files.cpu, os.environ):
        requests.append(ProbeRequest("blas", LIBRARY_LIMIT_S))
    requests += render_queries(files.records, render_nodes(root), wake=wake)
    answers = run_probes(_with_limits(requests, time.perf_counter() - start), tell)
    records = registry.describe([record for answer in answers for record in answer.records])
    cpu = _with_probes(files.cpu, answers)
    providers += skipped + [answer.provider for answer in answers]
    providers.sort(key=lambda provider: (provider.name != "files", provider.name))
    warnings = blas_warnings(cpu) + _runtime_warnings(files, answers)
    took_s = time.perf_counter() - start
    return Gathered(files._replace(cpu=cpu), providers, records, warnings, root, took_s)


def user_limit_s() -> float | None:
    """How long the user lets a library take to answer, in seconds. None if not set. Raises UsageError."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return None
    from gpubench.base.units import parse_duration

    return parse_duration(text, option=LIMIT_VARIABLE)


def _with_limits(requests: Sequence[ProbeRequest], elapsed_s: float) -> list[ProbeRequest]:
    """The requests with the user's limit, else within the total."""
    limit_s, left_s = user_limit_s(), max(1.0, TOTAL_S - END_S - elapsed_s)
    return [request._replace(limit_s=limit_s or min(request.limit_s, left_s)) for request in requests]


def plan(files: Files, *, deep: bool, wake: bool) -> tuple[list[ProbeRequest], list[Provider]]:
    """The probes to run, and those that were left out although there is evidence for them.

    Where no folder could list GPUs (Windows, macOS), NVML and wgpu are asked without evidence.
    """
    requests: list[ProbeRequest] = []
    skipped: list[Provider] = []
    nvidia = [r for r in files.records if r.vendor_id == NVIDIA and _is_gpu(r)]
    unseen = not files.gpu_folders
    bound = {
        str(r.bdf) for r in nvidia if r.bdf is not None and r.facts.get("driver.name", ABSENT).value == "nvidia"
    }
    if unseen:
        requests.append(ProbeRequest("nvml", DRIVER_LIMIT_S))
    elif nvidia or os.path.exists(WSL_NODE):
        if wake or not nvidia or any(not _sleeps(r) for r in nvidia):
            requests.append(ProbeRequest("nvml", DRIVER_LIMIT_S, {"addresses": sorted(bound)}))
        else:
            hint = "every NVIDIA GPU sleeps; --wake asks nevertheless"
            skipped.append(Provider(name="nvml", status="not_probed", hint=hint))
    if files.cpu.model.status == "absent" and sys.platform != "linux":
        requests.append(ProbeRequest("cpuinfo", LIBRARY_LIMIT_S))
    asleep = [r for r in files.records if _is_gpu(r) and _sleeps(r)]
    if deep and asleep and not wake:
        hint = "a GPU sleeps, and opening the devices would wake it; --wake does it nevertheless"
        skipped += [Provider(name=name, status="not_probed", hint=hint) for name in ("cuda", "wgpu")]
    elif deep:
        names = ["cuda"] if nvidia or unseen or os.path.exists(WSL_NODE) else []
        requests += [ProbeRequest(name, DRIVER_LIMIT_S) for name in (*names, "wgpu")]
    elif unseen:
        requests.append(ProbeRequest("wgpu", DRIVER_LIMIT_S, {"check": False}))
    return requests, skipped


def render_queries(
    records: Sequence[DeviceRecord], nodes: Mapping[Address, str], *, wake: bool
) -> list[ProbeRequest]:
    """Queries on the render nodes of AMD and Intel GPUs whose kind or memory no file reports, if they are awake."""
    asked = []
    for record in records:
        driver = record.facts.get("driver.name")
        if record.bdf is None or record.bdf not in nodes or (_sleeps(record) and not wake):
            continue
        if driver is None or driver.value not in _QUERIED:
            continue
        fact = record.facts.get("kind" if driver.value == "amdgpu" else "memory.dedicated_bytes")
        integrated = driver.value != "amdgpu" and record.facts.get("kind", ABSENT).value == "integrated"
        if not integrated and (fact is None or fact.value is None):
            asked.append({"node": nodes[record.bdf], "bdf": str(record.bdf), "driver": driver.value})
    return [ProbeRequest("drm", DRIVER_LIMIT_S, {"nodes": asked})] if asked else []


def judge_reach(gathered: Gathered, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> dict[str, Said]:
    """What live sources say about reaching each GPU, by id."""
    hiding = hidden(gpus, environ)
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


def read_access(
    gathered: Gathered, environ: Mapping[str, str], gpus: Sequence[Gpu], devices: Sequence[MergedDevice]
) -> list[Said]:
    """`access` with the states of the device nodes, in the order of `gpus`."""
    nodes = render_nodes(gathered.root)
    table = judge_reach(gathered, environ, gpus)
    return [
        table[gpu.id]._replace(device_node=node_state(gpu, device, nodes))
        for gpu, device in zip(gpus, devices, strict=True)
    ]


def _is_gpu(record: DeviceRecord) -> bool:
    return record.source == "proc-nvidia" or (record.pci_class or 0x0300) >> 8 in (0x03, 0x12)


def _sleeps(record: DeviceRecord) -> bool:
    return record.facts.get("power.state", ABSENT).value in ASLEEP


def _with_probes(cpu: Cpu, answers: Sequence[ProbeAnswer]) -> Cpu:
    """The CPU with its BLAS and, without /proc, with what py-cpuinfo says."""
    extra = {answer.provider.name: answer for answer in answers}
    if "blas" in extra:
        cpu = msgspec.structs.replace(cpu, blas=_blas(extra["blas"]))
    told = extra["cpuinfo"].extra.get("cpu") if "cpuinfo" in extra else None
    if isinstance(told, dict):
        cpu = read_cpuinfo(cpu, told)
    return cpu


def _blas(answer: ProbeAnswer) -> Fact[list[CpuBlas]]:
    if answer.provider.status != "ok":
        return missing(answer.provider.status, "blas")
    try:
        return known(msgspec.convert(answer.extra.get("blas"), list[CpuBlas]), "blas")
    except msgspec.ValidationError:
        return missing("invalid", "blas")


def _runtime_warnings(files: Files, answers: Sequence[ProbeAnswer]) -> list[MachineWarning]:
    """What measuring needs and is not installed: Numba, and CuPy where there is an NVIDIA driver, with the extra that
    fits it."""
    found = []
    if importlib.util.find_spec("numba") is None:
        text = f"Numba is not installed, so the CPU's kernels are not compiled: {install_command()}"
        found.append(MachineWarning(code="RUNTIME_MISSING", text=text, refs=["numba"]))
    bound = [r.facts.get("driver.name", ABSENT).value for r in files.records if r.vendor_id == NVIDIA]
    listed = not files.gpu_folders and any(a.provider.name == "nvml" and a.records for a in answers)
    if not (listed or "nvidia" in bound) or importlib.util.find_spec("cupy") is not None:
        return found
    remedy = f"{install_command('cuda13')}; for CUDA 12 the extra cuda12"
    for answer in answers:
        cuda = answer.extra.get("cuda_driver")
        if isinstance(cuda, int):
            remedy = install_command("cuda13" if cuda >= 13000 else "cuda12")
    text = f"CuPy is not installed, so nothing can be measured through CUDA: {remedy}"
    return [*found, MachineWarning(code="RUNTIME_MISSING", text=text, refs=["cupy"])]


def run_probes(requests: Sequence[ProbeRequest], tell: Tell | None = None) -> list[ProbeAnswer]:
    """Run all probes side by side; takes about the longest limit. A hang, crash or junk costs that probe alone."""
    if not requests:
        return []
    from gpubench.base import processes  # subprocess costs 3 ms of start-up, and most machines need no probe

    commands = [
        request.command
        or processes.python("gpubench.detect.probes", request.name, json.dumps(_options(request)))
        for request in requests
    ]
    limits = [request.limit_s for request in requests]

    def tell_names(places: Sequence[int]) -> None:
        names = " and ".join(_WAITING.get(requests[at].name, requests[at].name) for at in places)
        if tell is not None:
            tell(f"waiting for {names}, up to {max(limits[at] for at in places):.0f} s")

    try:
        ended = processes.run_all(list(zip(commands, limits, strict=True)), tell=tell_names)
    except (
        OSError
    ) as error:  # no process, no memory: each probe says so, and the files have told what they know
        gone = processes.Ended(1, "", f"it cannot be started: {error.strerror or error}", 0.0)
        ended = [gone] * len(requests)
    return [_answer(request, end) for request, end in zip(requests, ended, strict=True)]


def _options(request: ProbeRequest) -> dict[str, Any]:
    """The options of a probe; one that asks several devices side by side ends before its limit."""
    return request.options | ({"limit_s": 0.8 * request.limit_s} if "nodes" in request.options else {})


def _answer(request: ProbeRequest, ended: Ended) -> ProbeAnswer:
    """Judge what a probe said. A whole message stands however its process ended; of a partial one the records stand."""
    failure = ("invalid", "the answer is no JSON of the expected form")
    if ended.status is None:
        failure = ("timeout", f"no answer in {request.limit_s:.3g} s")
    elif ended.status:
        signal = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
        failure = ("crashed", signal)
    if ended.status != 0 and not ended.framed:
        return _failed(request, ended, *failure)
    try:
        answer = json.loads(ended.message)
        records = [parse_record(raw) for raw in answer.pop("records")]
        if answer.pop("partial", False):
            return _failed(request, ended, *failure)._replace(records=records)
        provider = Provider(
            name=request.name, status=answer.pop("status", "ok"), version=answer.pop("version", None),
            took_s=round(ended.took_s, 6), error_code=answer.pop("error_code", None), hint=answer.pop("hint", None),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _failed(request, ended, *failure)
    return ProbeAnswer(provider, records, answer)


def _failed(request: ProbeRequest, ended: Ended, status: Any, code: str) -> ProbeAnswer:
    lines = ended.errors.splitlines() if status != "invalid" or not ended.noise else [ended.noise]
    hint = "".join(c for c in lines[-1] if c.isprintable())[:300] if lines else None
    if status == "crashed" and (limit := limit_named(ended.errors)) and limit not in (hint or ""):
        hint = f"{hint}; {limit}"
    if status == "timeout":
        remedy = f"{LIMIT_VARIABLE}=2m waits longer"
        if request.name in ("nvml", "cuda"):
            remedy = f"nvidia-smi -pm 1 (persistence mode) keeps the driver loaded, {remedy}"
        hint = f"{hint}; {remedy}" if hint else remedy
    took = round(ended.took_s, 6)
    return ProbeAnswer(
        Provider(name=request.name, status=status, took_s=took, error_code=code, hint=hint), [], {}
    )
