"""Turns the options of `run` into a Selection, Settings and a DeviceRequest. For an unknown word a similar one
is suggested, if there is one.

In `--ops`, the presets `roofline` and `health` mean some ops at certain sizes. `roofline` shows what each
device can do. `health` shows whether a GPU is as fast as others of its model, and how fast the links of several
GPUs are; fleets are compared by `health`. A user's functions are words, too: `options.py`,
`options.py:pairwise`, `--ops options.py,add`.
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, cast

import msgspec

import gpubench.detect as detection
from gpubench import backends, kernels
from gpubench.base import units
from gpubench.base.errors import UsageError, require_choice, suggest
from gpubench.cli.options import RunOptions
from gpubench.functions import sources
from gpubench.kernels.contract.op import ITEMSIZE, Dtype, Op
from gpubench.measure.plan import variants
from gpubench.measure.targets import DeviceRequest, plugin_warning
from gpubench.result.case import (
    DEVICE_GROUP,
    DTYPES,
    IMPLEMENTATIONS,
    IN_PLACE,
    LONG_DTYPES,
    ORDERED,
    REGIMES,
    RESIDENT,
    SITUATIONS,
    TF32,
    Case,
    own_names,
)
from gpubench.result.run import Device, RunWarning, Selection, Settings

Shapes = dict[str, list[dict[str, int]]]
DEFAULT_SUITE = "vector,matmul,activation"
# Budgets of a session without --sizes: the default, and that of --quick.
DEFAULT_BUDGET_S, QUICK_BUDGET_S = 45.0, 20.0
# The same if there is only a CPU, so no size to look for: 20 s and 10 s with start and report.
HOST_BUDGETS_S = {DEFAULT_BUDGET_S: 19.0, QUICK_BUDGET_S: 9.0}
# Seconds of a session with a search, and the most sessions of a budget. More sessions show what one session
# cannot.
SESSION_S, MOST_SESSIONS = 100.0, 3
# The first run on a machine may take longer by this share of a default budget, or at least by these seconds.
ONCE_SHARE, ONCE_LEAST_S = 0.25, 10.0
# Settings without --sizes: the budget is used for more sizes instead of more precision, so there is one session
# with one short block for each case (docs/decisions/0023-passes.md).
SEARCH = {
    "min_samples": 4, "max_samples": 8, "max_time_s": 0.2, "precision": 0.05, "warmup_s": 0.0, "sample_s": 0.001
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "sessions": 1, "min_samples": 4, "max_samples": 16, "max_time_s": 0.2, "precision": 0.05, "warmup_s": 0.0,
        "sample_s": 0.002,
    },
    "default": {
        "sessions": 1, "min_samples": 4, "max_samples": 8, "max_time_s": 0.3, "precision": 0.02, "warmup_s": 0.0,
        "sample_s": 0.005,
    },
    "rigorous": {
        "sessions": 10, "min_samples": 20, "max_samples": 200, "max_time_s": 5.0, "precision": 0.01, "warmup_s": 0.25,
        "sample_s": 0.005,
    },
}  # fmt: skip


def words(text: str, option: str) -> list[str]:
    """Return the items of a comma-separated list, without duplicates. Raises UsageError, which names `option`, if
    it is empty."""
    items = units.split_words(text)
    if not items:
        raise UsageError(
            "empty-list", f"{option}: the list is empty", why=f"{text!r} names nothing",
            hint=f"name something, or leave {option} out",
        )  # fmt: skip
    return list(dict.fromkeys(items))


def parse_ops(text: str | None) -> list[str]:
    """Return the names of the ops in a list of ops, groups and presets. None means the ops of a plain run. The
    order is that of `gpubench ops`, with ops of other packages and the user's functions last. Raises UsageError
    for an empty list and for an unknown word."""
    groups = kernels.groups()
    every = [name for members in groups.values() for name in members]
    possible = [*groups, *every, "all", *PRESET_OPS, "claims"]
    names: set[str] = set()
    foreign: list[str] = []
    for word in words(DEFAULT_SUITE if text is None else text, "--ops"):
        if word == "all":
            names.update(kernels.usual())
            foreign += kernels.foreign()
        elif word in PRESET_OPS:
            names.update(PRESET_OPS[word])
        elif word in groups:
            names.update(groups[word])
        elif word in every:
            names.add(word)
        elif word in kernels.own():
            foreign.append(word)
        else:
            foreign.append(
                require_choice(word, [*possible, *kernels.foreign()], "--ops", listing="gpubench ops")
            )
    return [*(name for name in every if name in names), *dict.fromkeys(foreign)]


def load_ops(names: Sequence[str]) -> tuple[dict[str, Op], list[RunWarning]]:
    """Return the ops of these names, and warnings about ops that are broken or whose name is taken.

    Raises BadPlugin if some ops are broken and none is left.
    """
    ops, broken = kernels.load_all(names)
    if broken and not ops:
        raise next(iter(broken.values()))
    taken = {name: error for name, error in kernels.find_namesakes().items() if name in names}
    return ops, [*map(plugin_warning, (*broken.values(), *taken.values())), *sources.notes(ops)]


def parse_sizes(texts: Iterable[str], ops: Sequence[str]) -> dict[str, list[int]]:
    """Return the sizes by op, from plain lists and from `OP=LIST` for an op or a group. An op gets its own
    lists, else those of its group, else the plain ones, together. The list `auto` gives no entry, and drops the
    lists before it. Raises UsageError for an unknown op and for a list that cannot be read."""
    groups = kernels.groups()
    short = {name: op for op, name in own_names(ops).items()}
    lists: list[tuple[int, list[str], str]] = []
    for text in texts:
        where, equals, numbers = text.rpartition("=")
        if not equals:
            lists.append((0, list(ops), numbers))
        elif where in groups:
            lists.append((1, [op for op in ops if op in groups[where]], numbers))
        else:
            where = require_choice(short.get(where, where), [*groups, *ops], "--sizes")
            lists.append((2, [where], numbers))
    sizes: dict[tuple[str, int], list[int]] = {}  # by op and rank
    for rank, targets, numbers in sorted(lists, key=operator.itemgetter(0)):
        chosen = None if numbers.strip() == "auto" else units.parse_sizes(numbers)
        for op in targets:
            sizes[op, rank] = [] if chosen is None else sorted({*sizes.get((op, rank), ()), *chosen})
    own = {op: chosen for (op, _), chosen in sizes.items()}  # of the highest rank
    return {op: chosen for op, chosen in own.items() if chosen}


def parse_dtypes(text: str) -> list[Dtype]:
    """Return the dtypes in a list of long or short names. Raises UsageError for an empty list and for an
    unknown name."""
    long = [LONG_DTYPES.get(word, word) for word in words(text, "--dtypes")]
    return [cast("Dtype", require_choice(word, [*DTYPES, *LONG_DTYPES], "--dtypes")) for word in long]


def parse_implementations(text: str | None) -> list[str]:
    """Return the named implementations, `library` or `tuned`, or both for None or `all`. Raises UsageError for
    an empty list and for an unknown name."""
    named = words(text, "--implementations") if text is not None else ["all"]
    implementations = [require_choice(word, [*IMPLEMENTATIONS, "all"], "--implementations") for word in named]
    return list(IMPLEMENTATIONS) if "all" in implementations else implementations


def parse_regimes(text: str | None, calls: int) -> list[str]:
    """Return the ids of the named regimes of a GPU, or the usual ones for None. `resident` and `in-place` name
    all that begin with these words, and `calls` is the number of calls per copy in transfer-once. Raises
    UsageError for an empty list and for an unknown name."""
    if text is None:
        return list(REGIMES)
    several = {RESIDENT: RESIDENT, IN_PLACE: IN_PLACE, "in place": IN_PLACE}
    once = {"transfer-once-10": (f"{calls} calls a copy", "transfer-once")}
    ids = dict(once.get(regime, (word, regime)) for word, regime in SITUATIONS.items()) | several
    named = [
        ids.get(require_choice(word, (*ids, *ORDERED), "--regimes"), word) for word in words(text, "--regimes")
    ]
    begins = tuple(f"{word}-" for word in several if word in named)
    return [regime for regime in ORDERED[1:] if regime in named or regime.startswith(begins)]


def parse_wish(backend_text: str, device_text: str | None, allow_software: bool) -> DeviceRequest:
    """Return the request for these backends and device ids. A backend with a question mark, such as `cupy?`, is
    optional. Raises UsageError for an empty list, an unknown backend and a malformed id."""
    required: list[str] = []
    optional: list[str] = []
    named = words(backend_text, "--backends")
    for word in named:
        name = word.removesuffix("?")
        _require_backend(name, "--backends", "auto")
        if name != "auto":
            (optional if word.endswith("?") else required).append(name)
    if "auto" in named and required + optional:
        optional += [name for name in backends.usual() if name not in required + optional]
    devices = words(device_text, "--devices") if device_text is not None else []
    for device in devices:
        name, _, index = device.partition(":")
        _require_backend(name, "--devices")
        if not index:
            raise UsageError(
                "bad-device", f"--devices: {device!r} is not a device id",
                why="a device id is a backend, a colon and an index",
                hint=f"write --backends {name} for all of its devices; an id is numpy:0 or torch:cuda:0",
            )  # fmt: skip
    return DeviceRequest(tuple(required), tuple(optional), tuple(devices), allow_software)


def _require_backend(name: str, option: str, *others: str) -> None:
    """Raise UsageError for a name that is neither a backend nor one of `others`."""
    if not backends.has(name):
        require_choice(
            name, [*backends.names(), *backends.foreign(), *others], option,
            hint=f"write --mode {name.lower()}" if name.lower() in ("cpu", "gpu") else "",
        )  # fmt: skip


# Options whose values are settings without conversion.
GIVEN = (
    "sessions", "min_samples", "max_samples", "order", "seed", "inputs", "cache", "threads",
)  # fmt: skip


def settings(options: RunOptions, *, preset: str | None, every_size_given: bool, more: bool) -> Settings:
    """Return the settings: the values of the preset, by default `default`, replaced by the given options. If not
    every size is given, they are SEARCH and a budget for each session, which `more` doubles. Raises UsageError
    for values that contradict each other or cannot be read."""
    name = preset or "default"
    values: dict[str, Any] = {"preset": name, **PRESETS[name]}
    if not every_size_given:
        each_s = (QUICK_BUDGET_S if options.quick else DEFAULT_BUDGET_S) * (2 if more else 1)
        values.update(SEARCH, budget_s=each_s * (options.sessions or values["sessions"]))
    if options.budget is not None:
        values["budget_s"] = units.parse_duration(options.budget, option="--budget")
        if preset is None and not every_size_given:
            values["sessions"] = min(MOST_SESSIONS, max(1, int(values["budget_s"] // SESSION_S)))
    for name in ("case_timeout", "max_time"):
        if (text := getattr(options, name)) is not None:
            values[f"{name}_s"] = units.parse_duration(text, option=f"--{options.declared[name].key}")
    if options.precision is not None:
        values["precision"] = units.parse_percent(options.precision, option="--precision")
    values.update(options.more_settings())
    values.update({name: value for name in GIVEN if (value := getattr(options, name)) is not None})
    if options.check_only:  # trials are timings, and --check-only takes none; it ends when all is checked
        values.update(sessions=1, autotune=False, budget_s=values["budget_s"] if options.budget else None)
    if options.page_locked:
        values["page_locked"] = True
    if options.no_autotune:
        values["autotune"] = False
    if options.max_samples is None:  # a preset's limit gives way to what was asked for
        values["max_samples"] = max(values["max_samples"], values["min_samples"])
    if values["max_samples"] < values["min_samples"]:
        raise UsageError("bad-samples", why=f"{values['max_samples']} < {values['min_samples']}")
    return Settings(**values)


# ---------------------------------------------------------------- shapes beside the size, named kernels


def parse_params(texts: Iterable[str], ops: Mapping[str, Op]) -> Shapes:
    """Return the shapes by op, from `[OP:]NAME=LIST[,NAME=LIST...]`: all combinations of the values. OP may be
    a group. Without OP, every op that declares all of the names gets the shapes. Raises UsageError for a text
    that the ops do not allow."""
    shapes_by_op: Shapes = {}
    for text in texts:
        where, values = _shape_values(text)
        targets = _shape_ops(text, where, list(values), ops)
        for name in [name for name, numbers in values.items() if 0 in numbers]:
            if any("(0)" not in ops[op].options[name] for op in targets):
                _refuse_shape(text, f"{name} is at least 1")
        shapes = [
            dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())
        ]
        for op in targets:
            shapes_of = shapes_by_op.setdefault(op, [])
            shapes_of += [shape for shape in shapes if shape not in shapes_of]
    return shapes_by_op


def _shape_values(text: str) -> tuple[str, dict[str, list[int]]]:
    """Return the op or group before the colon, if any, and the ascending values by name. Raises UsageError for
    a text of another form."""
    lists: dict[str, list[str]] = {}
    where, name = "", ""
    for place, item in enumerate(text.split(",")):
        head, equals, first = item.partition("=")
        if equals:
            name = head.strip()
            if place == 0 and ":" in name:
                where, _, name = (part.strip() for part in name.partition(":"))
            if not name or ":" in name or name in lists:
                _refuse_shape(text, f"{item.strip()!r} is no new NAME=LIST")
        elif not name:
            _refuse_shape(text, "there is no name before a list of values")
        lists.setdefault(name, []).append(first if equals else item)
    if "n" in lists:
        _refuse_shape(text, "n is the size", "give sizes with --sizes")
    values = {}
    for name, items in lists.items():
        sizes = [item for item in items if item.strip() != "0"]
        values[name] = [0] * (len(sizes) < len(items))  # `parse_sizes` refuses 0, the default of some params
        values[name] += units.parse_sizes(",".join(sizes), option="--params") if sizes else []
    return where, values


def _shape_ops(text: str, where: str, names: Sequence[str], ops: Mapping[str, Op]) -> list[str]:
    """Return the ops of the op or group `where` (empty: all) that declare all params in `names`. Raises
    UsageError if there is none."""
    if where:
        require_choice(where, [*sorted({op.group for op in ops.values()}), *ops], "--params")
    concerned = [op for name, op in ops.items() if where in ("", name, op.group)]
    targets = [op.name for op in concerned if all(name in op.options for name in names)]
    if targets:
        return targets
    declared = sorted({name for op in concerned for name in op.options})
    unknown = [name for name in names if name not in declared]
    takes = "; ".join(f"{op.name} takes {', '.join(op.options)}" for op in concerned if op.options)
    why = takes or f"{', '.join(op.name for op in concerned)}: nothing beside the size"
    raise UsageError(
        "bad-params",
        f"--params: no op has a param {unknown[0]!r}"
        if unknown
        else f"--params: no op has all of {text[:60]!r}",
        why=why,
        hint=(suggest(unknown[0], declared) or None)
        if unknown
        else "give the params of each op in a --params of its own",
    )


def _refuse_shape(
    text: str, why: str, hint: str = "write it as columns=256,1024 or matmul:m=64,k=1k:4k:x2"
) -> NoReturn:
    raise UsageError("bad-params", f"--params: {text[:60]!r} is not usable", why=why, hint=hint)


def parse_variants(texts: Iterable[str], *, allow_tf32: bool) -> list[str]:
    """Return the names of variants without duplicates, with `tf32` if it is allowed. Whether a kernel has such
    a name is checked later, when the devices are known. Raises UsageError for an empty list, and for `tf32` as
    a name."""
    named = list(dict.fromkeys(word for text in texts for word in words(text, "--variant")))
    if TF32 in named:
        raise UsageError(
            "unknown-value", f"--variant: {TF32} is no kernel", why="it is a way to run the library's matmul",
            hint="write --allow-tf32",
        )  # fmt: skip
    return [*named, *([TF32] if allow_tf32 else [])]


def require_variants(names: Iterable[str], ops: Mapping[str, Op]) -> None:
    """Raise UsageError for a name that no kernel has, except `tf32`. The ops must already include the kernels
    of the backends."""
    possible = sorted({name for op in ops.values() for name in variants(op)})
    for word in names:
        if word == TF32:
            continue
        if not possible:
            raise UsageError(
                "unknown-value", f"--variant: there is no {word!r}", why="these ops have no named kernels",
                hint="leave --variant out; `gpubench ops --json` lists those that have some",
            )  # fmt: skip
        require_choice(word, possible, "--variant")


HEALTH = "health"
# Ops on pairs of GPUs and on device groups. They are left out if there is only one GPU.
LINKS = ("p2p", "allreduce")
PRESET_OPS = {"roofline": ("copy", "matmul"), HEALTH: ("matmul", "copy", "upload", "download", *LINKS)}
_MIB = 2**20
_HALVES = ("float16", "bfloat16")
# Bytes of an array that no cache holds, and of a smaller one if memory is short (the report then says
# "cache-sized").
_ARRAY_BYTES, _SMALL_ARRAY_BYTES, _SOFTWARE_ARRAY_BYTES = 256 * _MIB, 64 * _MIB, 128 * _MIB
# Memory that such a copy needs, with margins: two sets of buffers on a device, and float64 copies for the check
# on the host.
_DEVICE_BYTES, _HOST_BYTES = 1536 * _MIB, 5 * 1024 * _MIB
_LARGE_DEVICE_BYTES = 8 * 1024 * _MIB
_MANY_CPUS = 8


class Host(NamedTuple):
    """The facts about the host on which the sizes for a CPU depend."""

    memory_bytes: int | None  # the free memory in bytes; None if it is unknown
    cpus: int | None  # the number of usable CPUs; None if it is unknown


def find_presets(text: str | None) -> list[str]:
    """Return the presets among the words of `--ops`. None means that the option was not given."""
    return [word for word in PRESET_OPS if word in units.split_words(text)]


def choose_sizes(
    preset: str,
    selection: Selection,
    devices: Sequence[Device],
    host: Host,
    keep: Callable[[Case], bool] | None,
) -> tuple[Selection, Callable[[Case], bool]]:
    """Return the selection with sizes for the ops of the preset, and a filter that leaves each device its own
    sizes. Sizes that the user gave stay. If there are GPUs, `health` measures device groups and each GPU model
    by its first backend."""
    gpus = [device for device in devices if device.kind == "gpu"] if preset == HEALTH else []
    first = backends.drivers(gpu for gpu in gpus if gpu.backend != DEVICE_GROUP)
    measured = [d for d in devices if d.backend in (DEVICE_GROUP, first.get(d.name))] if gpus else devices
    ids = {device.id for device in measured}
    widest = max(ITEMSIZE[dtype] for dtype in selection.dtypes)
    sides = {"matmul": 8192, "copy": _ARRAY_BYTES // widest}  # of health; its other ops count bytes
    own = {
        (op, dtype, device.id): (sides.get(op, _ARRAY_BYTES),) if gpus else peak_sizes(op, dtype, device, host)
        for op in PRESET_OPS[HEALTH if gpus else "roofline"] if op in selection.ops and op not in selection.sizes
        for dtype in selection.dtypes
        for device in measured
    }  # fmt: skip
    added: dict[str, set[int]] = {}
    for (op, _, _), ns in own.items():
        added.setdefault(op, set()).update(ns)

    def keep_case(case: Case) -> bool:
        ns = own.get((case.op, case.dtype, case.device_id))
        right = case.device_id in ids and (ns is None or case.params["n"] in ns)
        return right and (keep is None or keep(case))

    all_sizes = selection.sizes | {op: sorted(ns) for op, ns in added.items()}
    return msgspec.structs.replace(selection, sizes=all_sizes), keep_case


def peak_sizes(op: str, dtype: str, device: Device, host: Host) -> tuple[int, ...]:
    """Return the sizes n at which the op shows the device's peak in a short run. n counts elements for `copy`,
    otherwise the side of square matrices."""
    if op == "copy":
        return (_array_bytes(device, host) // ITEMSIZE[dtype],)
    if device.kind == "cpu":
        if dtype in _HALVES:  # no BLAS has them: each element is converted on its own
            return (512,)
        return (2048, 4096) if (host.cpus or 0) >= _MANY_CPUS else (1024, 2048)
    if device.kind != "gpu":
        return (512,)
    # Most GPUs have few units for float64, so that one large product takes seconds.
    small = (device.memory_bytes or device.usable_bytes or 0) < _LARGE_DEVICE_BYTES or dtype == "float64"
    return (2048, 4096) if small else (4096, 8192)


def _array_bytes(device: Device, host: Host) -> int:
    if device.kind == "cpu":
        free, needed = host.memory_bytes, _HOST_BYTES
    elif device.kind == "gpu":
        free, needed = device.usable_bytes, _DEVICE_BYTES
    else:
        return _SOFTWARE_ARRAY_BYTES if device.kind == "software" else _SMALL_ARRAY_BYTES
    return _SMALL_ARRAY_BYTES if free is not None and free < needed else _ARRAY_BYTES


# The share of the budget for trying functions. It is below START_SHARE (measure/budget.py), because the start also
# opens devices.
TRIAL_SHARE = 0.4


def with_functions(options: RunOptions) -> RunOptions:
    """Return the options with the id of an op in place of each file or function. Raises UsageError for a file
    without a usable function, for a word that names no file, and for a function on a cluster."""
    words = units.split_words(options.ops)
    places = [sources.parse_place(word) for word in words]
    named = [_file(word, options) for word in options.functions or []]
    files = [*named, *(place for place in places if place is not None)]
    if not files:
        return options
    if getattr(options, "cluster", None) is not None:
        raise UsageError(
            "not-with-cluster", "a function of your own is measured on this machine",
            why="the nodes of a cluster do not have its file", hint="leave --cluster out",
        )  # fmt: skip
    ids = sources.declare(files, **trial_words(options))
    rest = [word for word, place in zip(words, places, strict=True) if place is None]
    return with_ops(options.replace(functions=None), ids, rest)


def with_ops(options: RunOptions, ids: Sequence[str], others: Sequence[str] = ()) -> RunOptions:
    """Return the options for the functions with these ids and for `others`, which are ops and groups. If the
    user named no dtype, the functions' dtypes are taken."""
    dtypes = options.dtypes
    if dtypes == options.declared["dtypes"].default:
        dtypes = ",".join(dict.fromkeys(kernels.own()[name].dtypes[0] for name in ids))
    return options.replace(ops=",".join([*ids, *others]), dtypes=dtypes)


