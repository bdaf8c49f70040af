"""`run --append FILE` and `run --like FILE`: the plan of a result file that is already there, measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpubench import kernels, selectors, store, units
from gpubench.cli import _run_request
from gpubench.cli import _selection as words
from gpubench.cli._run_output import RESULT_SUFFIXES
from gpubench.cli._run_request import Typed
from gpubench.errors import ExitCode, InputError, UsageError
from gpubench.measure import sequel, targets
from gpubench.measure.plan import Scope
from gpubench.measure.request import Request
from gpubench.measure.targets import Wish
from gpubench.model.case import Case
from gpubench.model.result import Measurement, Run, RunWarning, Selection, Settings

# Options that the file's plan answers, by the field that holds the answer. `Typed` names the options.
SELECTED = {
    "ops": "ops", "sizes": "sizes", "params": "params", "dtypes": "dtypes", "forms": "forms", "regimes": "regimes",
    "calls": "calls", "variant": "variants", "allow_tf32": "variants",
}  # fmt: skip
SET = {
    "quick": "preset", "rigorous": "preset", "min_samples": "min_samples", "max_samples": "max_samples",
    "max_time": "max_time_s", "precision": "precision", "case_timeout": "case_timeout_s", "order": "order",
    "seed": "seed", "inputs": "inputs", "cache": "cache", "threads": "threads", "no_autotune": "autotune",
    "refine": "refine", "break_even_timings": "break_even_timings",
}  # fmt: skip
# Compared in a way of their own.
OTHERS = (
    "backends",
    "devices",
    "allow_software",
    "filter",
    "skip",
    "check_only",
    "label",
    "tag",
    "context",
    "mode",
)
# What each call says for itself.
FREE = ("sessions", "budget")
FREE_FIELDS = ("sessions", "budget_s")


def request(
    typed: Typed, given: Iterable[str], *, append: str | None, like: str | None, began: float
) -> Request:
    """What measuring asks for. `given` are the names of the options that the command line holds.

    Raises UsageError if one of them contradicts the file, InputError if the file is not usable or is of another
    machine.
    """
    known = _existing(append)
    source, option = (append, "--append") if known is not None else (like, "--like")
    if source is None:
        return _run_request.request(typed, began=began)
    plan = known or store.load(source)
    if known is not None and like is not None:
        _refuse_another_plan(known, store.load(like), f"--append {append}", f"--like {like}")
    _refuse_contradictions(typed, set(given), plan, f"{option} {source}")
    fresh = _on_same_devices(typed, plan, began)
    if known is None:
        count = typed.sessions or plan.settings.sessions
        again = sequel.again(plan, fresh.ops, fresh.scope, count)
        return msgspec.structs.replace(fresh, sequel=again, scope=_within(fresh.scope, plan))
    _require_same_machine(known, fresh.run, f"{option} {source}")
    known, more = sequel.continued(known, fresh.ops, fresh.scope, typed.sessions)
    return msgspec.structs.replace(
        fresh, sequel=more, scope=_within(fresh.scope, plan), run=_reopened(known, fresh.run)
    )


def require_result_file(append: str | None) -> None:
    """Raises UsageError if FILE of `--append` cannot hold a result."""
    if append is not None and not append.endswith(RESULT_SUFFIXES):
        raise UsageError(
            "not-a-result-file", f"--append {append}: a result file ends in .json or .json.gz",
            why="sessions are added to a result, and a report holds none", hint="name a .json file",
        )  # fmt: skip


def _existing(append: str | None) -> Run | None:
    return store.load(append) if append is not None and os.path.exists(append) else None


def _on_same_devices(typed: Typed, plan: Run, began: float) -> Request:
    """The file's selection and settings on the devices that it names, as a new run."""
    choice = targets.choose(Wish(devices=tuple(plan.selection.devices), allow_software=True))
    settings = plan.settings
    if typed.budget is not None:
        settings = msgspec.structs.replace(
            settings, budget_s=units.parse_duration(typed.budget, option="--budget")
        )
    context = plan.environment.context if typed.context is None else None
    found = _run_request.on_devices(
        typed, plan.selection, settings, choice, selectors.selection(plan.selection.filter, plan.selection.skip),
        context=_run_request.pairs(typed.context or []) if context is None else dict(context), began=began,
    )  # fmt: skip
    return msgspec.structs.replace(found, required=frozenset(plan.selection.devices))


