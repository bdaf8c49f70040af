"""`run --append FILE` and `run --like FILE`: measure the plan of an existing result file again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET

from gpubench import backends, kernels
from gpubench.base import units
from gpubench.base.errors import BadPlugin, ExitCode, InputError, UsageError, suggest
from gpubench.cli import request as requesting
from gpubench.cli import selection as words
from gpubench.cli.detect import waiting
from gpubench.cli.options import RunOptions
from gpubench.measure import schedule
from gpubench.measure.plan import Constraints
from gpubench.measure.schedule import RunSpec
from gpubench.measure.targets import DeviceRequest
from gpubench.result import store
from gpubench.result.case import IMPLEMENTATIONS, ORDERED, Case, selector
from gpubench.result.identity import compare, foreign_fields, foreign_gpus, measured_gpus
from gpubench.result.run import Measurement, Run, RunWarning, Selection, Settings, warning

_PROTOCOL = Settings().protocol


def request(options: RunOptions, *, began: float, tell: requesting.Tell | None = None) -> RunSpec:
    """Return the plan of a run, from a file if --append or --like names one. `began`, `tell` and other errors
    are as in `cli.request.request`. Raises UsageError if a typed option contradicts the file, and InputError if
    the file cannot be used here."""
    append, like = options.append, options.like
    stored = _existing(append)
    source, option = (append, "--append") if stored is not None else (like, "--like")
    if source is None:
        return requesting.request(options, began=began, tell=tell)
    plan = stored or store.load(source)
    require_words(plan, f"{option} {source}")
    if stored is not None and like is not None:
        _refuse_another_plan(stored, store.load(like), f"--append {append}", f"--like {like}")
    if stored is not None and stored.settings.protocol != _PROTOCOL:
        raise InputError(
            "not-comparable", f"{option} {source}: the file was measured in another way",
            why=f"it has protocol {stored.settings.protocol}, and this version measures by protocol {_PROTOCOL}",
            hint="start another file: --like FILE measures the plan of a file again",
        )  # fmt: skip
    _refuse_contradictions(options, plan, f"{option} {source}")
    if stored is not None:
        _require_same_functions(stored, f"{option} {source}")
    fresh = _on_same_devices(options, plan, began, tell, again=stored is None)
    if stored is None:
        count = options.sessions or plan.settings.sessions
        again = schedule.repeat_plan(plan, fresh.ops, fresh.constraints, count)
        return msgspec.structs.replace(fresh, resume=again, constraints=_within(fresh.constraints, plan))
    _require_same_machine(stored, fresh.run, f"{option} {source}")
    stored, more = schedule.resume_plan(stored, fresh.ops, fresh.constraints, options.sessions)
    return msgspec.structs.replace(
        fresh, resume=more, constraints=_within(fresh.constraints, plan), run=_reopen(stored, fresh.run)
    )


def result_file(append: str | None) -> str | None:
    """Return the FILE of `--append`, or None without the option. If the user named a `.part` file, return the
    result file to which it belongs.

    Raises UsageError if FILE cannot be a result file.
    """
    if append is None:
        return None
    if append.lower().endswith(store.PART_SUFFIX) and store.is_result_name(append[: -len(store.PART_SUFFIX)]):
        append = append[: -len(store.PART_SUFFIX)]
    if not store.is_result_name(append):
        raise UsageError(
            "not-a-result-file", f"--append {append}: a result file ends in .json or .json.gz",
            why="sessions are added to a result, and a report holds none",
        )  # fmt: skip
    return append


def _existing(append: str | None) -> Run | None:
    """Return the run in the file `append`, or in the `.part` file that continues it, or None without a file."""
    if append is None:
        return None
    part = store.part_to_resume(append)
    return store.load(part or append) if part or os.path.exists(append) else None


def _on_same_devices(
    options: RunOptions, plan: Run, began: float, tell: requesting.Tell | None, *, again: bool
) -> RunSpec:
    """Return the input of the runner with the selection, the settings and the devices of the file."""
    settings = msgspec.structs.replace(plan.settings, protocol=_PROTOCOL)
    if options.budget is not None:
        settings = msgspec.structs.replace(
            settings, budget_s=units.parse_duration(options.budget, option="--budget")
        )
    elif again:  # the file's budget was for choosing its sizes; all of its cases are measured
        settings = msgspec.structs.replace(settings, budget_s=None)
    if tell is not None:
        tell(plan.selection, settings)
    devices = DeviceRequest(devices=tuple(plan.selection.devices), allow_software=True)
    choice, machine = requesting.devices_of(devices, waiting(options.quiet))
    owner = requesting.Request(options, plan.selection, settings, began)
    if options.context is None:
        owner.context = dict(plan.environment.context)
    spec = owner.on(choice, machine)
    # A file that copies has named its regimes, or is older than calls in place.
    copies = not any(outcome.case.memory for outcome in plan.outcomes)
    constraints = msgspec.structs.replace(spec.constraints, named_regimes=copies)
    return msgspec.structs.replace(spec, constraints=constraints, required=frozenset(plan.selection.devices))


def _within(constraints: Constraints, plan: Run) -> Constraints:
    """Return constraints that allow, for each op of the file, only the kinds of cases that the file has of this
    op."""
    kinds = {_kind(outcome.case) for outcome in plan.outcomes}
    ops = {outcome.case.op for outcome in plan.outcomes}

    def keep(case: Case) -> bool:
        selected = constraints.keep is None or constraints.keep(case)
        return selected and (case.op not in ops or _kind(case) in kinds)

    return msgspec.structs.replace(constraints, keep=keep)


def _kind(case: Case) -> tuple[str, str, str, str, str]:
    return (case.op, case.dtype, case.implementation_id, case.regime_id, case.device_id)


def _reopen(stored: Run, fresh: Run) -> Run:
    """Return the stored run in the state in which sessions can be added: incomplete, and without the warning
    about a short budget."""
    warnings = [w for w in stored.warnings if w.code != "budget" or w.id is not None or w.severity == "info"]
    earlier = {(w.code, w.message) for w in warnings}
    fresh_warnings = [
        w for w in (*fresh.warnings, *_software(stored, fresh)) if (w.code, w.message) not in earlier
    ]
    return msgspec.structs.replace(
        stored, complete=False, finished_at=None, paused_s=_paused_s(stored, fresh.started_at),
        exit_code=int(ExitCode.INTERRUPTED), exit_reason="interrupted",
        settings=msgspec.structs.replace(stored.settings, budget_s=fresh.settings.budget_s),
        warnings=[*warnings, *fresh_warnings],
    )  # fmt: skip


def _paused_s(stored: Run, now: str) -> float:
    """Return the seconds since the start of the stored run in which nothing was measured, up to the time
    `now`."""
    earlier_s = 0.0 if stored.paused_s is UNSET else stored.paused_s
    begun, ended = units.parse_time(now), units.parse_time(stored.finished_at or stored.started_at)
    # A killed run counts as ended when its last block began.
    if stored.finished_at is None and stored.sessions:
        last = stored.sessions[-1]
        blocks = (block for outcome in stored.measurements for block in outcome.blocks)
        last_s = max((block.t_s for block in blocks if block.session == last.index), default=0.0)
        started = units.parse_time(last.started_at)
        ended = None if started is None else started + timedelta(seconds=last_s)
    if begun is None or ended is None:
        return earlier_s
    return earlier_s + max(0.0, (begun - ended).total_seconds())


def _software(stored: Run, fresh: Run) -> list[RunWarning]:
    """Return a warning if the software has changed, because the report does not distinguish sessions of two
    versions."""
    before, after = stored.fingerprint.software.fields, fresh.fingerprint.software.fields
    names = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    what = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in names)
    message = f"the sessions of this file were measured with different software: {what}"
    return [warning("software-changed", message)] if names else []


def _require_same_machine(stored: Run, fresh: Run, option: str) -> None:
    """Raise an InputError that names the first fact in which the machine or a device differs."""
    fields = foreign_fields(stored.fingerprint, fresh.fingerprint)
    for scope, name, there, here in (*fields, *foreign_gpus(stored, fresh)):
        raise InputError(
            "different-machine", f"{option}: the file is of another {scope}",
            why=f"{name} is {there} there and {here} here",
        )  # fmt: skip
    likeness = compare(fresh.machine, stored.machine, measured_gpus(stored.devices))
    for name, difference in likeness.differences.items():
        raise InputError(
            "different-machine", f"{option}: the file is of another machine", why=f"{name}: {difference}"
        )


def _require_same_functions(stored: Run, option: str) -> None:
    """Raise an InputError that names the first function whose text changed, because samples of two texts have
    no common median."""
    for outcome in stored.outcomes:
        digest = kernels.load(outcome.case.op).digest
        if isinstance(outcome, Measurement) and digest and outcome.kernel_hash != digest:
            raise InputError(
                "not-comparable", f"{option}: {outcome.case.op} is another function now",
                why="its text changed after the sessions of the file were measured",
                hint="start another file: --like FILE measures the plan of a file again",
            )  # fmt: skip


# ---------------------------------------------------------------- options against the file


def _refuse_contradictions(options: RunOptions, plan: Run, source: str) -> None:
    """Raise UsageError for the first typed option that contradicts the plan of the file."""
    typed = [name for name in sorted(options.explicit) if options.declared[name].plan_field]
    if not typed:
        return
    if "ops" not in options.explicit:  # sizes and shapes are those of the file's ops
        options = options.replace(ops=",".join(plan.selection.ops))
    declared, _ = words.load_ops(words.parse_ops(options.ops))
    selection = requesting.selection(options, declared)
    wish = _fields(selection, requesting.settings(options, selection, declared)) | {
        "backends": _named_backends(options, plan), "devices": words.words(options.devices or "auto", "--devices"),
        "mode": options.mode, "check_only": options.check_only, "label": options.label, "tags": options.tag,
        "context": requesting.pairs(options.context or []),
    }  # fmt: skip
    backends_named = {device.partition(":")[0] for device in wish["devices"]}
    there = _fields(plan.selection, plan.settings) | {
        "backends": _backends_of(plan),
        "devices": [d for d in plan.selection.devices if d.partition(":")[0] in backends_named],
        "mode": "auto" if options.mode == "auto" else _mode_of(plan), "check_only": False, "label": plan.label,
        "tags": plan.tags, "context": plan.environment.context,
    }  # fmt: skip
    for name in typed:
        field = options.declared[name].plan_field or ""
        if _in_order(field, wish) != _in_order(field, there):
            flag = f"--{options.declared[name].key}"
            raise UsageError(
                "contradicts-file", f"{flag} contradicts {source}",
                why=f"the file's plan has {_text(there[field])}, and the option asks for {_text(wish[field])}",
                hint=f"leave {flag} out: the plan is the file's; or start another file",
            )  # fmt: skip


def _refuse_another_plan(stored: Run, model: Run, option: str, like: str) -> None:
    """Raise UsageError if the plans of the existing file and of the `--like` file differ."""
    there, model_plan = (_fields(run.selection, run.settings) for run in (stored, model))
    for name in there:
        if name in ("sessions", "budget_s"):  # each call says these for itself
            continue
        if _in_order(name, there) != _in_order(name, model_plan):
            raise UsageError(
                "contradicts-file", f"{like} contradicts {option}",
                why=f"{name} is {_text(there[name])} there, and {_text(model_plan[name])} in the file to be like",
                hint="start another file, or leave --like out",
            )  # fmt: skip


def _fields(selection: Selection, settings: Settings) -> dict[str, Any]:
    return msgspec.structs.asdict(selection) | msgspec.structs.asdict(settings)


def _in_order(name: str, plan: dict[str, Any]) -> Any:
    """Return a field of a plan, sorted if it is a list of backends or devices."""
    return sorted(plan[name]) if name in ("backends", "devices") else plan[name]


def _mode_of(plan: Run) -> str:
    """Return the mode that selects the kinds of devices in the file."""
    if any(device.composed for device in plan.devices):
        return "hybrid"
    return "cpu" if all(device.kind == "cpu" for device in plan.devices) else "gpu"


def _backends_of(plan: Run) -> set[str]:
    return {device.partition(":")[0] for device in plan.selection.devices}


def _named_backends(options: RunOptions, plan: Run) -> set[str]:
    """Return the requested backends. `auto`, or only optional names, mean the backends of the file."""
    named, there = set(words.words(options.backends, "--backends")), _backends_of(plan)
    required = {name for name in named if not name.endswith("?")}
    if "auto" in named or not required:
        return there
    if "hybrid" in required:  # it brings along the devices that it splits work over
        required |= {device.split(":")[1] for device in plan.selection.devices if device.startswith("hybrid:")}
    # An optional name beside required ones counts only if the file has it.
    return required | ({name.removesuffix("?") for name in named} & there)


def _text(value: Any) -> str:
    if value is UNSET:
        return "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}={_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value) or "none"
    return str(value)


# ---------------------------------------------------------------- the file's words, which have to be known here


def require_words(plan: Run, source: str) -> None:
    """Raise an InputError with the first op, implementation, regime, device or selector of the plan that this
    gpubench does not have."""
    chosen = plan.selection
    for op in dict.fromkeys([*chosen.ops, *(outcome.case.op for outcome in plan.outcomes)]):
        _require_op(op, source)
    for kind, words_of_plan, possible in (
        ("implementation", chosen.implementations, IMPLEMENTATIONS),
        ("regime", chosen.regimes, ORDERED),
    ):
        for word in words_of_plan:
            if word not in possible:
                _refuse_word(source, kind, word, possible)
    for device in dict.fromkeys([*chosen.devices, *(outcome.case.device_id for outcome in plan.outcomes)]):
        backend, _, number = device.partition(":")
        if not backends.has(backend):
            _refuse_word(source, "backend", backend, [*backends.names(), *backends.foreign()])
        if not number:
            _refuse_word(source, "device", device, ())
    for text in (*chosen.filter, *chosen.skip):
        try:
            selector(text, option=source)
        except UsageError:
            _refuse_word(source, "selector", text, ())


def _require_op(op: str, source: str) -> None:
    try:
        kernels.load(op)
    except KeyError:
        file, dot, name = op.rpartition(".")
        if dot:
            raise InputError(
                "unknown-word", f"{source}: {op[:80]!r} is a function of somebody's own",
                why="its file was not named, or has no such function now",
                hint=f"name it too: gpubench run {file}.py:{name}",
            ) from None  # fmt: skip
        _refuse_word(source, "op", op, kernels.names())
    except BadPlugin as error:
        raise InputError(
            "unknown-word", f"{source}: its op {op[:80]!r} cannot be used here", why=error.why or error.message,
            hint=error.hint,
        ) from error  # fmt: skip


def _refuse_word(source: str, kind: str, word: str, possible: Sequence[str]) -> NoReturn:
    raise InputError(
        "unknown-word", f"{source}: there is no {kind} {word[:80]!r} here",
        why="the file was measured with another package or another version of gpubench, or was edited",
        hint=suggest(word, possible) or None,
    )  # fmt: skip