def _file(word: str, options: RunOptions) -> sources.CodePlace:
    """Return the place of the file or function `word`, or raise UsageError if it names none."""
    place = sources.parse_place(word)
    if place is not None:
        return place
    stem, _, name = word.partition(".")  # options.call_price is a function's name in results
    is_op = word in kernels.names() or word in kernels.groups()
    near = (
        f"write --ops {','.join([*filter(None, [options.ops]), word])}"
        if is_op
        else f"{suggest(word, kernels.names())} a file is options.py, a function of it options.py:NAME".strip()
    )
    named = [other for other in options.functions or [] if other.endswith(".py")]
    if options.sizes and word[:1].isdigit():
        near = f"write --sizes {options.sizes[-1]},{word}"
    elif os.path.isfile(f"{stem}.py"):
        near = f"write {stem}.py:{name}".rstrip(":")
    elif named and not is_op:
        near = f"write {named[0]}:{word}"
    raise UsageError(
        "bad-function", f"{word!r} is not a file with functions", hint=near,
        why="a file ends in .py, a module has a colon, an op follows --ops",
    )  # fmt: skip


def trial_words(options: RunOptions) -> dict[str, Any]:
    """Return the arguments of a trial of functions: the sizes of all ops, dtypes, time limit in seconds and
    free memory in bytes. The limit is a share of the budget, or None without one. Raises UsageError for sizes,
    dtypes and a budget that cannot be read."""
    lists = [text.rpartition("=")[2] for text in options.sizes or []]
    named = options.dtypes != options.declared["dtypes"].default
    budget = options.budget and units.parse_duration(options.budget, option="--budget")
    return {
        "sizes": sorted({n for text in lists if text.strip() != "auto" for n in units.parse_sizes(text)}),
        "dtypes": parse_dtypes(options.dtypes) if named else [],
        "limit_s": TRIAL_SHARE * budget if budget else None,
        "usable_bytes": detection.read_this_host().memory.usable_bytes.value,  # read anew at each call of a notebook
    }
