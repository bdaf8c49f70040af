"""The input of the runner, made from the typed options of `run` or `noise`.

In `--ops`, the word `claims` means the ops, sizes and cases that answer a table of claims.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

import gpubench.detect as detection
from gpubench import backends, kernels
from gpubench.analysis.claims import BUILTIN, Claim, load
from gpubench.base import load_library, processes
from gpubench.base.errors import RequiredUnavailable, UsageError
from gpubench.base.units import parse_sizes, split_words
from gpubench.cli import selection as words
from gpubench.cli.detect import read_result, waiting
from gpubench.cli.options import RunOptions
from gpubench.kernels.contract.op import Ladder, Op
from gpubench.measure import adapters, targets
from gpubench.measure.plan import Constraints, Target, with_ranks
from gpubench.measure.recorder import Origin, new_run
from gpubench.measure.schedule import RunSpec, plan_workloads
from gpubench.measure.targets import DeviceRequest, DeviceSelection
from gpubench.measure.worker_pool import Spares
from gpubench.result.case import DEVICE_GROUP, FUNCTIONS, QUEUED, SITUATIONS, TF32, Case, select_cases, selector
from gpubench.result.machine import Machine, Mode
from gpubench.result.run import Device, RunWarning, Selection, Settings, warning
from gpubench.result.store import default_results_dir

CLAIMS = "claims"  # the word of --ops
STEP = 4  # largest ratio of neighbouring sizes inside the range of a break-even


class _Part(NamedTuple):
    """A selector in a claim."""

    claim: Claim  # the claim
    text: str  # the selector as written, which may be incomplete

    @property
    def segments(self) -> list[str]:
        """The parts of the selector before `@`: group or op, size, dtype, implementation, and what follows. Each
        of these four is `*` if it is missing."""
        return [*self.text.partition("@")[0].split("/"), "*", "*", "*", "*"]

    @property
    def ops(self) -> list[str]:
        """The ops that the selector names, or an empty list for a selector of all ops."""
        word = self.segments[0]
        return [word] if word in kernels.names() else list(kernels.groups().get(word, ()))

    @property
    def variant(self) -> str:
        """The kernel that the selector names, `tiled` for `tuned-tiled`, or an empty text."""
        return self.segments[3].partition("-")[2]

    @property
    def kind(self) -> str:
        """The kind of device that the claim names, else `hybrid` for a selector with `@hybrid`, else `gpu`."""
        return self.claim.device or ("hybrid" if "@hybrid" in self.text else "gpu")

    def sizes(self, ladder: Ladder) -> list[int]:
        """Return the named sizes, else sizes around the claimed break-even, else the largest of the ladder.
        Raises UsageError for a size that cannot be read."""
        size = self.segments[1].partition(",")[0].removeprefix("n=")
        if size[:1].isdigit():
            return parse_sizes(size.replace("..", ":"))
        if self.claim.break_even is None:
            return [ladder.high]
        low, high = self.claim.break_even
        first, last = max(low, ladder.low), min(high, ladder.high)
        steps = max(1, math.ceil(math.log(last / first, STEP)))
        inside = [first * (last / first) ** (i / steps) for i in range(1, steps)]
        around = [max(low / 2, ladder.low), *map(ladder.whole, inside), min(2 * high, ladder.high)]
        return sorted({int(n) for n in (first, last, *around)})


class ClaimPlan:
    """The measurements that a table of claims needs."""

    def __init__(self, claims: Iterable[Claim]) -> None:
        self._parts = [_Part(claim, text) for claim in claims for text in _selectors(claim)]
        self._tests = [(part, selector(part.text, option="--claims")) for part in self._parts]
        self.hybrid = any(part.kind == "hybrid" for part in self._parts)
        self.sizes: dict[str, list[int]] = {}
        for part in self._parts:
            for op in part.ops:
                named = part.sizes(kernels.load(op).sizes)
                self.sizes[op] = sorted({*self.sizes.get(op, []), *named})

    def options(self, options: RunOptions) -> RunOptions:
        """Return the options with the ops and sizes of the claims in place of the word `claims`. Claims also
        set regimes, variants, software adapters and `quick`, unless options name them. Raises UsageError if no
        claim names an op."""
        if not self.sizes:
            raise UsageError(
                "empty-selection", f"--ops {CLAIMS} measures nothing", why="no claim names an op of gpubench"
            )
        others = [word for word in split_words(options.ops) if word != CLAIMS]
        sizes = [f"{op}={','.join(map(str, named))}" for op, named in self.sizes.items()]
        if any("=" not in text for text in options.sizes or []):
            sizes = []  # sizes without an op hold for all ops
        variants = dict.fromkeys(part.variant for part in self._parts if part.variant)
        software = any(part.kind == "software" for part in self._parts)
        return options.replace(
            ops=",".join([*self.sizes, *others]), sizes=[*sizes, *(options.sizes or [])],
            regimes=options.regimes or "waited,queued,copied", variant=options.variant or [*variants],
            allow_software=options.allow_software or software, quick=not options.rigorous,
        )  # fmt: skip

    def keep(self, devices: Sequence[Device], keep: Callable[[Case], bool] | None) -> Callable[[Case], bool]:
        """Return a function that tells whether a case is measured. `keep` must allow the case, and the case
        must be on a CPU, or copy on a GPU, or be selected by a claim. If several backends drive a GPU, only the
        first runs all of these; the others run only kernels that a claim names."""
        kinds = {device.id: "hybrid" if device.composed else device.kind for device in devices}
        gpus = [device for device in devices if device.kind == "gpu"]
        first = backends.drivers(gpus)
        second = {device.id for device in gpus if first[device.name] != device.backend}

        def selects(case: Case) -> bool:
            kind = kinds[case.device_id]
            if kind == "cpu":
                return True
            tests = [(part, matches) for part, matches in self._tests if part.kind == kind]
            if case.device_id in second:
                tests = [(part, matches) for part, matches in tests if part.variant]
            elif kind == "gpu" and case.regime == SITUATIONS["copied"]:
                return True
            # Splits need a GPU that is no software adapter.
            return (kind != "hybrid" or bool(gpus)) and any(matches(case) for _, matches in tests)

        return lambda case: selects(case) and (keep is None or keep(case))


def _selectors(claim: Claim) -> Iterator[str]:
    """Yield the selectors of a claim: for its cases, for the case shown beside them, and for the cases of its
    baseline."""
    yield from claim.cases
    yield from (text for text in (claim.also, claim.against) if text and text not in ("cpu", "gpu"))


def default_claims(options: RunOptions) -> str | None:
    """Return the name of the built-in table of claims if `--ops` contains the word `claims`, otherwise None."""
    return BUILTIN if CLAIMS in split_words(options.ops) else None


# It is called with the options as checked values, before any device is looked at.
Tell = Callable[[Selection, Settings], None]


def request(options: RunOptions, *, began: float, tell: Tell | None = None) -> RunSpec:
    """Return the plan for the devices that are there. The budget is counted from the monotonic time `began`,
    and `tell` is called once the options are read. Raises UsageError for bad options, InputError for unusable
    claims, BadPlugin if every op is broken, and RequiredUnavailable for absent devices."""
    if options.quick and options.rigorous:
        raise UsageError("two-presets", why="each sets sessions and precision")
    table = default_claims(options)
    plan = None if table is None else ClaimPlan(load(options.claims or table))
    options = options if plan is None else plan.options(options)
    declared, broken = words.load_ops(words.parse_ops(options.ops))
    chosen = selection(options, declared)
    how = settings(options, chosen, declared)
    request = options.wish(with_groups(_wish(options), declared), how)
    if plan is not None and plan.hybrid and request.auto and request.mode is None:
        request = msgspec.structs.replace(request, mode="hybrid", lenient=True)
    # Whether CuPy or PyTorch runs a user's own function faster is open.
    request = msgspec.structs.replace(request, yielding=not any(op.digest for op in declared.values()))
    if chosen.variants and not set(request.asked).intersection(backends.foreign()):
        words.require_variants(chosen.variants, declared)  # none brings kernels: no worker has to be asked
    owner = Request(options, chosen, how, began, plan)
    filtered = owner.keep is not None
    if tell is not None:
        tell(chosen, how)
    spares = None if options.dry_run else Spares()
    choice, machine = devices_of(
        request, waiting(options.quiet), one_of_each=not {*chosen.sizes, *_preset_ops(options)}.issuperset(declared),
        spares=spares, threads=how.threads, trial=None if options.dry_run else adapters.try_adapter,
    )  # fmt: skip
    if not any(target.device.backend == DEVICE_GROUP for target in choice.targets):
        if all(op.collective is not None for op in declared.values()):
            raise RequiredUnavailable(
                "unavailable", "a collective needs two GPUs",
                why="CuPy lists fewer, or the devices that were named are no device group",
                hint="`gpubench detect` shows the GPUs; --devices group:numpy:4 tries the program without one",
            )  # fmt: skip
        if not choice.targets:
            why = "; ".join(warning.message for warning in choice.warnings)
            raise RequiredUnavailable(
                "unavailable", "none of the backends that were named has a device", why=why
            )
        if words.HEALTH in words.find_presets(options.ops):
            owner.select(ops=[name for name in declared if name not in words.LINKS])
    spec = owner.on(choice, machine)
    run = msgspec.structs.replace(spec.run, warnings=[*broken, *spec.run.warnings])
    spec = msgspec.structs.replace(
        spec, run=run, required=targets.ids_required_by(request, choice), spares=spares
    )
    planned = plan_workloads(spec)
    if not any(workload.cases for workload in planned):
        if filtered:
            raise UsageError("empty-selection", why="no planned case matches")
        if not any(workload.skips for workload in planned):
            raise UsageError(
                "empty-selection", "nothing of this can be measured",
                why="the devices that were named run none of the ops",
                hint="a device group runs collectives, such as --ops allreduce: name another device beside it",
            )  # fmt: skip
    return spec


def devices_of(
    request: DeviceRequest,
    tell: Callable[[str], None] | None,
    *,
    one_of_each: bool = False,
    spares: Spares | None = None,
    threads: int | None = None,
    trial: adapters.Trial | None = None,
) -> tuple[DeviceSelection, Machine]:
    """Return the devices to measure, and the machine. A worker has `threads` threads, by default one for each
    usable CPU; `targets.choose` describes the other parameters. Raises RequiredUnavailable for an absent
    device, backend or GPU, and UsageError for a bad GPUBENCH_PROBE_LIMIT."""
    threads = threads or detection.this_host().cpu.available.value
    # Detection looks at the hardware while workers list the devices of the backends.
    with ThreadPoolExecutor(1) as beside:
        gathering = beside.submit(detection.gather, blas=True, tell=tell)
        choice = targets.choose(request, one_of_each=one_of_each, spares=spares, threads=threads, trial=trial)
    return choice, detection.inspect(
        extra_records=targets.records(choice.listings), gathered=gathering.result()
    )


def _wish(options: RunOptions) -> DeviceRequest:
    """Return the requested devices, which are chosen by a mode or by name. Raises UsageError if both are
    given."""
    named = options.backends != "auto" or bool(options.devices)
    if options.mode is None:
        return words.parse_wish(options.backends, options.devices, options.allow_software)
    if named:
        raise UsageError(
            "mode-and-devices", f"--mode {options.mode} beside --backends or --devices",
            why="a mode chooses the devices, and so do they",
        )  # fmt: skip
    modes: dict[str, Mode] = {"cpu": "cpu", "gpu": "gpu", "hybrid": "hybrid"}
    if options.mode in modes:
        return DeviceRequest(allow_software=options.allow_software, mode=modes[options.mode])
    # What cannot be had was only a recommendation: nothing is required but the CPU.
    return DeviceRequest(
        allow_software=options.allow_software, mode=_recommend_mode(waiting(options.quiet)), lenient=True
    )


def with_groups(request: DeviceRequest, declared: Mapping[str, Op]) -> DeviceRequest:
    """Return the request with device groups added, if a collective is among the ops and the user chose no
    device and no mode.

    If every op is a collective, only device groups are requested.
    """
    collective = [op.collective is not None for op in declared.values()]
    if not request.auto or request.mode is not None or not any(collective):
        return request
    if all(collective):
        return msgspec.structs.replace(request, required=(DEVICE_GROUP,))
    return msgspec.structs.replace(request, optional=(*backends.usual(), DEVICE_GROUP))


def _recommend_mode(tell: Callable[[str], None] | None) -> Mode:
    folder = default_results_dir()
    results = folder if os.path.isdir(folder) else None
    recommendation = detection.inspect(
        extra_records=[], results=results, read=read_result, gathered=detection.gather(blas=True, tell=tell)
    ).recommendation
    reason = recommendation.reasons[0].text if recommendation.reasons else "no reason is known"
    if tell is not None:
        tell(f"--mode auto takes {recommendation.mode} ({recommendation.confidence}): {reason}")
    return recommendation.mode


def _preset_ops(options: RunOptions) -> list[str]:
    """Return the ops of the requested presets."""
    return [op for preset in words.find_presets(options.ops) for op in words.PRESET_OPS[preset]]


def selection(options: RunOptions, declared: Mapping[str, Op]) -> Selection:
    """Return what to measure of the ops `declared`. The devices are not known yet. Raises UsageError for an
    option that cannot be read."""
    names = list(declared)
    return Selection(
        ops=names,
        sizes=words.parse_sizes(options.sizes or [], names),
        dtypes=words.parse_dtypes(options.dtypes),
        implementations=words.parse_implementations(options.implementations),
        regimes=words.parse_regimes(
            options.regimes or (QUEUED if _preset_ops(options) else None), options.calls
        ),
        calls=options.calls,
        params=words.parse_params(options.params or [], declared),
        variants=words.parse_variants(options.variant or [], allow_tf32=options.allow_tf32),
        filter=options.filter or [],
        skip=options.skip or [],
    )


def settings(options: RunOptions, selection: Selection, declared: Mapping[str, Op]) -> Settings:
    """Return how to measure: the values of the preset, then the given options. Raises UsageError as
    `selection.settings` does."""
    overheads = {name for name, op in declared.items() if op.overhead is not None}
    sized = {*selection.sizes, *overheads, *_preset_ops(options)}
    brief = options.quick or bool(_preset_ops(options)) or (overheads == set(declared) and not selection.sizes)
    return words.settings(
        options,
        preset="rigorous" if options.rigorous else "quick" if brief else None,
        every_size_given=all(name in sized for name in declared),
        more=bool(overheads) or options.mode == "hybrid" or "hybrid" in f"{options.backends},{options.devices}",
    )


class Request:
    """The request for a run: selection, settings and filter of cases, which are adapted to the devices that are
    there."""

    def __init__(
        self,
        options: RunOptions,
        selection: Selection,
        settings: Settings,
        began: float,
        plan: ClaimPlan | None = None,
    ) -> None:
        self.options, self.selection, self.settings, self.began = options, selection, settings, began
        self.plan = plan
        self.keep: Callable[[Case], bool] | None = select_cases(selection.filter, selection.skip)
        self.context = pairs(options.context or [])

    def select(self, **fields: Any) -> None:
        """Replace fields of the selection."""
        self.selection = msgspec.structs.replace(self.selection, **fields)

    def on(self, choice: DeviceSelection, machine: Machine) -> RunSpec:
        """Return the input of the runner for the chosen devices.

        Raises UsageError for more threads than CPUs, and for a variant that no kernel of an op or backend has.
        """
        options = self.options
        ops = {name: choice.equip(kernels.load(name)) for name in self.selection.ops}
        words.require_variants(self.selection.variants, ops)
        identical = [target for group in choice.identical for target in group]
        at_hand = {
            t.device.id: Target(_with_gpu_id(t.device, machine), t.implementations)
            for t in (*choice.targets, *identical)
        }
        devices = targets.with_gpu_memory(
            [at_hand[target.device.id].device for target in choice.targets],
            {gpu.id: gpu.memory.usable_bytes.value for gpu in machine.gpus},
        )
        at_hand |= {d.id: Target(d, t.implementations) for d, t in zip(devices, choice.targets, strict=True)}
        free_bytes, cpus = machine.memory.usable_bytes.value, machine.cpu.available.value
        self._fit_settings(devices, cpus)
        self.select(devices=[device.id for device in devices])
        self.selection = with_ranks(self.selection, ops, devices)
        if self.plan is not None:
            self.keep = self.plan.keep(devices, self.keep)
        for preset in words.find_presets(options.ops)[:1]:
            host = words.Host(free_bytes, cpus)
            self.selection, self.keep = words.choose_sizes(preset, self.selection, devices, host, self.keep)
        origin = Origin(
            argv=sys.argv[1:], versions=choice.versions, label=options.label, tags=options.tag or [],
            context=self.context, environ=os.environ,
        )  # fmt: skip
        run = new_run(self.selection, self.settings, machine, devices, origin)
        gpu_ids = {gpu.id: named.id for gpu, named in zip(machine.gpus, run.machine.gpus, strict=True)}
        at_hand = {
            name: Target(_rename_gpus(t.device, gpu_ids), t.implementations) for name, t in at_hand.items()
        }
        warnings = [*choice.warnings, *self._warnings(machine, ops, devices)]
        named, budget_s = options.budget is not None, self.settings.budget_s
        # One backend for each GPU model: other backends would list the same GPUs again.
        first = backends.drivers(group[0].device for group in choice.identical)
        spec = RunSpec(
            run=msgspec.structs.replace(run, warnings=warnings), ops=ops,
            constraints=Constraints(
                tuple(at_hand[device.id] for device in devices), self.selection, free_bytes, self.keep, self.settings,
                options.implementations is not None, options.regimes is not None,
            ),
            began=self.began, check_only=options.check_only,
            load=processes.no_cpu_times if choice.scripted else processes.read_cpu_times,
            left_out=tuple(
                tuple(at_hand[target.device.id] for target in group)
                for group in choice.identical
                if first[group[0].device.name] == group[0].device.backend
            ),
            equip=choice.equip,
            # The budget grows by at most this, for what a machine's first run does once and for the first calls
            # of a user's functions, which may compile.
            once_s=(0.0 if named or not budget_s else max(words.ONCE_SHARE * budget_s, words.ONCE_LEAST_S))
            + (self.settings.case_timeout_s if any(op.group == FUNCTIONS for op in ops.values()) else 0.0),
            whole=named,
            adds_sessions=named and options.sessions is None,
            repeats=not options.no_repeats
            and (options.sessions is not None or options.rigorous or options.append is not None),
        )  # fmt: skip
        fitted: RunSpec = options.fit(spec)
        return fitted

    def _fit_settings(self, devices: Sequence[Device], usable: int | None) -> None:
        """Set the CPU threads, by default to all usable CPUs, and shorten a default budget without a GPU.
        Raises UsageError for more threads than usable CPUs."""
        threads = self.settings.threads
        if threads is not None and usable is not None and threads > usable:
            raise UsageError(
                "too-many-threads", f"--threads {threads} is more than the {usable} CPUs that may be used",
                why="threads that take turns on a CPU make a slow baseline, and so a flattering speedup",
            )  # fmt: skip
        budget_s, sessions = self.settings.budget_s, self.settings.sessions
        alone = all(device.kind == "cpu" for device in devices)
        if budget_s is not None and self.options.budget is None and alone:
            each_s = budget_s / sessions
            budget_s = words.HOST_BUDGETS_S.get(each_s, each_s) * sessions
        self.settings = msgspec.structs.replace(self.settings, threads=threads or usable, budget_s=budget_s)

    def _warnings(self, machine: Machine, ops: Mapping[str, Op], devices: Sequence[Device]) -> list[RunWarning]:
        """Return the warnings on host, inputs and options that are known before measuring."""
        selection, inputs = self.selection, self.settings.inputs
        warnings = [
            *blas_threads(machine),
            *power(machine.cpu.governor.value, on_battery=on_battery()),
            *shared_host(os.environ),
        ]
        if inputs != "random":
            flatter = f"all inputs are {inputs}: such figures flatter the hardware and stand alone"
            warnings.append(warning("inputs-not-random", flatter))
        drivers = {device.backend for device in devices if device.kind != "cpu"}
        if self.settings.page_locked is True and not drivers:
            warnings.append(warning("no-page-lock", severity="info"))
        able = any(drivers.intersection(op.tf32) for op in ops.values())
        able = able and "float32" in selection.dtypes and "library" in selection.implementations
        return [*warnings, *([warning("no-tf32")] if TF32 in selection.variants and not able else [])]


def _with_gpu_id(device: Device, machine: Any) -> Device:
    own = device.identity if device.kind != "software" else None
    gpu_id = detection.gpu_for(machine, own, device.api) if own else None
    members = [detection.gpu_for(machine, identity) or "" for identity in device.identities]
    return msgspec.structs.replace(device, gpu_id=gpu_id, gpu_ids=members if all(members) else [])


def _rename_gpus(device: Device, gpu_ids: Mapping[str, str]) -> Device:
    """Return the device with the ids of its GPUs replaced by those in `gpu_ids`."""
    return msgspec.structs.replace(
        device, gpu_id=gpu_ids[device.gpu_id] if device.gpu_id else None,
        gpu_ids=[gpu_ids[gpu_id] for gpu_id in device.gpu_ids],
    )  # fmt: skip


def pairs(texts: list[str]) -> dict[str, str]:
    """Return the values of texts `K=V` by key. Raises UsageError for any other text."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(
                "bad-context", f"--context: {text!r} is not K=V", why="there is no key before an equals sign"
            )
        values[key] = value
    return values


