"""From the options of `run` as they were typed to what the runner needs; `noise` measures from the same words."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpubench import detect, kernels, selectors
from gpubench.cli import _mode, _roofline, _run_warnings, _shapes
from gpubench.cli import _selection as words
from gpubench.errors import UsageError
from gpubench.measure import load, targets
from gpubench.measure.document import new_run
from gpubench.measure.plan import Scope, Target
from gpubench.measure.request import Request, planned
from gpubench.measure.targets import Choice
from gpubench.model.case import Case
from gpubench.model.op import Op
from gpubench.model.result import Device, Selection, Settings
from gpubench.suggestions import require_choice


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """The options that say what to measure and how, under their own names and defaults; None: not given."""

    ops: str | None = None
    sizes: list[str] | None = None
    params: list[str] | None = None
    dtypes: str = "float32"
    backends: str = "auto"
    devices: str | None = None
    allow_software: bool = False
    mode: str | None = None
    forms: str | None = None
    variant: list[str] | None = None
    allow_tf32: bool = False
    no_autotune: bool = False
    regimes: str | None = None
    calls: int = 10
    threads: int | None = None
    filter: list[str] | None = None
    skip: list[str] | None = None
    check_only: bool = False
    quick: bool = False
    rigorous: bool = False
    sessions: int | None = None
    min_samples: int | None = None
    max_samples: int | None = None
    max_time: str | None = None
    precision: str | None = None
    case_timeout: str = "60s"
    budget: str | None = None
    refine: str = "auto"
    break_even_timings: int = 400
    order: str = "interleave"
    seed: int = 1
    inputs: str = "random"
    cache: str = "warm"
    label: str | None = None
    tag: list[str] | None = None
    context: list[str] | None = None

    @property
    def splits(self) -> bool:
        """Whether ops are asked to be split over CPU and GPU."""
        return self.mode == "hybrid" or "hybrid" in f"{self.backends},{self.devices or ''}"

    @property
    def roofs(self) -> bool:
        """Whether what was asked for is `--ops roofline` alone."""
        return _roofline.asked(self.ops)


def request(typed: Typed, *, began: float) -> Request:
    """The plan on the devices at hand; `began` is the monotonic time from which the budget counts.

    Raises UsageError for words that nothing answers to, and Unavailable for a device that was named and is absent.
    """
    _check_choices(typed)
    names = words.parse_ops(typed.ops or words.DEFAULT_SUITE)
    declared = {name: kernels.load(name) for name in names}
    chosen = selection(typed, declared)
    how = settings(typed, chosen, declared)
    wish = _mode.wished(
        typed.mode, allow_software=typed.allow_software, named=typed.backends != "auto" or bool(typed.devices)
    ) or words.parse_wish(typed.backends, typed.devices, typed.allow_software)
    keep = selectors.selection(chosen.filter, chosen.skip)
    context = pairs(typed.context or [])
    choice = targets.choose(wish, one_of_each=len(chosen.sizes) < len(names))
    found = on_devices(typed, chosen, how, choice, keep, context=context, began=began)
    found = msgspec.structs.replace(found, required=targets.required(wish, choice))
    if keep is not None and not any(workload.cases for workload in planned(found)):
        raise UsageError(
            "empty-selection", "--filter and --skip leave no case to measure",
            why="no planned case matches", hint="--dry-run without them lists the case ids",
        )  # fmt: skip
    return found


def _check_choices(typed: Typed) -> None:
    require_choice(typed.order, ("interleave", "sequential"), "--order")
    require_choice(typed.inputs, ("random", "zeros", "ones"), "--inputs")
    require_choice(typed.cache, ("warm", "cold"), "--cache")
    require_choice(typed.refine, ("auto", "on", "off"), "--refine")
    if typed.quick and typed.rigorous:
        raise UsageError(
            "two-presets", "--quick and --rigorous contradict each other",
            why="each sets sessions and precision", hint="leave one of them out",
        )  # fmt: skip


def selection(typed: Typed, declared: Mapping[str, Op]) -> Selection:
    """What to measure of the ops `declared`; the devices are not known yet."""
    names = list(declared)
    return Selection(
        ops=names,
        sizes=words.parse_sizes(typed.sizes or [], names),
        dtypes=words.parse_dtypes(typed.dtypes),
        forms=words.parse_forms(typed.forms),
        regimes=words.parse_regimes(typed.regimes or ("resident" if typed.roofs else None)),
        calls=typed.calls,
        params=_shapes.parse_params(typed.params or [], declared),
        variants=_shapes.parse_variants(typed.variant or [], declared, allow_tf32=typed.allow_tf32),
        filter=typed.filter or [],
        skip=typed.skip or [],
    )


def settings(typed: Typed, selection: Selection, declared: Mapping[str, Op]) -> Settings:
    """How to measure it: the preset, then what was given."""
    overheads = {name for name, op in declared.items() if op.overhead is not None}
    sized = {*selection.sizes, *overheads, *(_roofline.OPS if typed.roofs else ())}
    brief = typed.quick or typed.roofs or (overheads == set(declared) and not selection.sizes)
    return words.settings(
        preset="rigorous" if typed.rigorous else "quick" if brief else None,
        every_size_given=all(name in sized for name in declared), more=bool(overheads) or typed.splits,
        budget=typed.budget, case_timeout=typed.case_timeout, max_time=typed.max_time, precision=typed.precision,
        sessions=1 if typed.check_only else typed.sessions, min_samples=typed.min_samples,
        max_samples=typed.max_samples, order=typed.order, seed=typed.seed, inputs=typed.inputs, cache=typed.cache,
        threads=typed.threads, refine=typed.refine, break_even_timings=typed.break_even_timings,
        autotune=not (typed.no_autotune or typed.check_only),  # trials are timings, and --check-only takes none
    )  # fmt: skip


def on_devices(
    typed: Typed, selection: Selection, settings: Settings, choice: Choice, keep: Callable[[Case], bool] | None,
    *, context: dict[str, str], began: float,
) -> Request:  # fmt: skip
    """A selection and settings on the devices of a choice: what the run needs."""
    machine = detect.inspect(extra_records=targets.records(choice))
    usable, free_bytes = machine.cpu.available.value, machine.memory.usable_bytes.value
    _require_cpus(settings.threads, usable)
    settings = msgspec.structs.replace(settings, threads=settings.threads or usable)
    devices = targets.with_gpu_memory(
        [_with_gpu_id(target.device, machine) for target in choice.targets],
        {gpu.id: gpu.memory.usable_bytes.value for gpu in machine.gpus},
    )
    ours = tuple(Target(d, t.forms) for d, t in zip(devices, choice.targets, strict=True))
    selection = msgspec.structs.replace(selection, devices=[d.id for d in devices])
    if typed.roofs:
        selection, keep = _roofline.chosen(selection, devices, _roofline.Host(free_bytes, usable), keep)
    run = new_run(
        argv=sys.argv[1:], selection=selection, settings=settings, machine=machine, devices=devices,
        versions=choice.versions, label=typed.label, tags=typed.tag or [], context=context, environ=os.environ,
    )  # fmt: skip
    ops = {name: kernels.load(name) for name in selection.ops}
    warnings = [*choice.warnings, *_run_warnings.found(machine, selection, settings, ops, devices)]
    return Request(
        run=msgspec.structs.replace(run, warnings=warnings), ops=ops,
        scope=Scope(ours, selection, free_bytes, keep, settings, typed.forms is not None), began=began,
        check_only=typed.check_only,
        load=load.unread if all(device.api == "fake" for device in devices) else load.read,
    )  # fmt: skip


def _with_gpu_id(device: Device, machine: Any) -> Device:
    gpu_id = detect.gpu_for(machine, device.identity) if device.identity else None
    return msgspec.structs.replace(device, gpu_id=gpu_id)


def _require_cpus(threads: int | None, usable: int | None) -> None:
    """Raises UsageError if more threads are asked for than CPUs may be used: they would take turns."""
    if threads is not None and usable is not None and threads > usable:
        raise UsageError(
            "too-many-threads", f"--threads {threads} is more than the {usable} CPUs that may be used",
            why="threads that take turns on a CPU make a slow baseline, and so a flattering speedup",
            hint="leave --threads out: it takes all usable CPUs; `gpubench detect` tells what limits them",
        )  # fmt: skip


def pairs(texts: list[str]) -> dict[str, str]:
    """`K=V` each. Raises UsageError for anything else."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(
                "bad-context", f"--context: {text!r} is not K=V", why="there is no key before an equals sign",
                hint="write for example --context runner=large",
            )  # fmt: skip
        found[key] = value
    return found