def _within(scope: Scope, plan: Run) -> Scope:
    """A search that goes on looks at the forms, regimes and devices that the file has of an op, and at no case that
    the file's selection leaves out."""
    known = {_kind(outcome.case) for outcome in plan.outcomes}
    ops = {outcome.case.op for outcome in plan.outcomes}

    def keep(case: Case) -> bool:
        selected = scope.keep is None or scope.keep(case)
        return selected and (case.op not in ops or _kind(case) in known)

    return msgspec.structs.replace(scope, keep=keep)


def _kind(case: Case) -> tuple[str, str, str, str, str]:
    return (case.op, case.dtype, case.form_id, case.regime_id, case.device_id)


def _reopened(known: Run, fresh: Run) -> Run:
    """The file as it stands while sessions are added: not complete, and without word of a budget that was too short."""
    kept = [w for w in known.warnings if w.code != "budget" or w.id is not None or w.severity == "info"]
    told = {(w.code, w.message) for w in kept}
    return msgspec.structs.replace(
        known, complete=False, finished_at=None, exit_code=int(ExitCode.INTERRUPTED), exit_reason="interrupted",
        settings=msgspec.structs.replace(known.settings, budget_s=fresh.settings.budget_s),
        warnings=[*kept, *(w for w in (*fresh.warnings, *_software(known, fresh)) if (w.code, w.message) not in told)],
    )  # fmt: skip


def _software(known: Run, fresh: Run) -> list[RunWarning]:
    """Sessions of two programs in one file look alike in the report."""
    before, after = known.fingerprint.software.fields, fresh.fingerprint.software.fields
    changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    if not changed:
        return []
    what = ", ".join(f"{name} {before[name]} -> {after[name]}" for name in changed)
    return [
        RunWarning(
            code="software-changed",
            message=f"the sessions of this file were measured with different software: {what}",
            hint="use --like to measure the same plan into a file of its own",
        )  # fmt: skip
    ]


def _require_same_machine(known: Run, fresh: Run, option: str) -> None:
    """Raises InputError naming the first field in which the machine or a device is another one."""
    for kind in ("machine", "device"):
        before, after = getattr(known.fingerprint, kind).fields, getattr(fresh.fingerprint, kind).fields
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                raise InputError(
                    "different-machine", f"{option}: the file is of another {kind}",
                    why=f"{name} is {before.get(name, 'absent')} there and {after.get(name, 'absent')} here",
                    hint="add sessions on the same machine, or start a file of its own with --like",
                )  # fmt: skip


# ---------------------------------------------------------------- options against the file


def _refuse_contradictions(typed: Typed, given: set[str], plan: Run, option: str) -> None:
    """Raises UsageError for the first option that asks for another plan than the file has."""
    if "ops" not in given:  # sizes and shapes are those of the file's ops
        typed = msgspec.structs.replace(typed, ops=",".join(plan.selection.ops))
    for name in sorted(given & set(Typed.__struct_fields__)):
        wanted, there = _answers(name, typed, plan)
        if wanted != there:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                "contradicts-file", f"{flag} contradicts {option}",
                why=f"the file's plan has {_text(there)}, and the option asks for {_text(wanted)}",
                hint=f"leave {flag} out: the plan is the file's; or start another file",
            )  # fmt: skip


