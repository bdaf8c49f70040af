"""`gpubench.Policy`: where one call should run, asked by a program at every call in place of a constant threshold.

The first call for an op, dtype and regime fits its curves; every other one looks at a curve for each device and form.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from gpubench.analysis.contenders import (
    Basis,
    CaseGroup,
    ContenderSet,
    Key,
    TimedSplit,
    basis,
    calls_of,
    case_groups,
    choose,
    contender_set,
    may_know,
    split_of,
)
from gpubench.analysis.hybrid import Hybrid
from gpubench.analysis.machine import experiment
from gpubench.analysis.placement import Placement
from gpubench.analysis.thresholds import GpuThreshold, find_threshold, resolve_op
from gpubench.errors import BadPlugin, GpubenchError, InputError, UsageError
from gpubench.model.case import QUEUED, RESIDENT, WAITED, beside_size
from gpubench.model.identity import measured_gpus
from gpubench.model.op import Op, Params, Shape
from gpubench.model.result import Measurement, Run

# The size, one array's shape, the shapes of all inputs, or the params by name.
Size = int | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, int]
Others = tuple[tuple[str, int], ...]  # the params beside the size, by name
# A caller that makes up ever new numbers of calls, or shapes, pays for them, not the memory.
MOST_QUESTIONS = MOST_SHAPES = 4096
_Question = tuple[str, str, Others, str]


class Answer(msgspec.Struct, frozen=True):
    """The place where to run: `device_id` as "cupy:0", its `backend`, and the form that was the fastest there.

    `expected_s` is the time of one call, transfers included where the regime has them; `gain` how many times as long
    the best of the other side (CPU or not) takes, None where nothing competes. `basis` is measured, interpolated, or
    unknown: then all else is None. `fraction` is the GPU's share of the work where the call should be split over the
    CPU and a GPU, `placement` the side of each stage of a workload, c or g: then `backend` is "hybrid", `device_id` as
    "hybrid:cupy:0", and `gain` is over the better of the two.
    """

    device_id: str | None
    backend: str | None
    form: str | None
    expected_s: float | None
    gain: float | None
    basis: Basis
    fraction: float | None = None
    placement: str | None = None


UNKNOWN = Answer(None, None, None, None, None, "unknown")


class Policy:
    """Measured results as a function from op, shape, dtype and regime to a device. Immutable; safe among threads."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """`runs`, the newest first: an op is answered by the newest that compares two devices there."""
        self._groups: dict[Key, list[tuple[Run, CaseGroup]]] = {}
        self._runs = list(runs)
        for run in self._runs:
            for key, group in case_groups(run).items():
                self._groups.setdefault(key, []).append((run, group))
        self._sets: dict[_Question, _Sets] = {}

    @classmethod
    def load(cls, path: str | Path | None = None) -> Policy:
        """The policy of a result file, of this machine's results in a folder, or (None) of those that
        `gpubench run` saves by default. Raises InputError, a GpubenchError, if there is none that is usable."""
        return cls(runs(path))

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(sorted({key.op for key in self._groups}))

    def choose(
        self,
        op: str,
        shape: Size,
        *,
        dtype: Any = "float32",
        regime: str = "transfer-always",
        hybrid: bool = False,
    ) -> Answer:
        """Return where to run `op`, in about ten microseconds; the first call for an op and regime takes milliseconds.

        `shape` is the size n, a mapping of n and further params ({"n": 1024, "m": 16}), the shapes of the op's inputs
        ([a.shape, b.shape]), or that of the first alone: what it does not tell is then square. `dtype` is a name or
        what has one, as NumPy's dtypes do. `regime` says where the data lives: "transfer-always", "transfer-once-N"
        (N calls share one copy), or "resident", on the device, where the caller waits for each call ("resident-queued":
        for many at once). What was not measured, or lies outside the measured sizes, is unknown. `hybrid`: the caller
        can compute a part of the call on either side at once, or a stage on either, so that splits and placements may
        be the answer too, where this very call was measured and the report recommends it. A function of your own may be
        called by its short name. Raises UsageError for an op that nobody knows, for another regime and for a mapping
        without n.
        """
        n, params = size_and_others(op, shape)
        if n < 1:
            return UNKNOWN
        name = dtype if type(dtype) is str else _dtype_name(dtype)
        sets = self._sets.get((op, name, params, regime))
        if sets is None:
            sets = self._prepare(op, name, params, regime)
        answer = UNKNOWN
        for one in sets:
            if not may_know(one, n, two_sides=answer is not UNKNOWN):
                continue
            decision = choose(one, n)
            if decision.best is not None and (decision.against is not None or answer is UNKNOWN):
                split = split_of(one, n, decision) if hybrid and one.splits else None
                if split is not None:
                    return _splitting(split)
                best = decision.best
                seconds = decision.seconds
                gain = None if decision.against is None else decision.against_s / seconds
                answer = Answer(
                    best.device_id,
                    best.device_id.partition(":")[0],
                    best.form,
                    seconds,
                    gain,
                    basis(decision, n),
                )
                if decision.against is not None:
                    break
        return answer

    def threshold(self, op: str, situation: str = "waited", backend: str | None = None) -> GpuThreshold:
        """From which size on the GPU is faster: `waited`, `queued`, `ten calls a copy` or `copied`.

        Raises UsageError for an op that was not measured.
        """
        return find_threshold(self._runs, op, situation, backend)

    def __repr__(self) -> str:
        return f"<gpubench.Policy of {len(self._runs)} results: {', '.join(self.ops)}>"

    def _named(self, op: str) -> str:
        """The measured op of that name. Raises UsageError for a name that neither the results nor gpubench have."""
        if op in self.ops or _load(op) is not None:
            return op
        return resolve_op(op, self.ops)

    def _prepare(self, op: str, dtype: str, params: Others, regime: str) -> _Sets:
        regime_id = require_regime(regime)
        groups = self._groups.get(Key(self._named(op), dtype, params))
        sets = _Sets(groups or (), regime_id)
        # What a caller makes up must not fill the memory.
        if groups is not None and len(self._sets) < MOST_QUESTIONS:
            self._sets[op, dtype, params, regime] = sets
        return sets


class _Sets:
    """The contenders for one kind of call by each file, the newest first. A curve is fitted when it is asked for."""

    def __init__(self, groups: Sequence[tuple[Run, CaseGroup]], regime: str) -> None:
        self._groups, self._regime = groups, regime
        self._sets: dict[int, ContenderSet] = {}

    def __iter__(self) -> Iterator[ContenderSet]:
        for i, (run, group) in enumerate(self._groups):
            known = self._sets.get(i)
            if known is None:
                known = self._sets[i] = contender_set(run, group, self._regime)
            yield known


def _splitting(split: TimedSplit) -> Answer:
    row = split.row
    fraction = row.fraction if isinstance(row, Hybrid) else None
    placement = row.placement if isinstance(row, Placement) else None
    return Answer(
        row.device_id, "hybrid", row.case.case.form, split.seconds, row.gain, "measured", fraction, placement
    )


def require_regime(regime: str) -> str:
    """The id of a regime: "resident" is a call that is waited for. Raises UsageError for any other text."""
    if regime == RESIDENT:
        return WAITED
    if regime in (WAITED, QUEUED, "transfer-always") or calls_of(regime):
        return "transfer-always" if calls_of(regime) == 1 else regime
    raise UsageError(
        "unknown-regime", f"there is no regime {regime!r}",
        why="known: resident, resident-waited, resident-queued, transfer-always, transfer-once-N",
    )  # fmt: skip


def _dtype_name(dtype: Any) -> str:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return str(name if name is not None else dtype)


MOST_FILES = 20  # of this machine; older ones say nothing that these do not
RESULTS_DIR = Path("results")


def runs(source: str | Path | None = None, results_dir: Path = RESULTS_DIR) -> Iterator[Run]:
    """The runs that `source` holds, newest first, each read when it is asked for.

    A file (`-`: standard input) is taken as it is. A folder, or None for `results_dir` and the user's data folder,
    gives the runs of this machine, without those of zeros or ones, cold caches or fewer threads. Raises InputError
    for an unreadable file, and for folders without a usable result.
    """
    from gpubench import store

    if source is not None and not os.path.isdir(source):
        yield store.load(source)
        return
    folders = [Path(source)] if source is not None else [results_dir, store.user_data_dir() / "results"]
    yield from _of_this_machine(store.newest_first(folders), folders)


def _of_this_machine(paths: Iterable[Path], folders: Sequence[Path]) -> Iterator[Run]:
    from gpubench import detect, store
    from gpubench.store.head import load_head

    given, foreign = 0, ""
    for path in paths:
        head = load_head(path)
        if head is None:
            continue
        measured = measured_gpus(head.devices)
        different = {**detect.differences(head.machine, measured=measured), **experiment(head)}
        if different:
            foreign = foreign or "; ".join(f"{name}: {words}" for name, words in different.items())
            continue
        try:
            run = store.load(path)
        except GpubenchError:  # it was written only in part, or spoiled
            continue
        if not any(isinstance(outcome, Measurement) and outcome.blocks for outcome in run.outcomes):
            continue
        yield run
        given += 1
        if given == MOST_FILES:
            return
    if not given:
        raise _nothing(folders, foreign)


def _nothing(folders: Sequence[Path], foreign: str) -> InputError:
    places = " and ".join(str(folder) for folder in folders)
    if foreign:
        return InputError(
            "other-machine", why=f"those in {places} are of another one, or of an experiment ({foreign})"
        )
    return InputError("no-results", "there is no result to answer from", why=f"no result file in {places}")


def size_and_others(op: str, shape: Size) -> tuple[int, Others]:
    """n and the other params; n = 0 where no size of the op has these shapes, or several have.

    Raises UsageError for a mapping without n.
    """
    if type(shape) is int:  # the usual case, before any slower question
        return shape, ()
    given: Any = shape
    if isinstance(given, Mapping):
        if "n" not in given:
            raise UsageError("no-size", f"the shape {dict(given)!r} has no n")
        return _parted({name: int(value) for name, value in given.items()})
    if not isinstance(given, Sequence):
        return int(given), ()
    if given and isinstance(given[0], Sequence):
        return _declared(op, tuple(tuple(map(int, one)) for one in given))
    return _declared(op, (tuple(map(int, given)),))


@lru_cache(maxsize=MOST_SHAPES)
def _declared(op: str, shapes: tuple[Shape, ...]) -> tuple[int, Others]:
    """The params with which the op's first inputs have these shapes; a vector op takes arrays of any shape as their
    elements.

    An extent that none of them tells (the columns of matmul's B, if A alone is given) is that of the plain op: square.
    """
    declared, whole = _load(op), math.prod(shapes[0])
    if declared is None or not shapes[0] or _is_vector(declared):
        return whole, ()
    if set(declared.options) == {"columns"}:  # rows, however many axes count them
        shapes = tuple((math.prod(one[:-1]), one[-1]) for one in shapes if one)
    if len(declared.inputs) < len(shapes):
        return 0, ()
    extents = sorted({whole, *itertools.chain(*shapes)} - {0})
    for count in range(len(declared.options) + 1):
        found = [params for params in _candidates(declared, extents, count) if _fits(declared, params, shapes)]
        if found:  # two ways to read them are none
            return _parted(found[0]) if len(found) == 1 else (0, ())
    return 0, ()


def _fits(declared: Op, params: Params, shapes: Sequence[Shape]) -> bool:
    if declared.fits(params) is not None:
        return False
    return all(
        tuple(operand.shape(params)) == one for operand, one in zip(declared.inputs, shapes, strict=False)
    )


def _candidates(declared: Op, extents: Sequence[int], count: int) -> Iterator[dict[str, int]]:
    for names in itertools.combinations(sorted(declared.options), count):
        for n, *values in itertools.product(extents, repeat=count + 1):
            yield {"n": n, **dict(zip(names, values, strict=True))}


def _parted(params: Params) -> tuple[int, Others]:
    return params["n"], beside_size(params)


def _is_vector(declared: Op) -> bool:
    return not declared.inputs or tuple(declared.inputs[0].shape({"n": 64})) == (64,)


def _load(op: str) -> Op | None:
    from gpubench import kernels

    try:
        return kernels.load(op)
    except (KeyError, BadPlugin):
        return None