def blas_threads(machine: Machine) -> list[RunWarning]:
    """Return a warning if the BLAS has an unsuitable number of threads by default. The run sets the number, but
    the user's own programs may not."""
    return [warning("blas-threads", noted.text) for noted in machine.warnings if noted.code == "BLAS_THREADS"]


def on_battery() -> bool:
    """Return whether the machine runs on a battery now. Returns False if this is unknown."""
    try:
        return load_library("psutil").sensors_battery().power_plugged is False
    except Exception:  # there is no battery, or the psutil of this system is broken or knows of none
        return False


def power(governor: str | None, *, on_battery: bool) -> list[RunWarning]:
    """Return a warning on a battery, or an info for the governor `powersave`, because a slow CPU is a slow
    baseline."""
    if on_battery:
        return [
            warning(
                "powersave", "the machine runs on a battery: clocks are lower, on either side", "plug it in"
            )
        ]
    if governor == "powersave":
        message, hint = "the CPU's frequency governor is powersave", "cpupower frequency-set -g performance"
        # It is no more than an info: Intel's driver calls its ordinary governor powersave.
        return [warning("powersave", message, hint, severity="info")]
    return []


def shared_host(environ: Mapping[str, str]) -> list[RunWarning]:
    """Return a warning on a runner that GitHub hosts: it is a virtual machine on a shared host, and each job
    gets another one."""
    hosted = environ.get("RUNNER_ENVIRONMENT") == "github-hosted"
    return [warning("shared-host")] if hosted and environ.get("GITHUB_ACTIONS") == "true" else []