def _refuse_another_plan(known: Run, model: Run, option: str, like: str) -> None:
    """Raises UsageError if the file that is there has another plan than the one that it is to be like."""
    for part in ("selection", "settings"):
        there, wanted = (_in_order(msgspec.structs.asdict(getattr(run, part))) for run in (known, model))
        for name in there:
            if name not in FREE_FIELDS and there[name] != wanted[name]:
                raise UsageError(
                    "contradicts-file", f"{like} contradicts {option}",
                    why=f"{name} is {_text(there[name])} there, and {_text(wanted[name])} in the file to be like",
                    hint="start another file, or leave --like out",
                )  # fmt: skip


def _in_order(plan: dict[str, Any]) -> dict[str, Any]:
    """Devices as names alone: one file found them by itself, the other was told them."""
    return {name: sorted(value) if name == "devices" else value for name, value in plan.items()}


def _answers(name: str, typed: Typed, plan: Run) -> tuple[Any, Any]:
    """What the option asks for, and what the file has."""
    if name in SELECTED:
        field = SELECTED[name]
        return getattr(_selection(typed), field), getattr(plan.selection, field)
    if name in SET and hasattr(plan.settings, SET[name]):
        return getattr(_settings(typed), SET[name]), getattr(plan.settings, SET[name])
    compare: dict[str, Callable[[], tuple[Any, Any]]] = {
        "backends": lambda: _backends(typed, plan),
        "devices": lambda: (sorted(words.words(typed.devices or "", "--devices")), _named(typed, plan)),
        "mode": lambda: (typed.mode, _mode_of(plan) if typed.mode != "auto" else "auto"),
        "filter": lambda: _kept(typed, plan),
        "skip": lambda: _kept(typed, plan),
        "check_only": lambda: (typed.check_only, False),
        "label": lambda: (typed.label, plan.label),
        "tag": lambda: (typed.tag, plan.tags),
        "context": lambda: (_run_request.pairs(typed.context or []), plan.environment.context),
    }
    return compare[name]() if name in compare else (None, None)


def _mode_of(plan: Run) -> str:
    """The mode that takes the sides which the file has."""
    if any(device.composed for device in plan.devices):
        return "hybrid"
    return "cpu" if all(device.kind == "cpu" for device in plan.devices) else "gpu"


def _selection(typed: Typed) -> Selection:
    declared = {name: kernels.load(name) for name in words.parse_ops(typed.ops or words.DEFAULT_SUITE)}
    return _run_request.selection(typed, declared)


def _settings(typed: Typed) -> Settings:
    declared = {name: kernels.load(name) for name in words.parse_ops(typed.ops or words.DEFAULT_SUITE)}
    return _run_request.settings(typed, _run_request.selection(typed, declared), declared)


def _backends(typed: Typed, plan: Run) -> tuple[Any, Any]:
    """Backends that are named and required have to be those of the file; `auto` and `cupy?` leave it open."""
    named = words.words(typed.backends, "--backends")
    there = sorted({device.partition(":")[0] for device in plan.selection.devices})
    if "auto" in named or all(name.endswith("?") for name in named):
        return None, None
    optional = {name.removesuffix("?") for name in named if name.endswith("?")}
    wanted = {name for name in named if not name.endswith("?")}
    if "hybrid" in wanted:  # it brings along the devices that it splits work over
        wanted |= {device.split(":")[1] for device in plan.selection.devices if device.startswith("hybrid:")}
    return sorted(wanted | (optional & set(there))), there


def _named(typed: Typed, plan: Run) -> list[str]:
    named = words.words(typed.devices or "", "--devices")
    backends = {name.partition(":")[0] for name in named}
    return sorted(device for device in plan.selection.devices if device.partition(":")[0] in backends)


def _kept(typed: Typed, plan: Run) -> tuple[Any, Any]:
    """A selection that keeps every case of the file contradicts nothing."""
    keep = selectors.selection(typed.filter or [], typed.skip or [])
    measured = [outcome.id for outcome in plan.outcomes if isinstance(outcome, Measurement)]
    kept = [o.id for o in plan.outcomes if isinstance(o, Measurement) and (keep is None or keep(o.case))]
    return f"{len(kept)} of its cases", f"{len(measured)} of its cases"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}={_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value) or "none"
    return str(value)
