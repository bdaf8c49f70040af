"""`gpubench.Policy`: where one call should run. A program asks the policy at every call instead of using a
constant threshold.

The first call for an op, dtype, params and regime fits the curves. A later one only evaluates one curve for
each device and implementation. Up to MOST_QUESTIONS such kinds of calls are remembered.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gpubench.analysis.advice import Advice, AdviceConfidence, advise, measuring_command
from gpubench.analysis.contenders import (
    Basis,
    CaseGroup,
    ContenderSet,
    Decision,
    Key,
    case_groups,
    contender_set,
    first_to_know,
    situation_regime,
    split_of,
)
from gpubench.analysis.estimate import CALLS
from gpubench.analysis.machine import runs
from gpubench.analysis.thresholds import GpuThreshold, dtype_name, find_threshold, resolve_op
from gpubench.base.errors import BadPlugin, UsageError
from gpubench.kernels.contract.op import Op, Params, Shape
from gpubench.result.case import SHORT_DTYPES, beside_size
from gpubench.result.run import Run

# The size n, the shape of one array, the shapes of all inputs, or the params by name.
Size = int | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, int]
Others = tuple[tuple[str, int], ...]  # the params other than the size, sorted by name
# The sizes of the caches. A caller with more kinds of calls or shapes than this pays with time, not with
# memory.
MOST_QUESTIONS = MOST_SHAPES = 4096
T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True, dict=True):
    """The place where a call should run. If `basis` is `unknown`, all other fields are None."""

    device_id: str | None  # the device, such as "cupy:0", or "hybrid:cupy:0" for both sides at once
    backend: str | None  # the backend, such as "cupy", or "hybrid" for both sides at once
    implementation: str | None  # the implementation that is the fastest on the device
    expected_s: float | None  # the expected seconds of one call, with the copies of its regime
    gain: float | None  # the time of the best other side / `expected_s`; None if no other side has a time
    basis: Basis  # `measured`, `interpolated` or `unknown`
    gpu_share: float | None = None  # the GPU's share of a split call, from 0 to 1; None: no split
    # the side of each stage of a workload, as letters c and g; None: not assigned
    assignment: str | None = None

    @cached_property
    def advice(self) -> Advice | None:
        """The evidence for the answer, computed on first use. It is None if no result has the op, dtype and
        params, or if no size has the call's shape."""
        question: _Question | None = vars(self).get("_question")
        return question and question.advise()

    @property
    def confidence(self) -> AdviceConfidence:
        """How sure the answer is: `clear`, `close`, `noisy`, `alone`, or `none` if it is
        unknown (docs/advice.md)."""
        return self.advice.confidence if self.advice else "none"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the time of one call, in seconds. It is None if the answer is unknown."""
        time = self.advice and self.advice.time
        return (time.low, time.high) if time else None

    @property
    def why(self) -> str:
        """The reason for the answer as text, or what is missing."""
        return self.advice.why if self.advice else "no result has this op, dtype and shape"

    @cached_property
    def command(self) -> str | None:
        """The command that measures exactly this call. It is None if the call was measured, or if the
        op has no such shape or dtype."""
        question: _Question | None = vars(self).get("_question")
        if not question or question.n <= 0 or self.basis == "measured":
            return None
        key = question.call.key
        return measuring_command(key, question.n) if key.dtype in SHORT_DTYPES else None

    def __copy__(self) -> Answer:
        return self

    def __reduce__(self) -> tuple[type[Answer], tuple[Any, ...], dict[str, Any]]:
        """Return how a copy in another process is made: with the evidence, without the runs."""
        return Answer, msgspec.structs.astuple(self), {"advice": self.advice, "command": self.command}


UNKNOWN = Answer(None, None, None, None, None, "unknown")


class _Question(NamedTuple):
    """The question to which an `Answer` belongs."""

    call: _Call  # the kind of call
    n: int  # the size of the call
    hybrid: bool  # whether the caller can compute on both sides at once

    def advise(self) -> Advice | None:
        answer = self.call.decide(self.n)
        return answer and advise(self.call.key, *answer, self.n, self.call.regime, hybrid=self.hybrid)


class Policy:
    """An adviser for programs: it tells on which device a call should run, by measured results. A policy is
    thread-safe, and always gives the same answer to the same question."""

    def __init__(self, runs: Iterable[Any]) -> None:
        """Create a policy from Runs or Results, newest first, each read when an answer needs it. The newest that
        compares CPU and GPU at a size answers, else the newest that has a time there. Raises TypeError for a
        path."""
        if isinstance(runs, str | Path):
            raise TypeError(f"a policy is made of runs: Policy.load({str(runs)!r}) reads a file")
        self._runs = _Lazy(map(_MeasuredRun, runs))
        self._calls: dict[tuple[str, str, Others, str], _Call] = {}

    @classmethod
    def load(cls, path: str | Path | None = None) -> Policy:
        """Load a policy from a result file, or from this machine's results in a folder. None means the folders
        in which `gpubench run` saves by default. Raises InputError if there is no usable result."""
        policy = cls(runs(path))
        next(iter(policy._runs), None)
        return policy

    @property
    def ops(self) -> tuple[str, ...]:
        """The ids of all measured ops, sorted."""
        return tuple(sorted({key.op for measured in self._runs for key in measured.keys}))

    def choose(
        self,
        op: str,
        shape: Size,
        *,
        dtype: Any = "float32",
        regime: str = "transfer-always",
        hybrid: bool = False,
    ) -> Answer:
        """Return where to run `op`. Raises UsageError for an unknown op or regime, and if `shape` is none of
        the following.

        `shape` is the size n, a mapping of n and further params ({"n": 1024, "m": 16}), or the shape of the
        first input. It may also be a list of the inputs' shapes ([a.shape, b.shape]). `dtype` is a name, or an
        object with a name.

        `regime` is an id, such as "transfer-always" or "resident", or a word of `threshold`. `hybrid` means
        that the caller can compute on both sides at once, so that the answer may be a split. docs/advice.md
        tells when the answer is unknown.
        """
        op, regime = str(op), str(regime)  # a list is no key of a cache
        n, params = size_and_others(op, shape)
        name = dtype if type(dtype) is str else dtype_name(dtype)
        call = self._calls.get((op, name, params, regime))
        if call is None:
            call = self._prepare(op, name, params, regime)
        answer = call.answer(n, hybrid=hybrid)
        vars(answer)["_question"] = _Question(call, n, hybrid)
        return answer

    def threshold(
        self, op: str, situation: str = "waited", backend: str | None = None, dtype: Any = None
    ) -> GpuThreshold:
        """Return the size from which the GPU is faster in a situation ("waited", "queued", "10 calls a copy" or
        "copied").

        `backend` is the id of a backend or device, and `dtype` as in `choose`. None means any. Of several GPUs,
        dtypes or params, the smallest size counts. Raises UsageError for an op that was not measured and for an
        unknown situation.
        """
        return find_threshold((measured.run for measured in self._runs), op, situation, backend, dtype)

    def __reduce__(self) -> tuple[type[Policy], tuple[list[Run]]]:
        """Return how a copy in another process is made: of all runs."""
        return Policy, ([measured.run for measured in self._runs],)

    def __repr__(self) -> str:
        return f"<gpubench.Policy of {', '.join(self.ops) or 'nothing'}>"

    def _prepare(self, op: str, dtype: str, params: Others, regime: str) -> _Call:
        """Return the object that answers calls of this kind, and keep it if a run measured such calls. Raises
        UsageError for an unknown op or situation."""
        tried = (outcome.case.op for measured in self._runs for outcome in measured.run.outcomes)
        name = op if _load(op) is not None else resolve_op(op, tried)
        key, regime_id = Key(name, dtype_name(dtype), params), situation_regime(regime)
        sets = (
            contender_set(measured.run, measured.groups[key], regime_id)
            for measured in self._runs
            if key in measured.keys and key in measured.groups
        )
        call = _Call(key, regime_id, _Lazy(sets))
        # Questions about calls that nobody measured must not fill the memory.
        if len(self._calls) < MOST_QUESTIONS and any(key in measured.keys for measured in self._runs):
            self._calls[op, dtype, params, regime] = call
        return call


class _Lazy(Generic[T]):
    """A thread-safe iterable over an iterator, which takes each item once and keeps it."""

    def __init__(self, items: Iterable[T]) -> None:
        self._rest = iter(items)
        self._taken: list[T] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        for i in itertools.count():
            with self._lock:
                if i >= len(self._taken):
                    self._taken += itertools.islice(self._rest, 1)
            if i >= len(self._taken):
                return
            yield self._taken[i]


class _MeasuredRun:
    """A run, and its cases that advice can use."""

    def __init__(self, run: Any) -> None:
        self.run = run = getattr(run, "run", run)  # a Result has one
        measured = (outcome.case for outcome in run.measurements if outcome.blocks)
        self.keys = {Key(*case.series) for case in measured if case.variant is None and case.group not in CALLS}

    @cached_property
    def groups(self) -> dict[Key, CaseGroup]:
        """The cases by op, dtype and params, derived on first use."""
        return case_groups(self.run)


class _Call(NamedTuple):
    """One kind of call, with its contenders in each run."""

    key: Key  # the op, dtype and params
    regime: str  # the id of the regime
    sets: _Lazy[ContenderSet]  # the contenders of each run

    def decide(self, n: int) -> tuple[ContenderSet, Decision] | None:
        """Return the contenders and the decision that answer at size `n` (`first_to_know`). Returns None if no
        run has this kind of call, and for a size below 1."""
        return first_to_know(self.sets, n) if n > 0 else None

    def answer(self, n: int, *, hybrid: bool) -> Answer:
        """Return where a call of size `n` should run."""
        declared = self.decide(n)
        if declared is None or (best := declared[1].best) is None:
            return msgspec.structs.replace(UNKNOWN)
        contenders, decision = declared
        split = split_of(contenders, n, decision) if hybrid and contenders.splits else None
        if split is not None:
            return Answer(
                split.device_id, "hybrid", split.case.case.implementation, split.seconds, split.gain, "measured",
                split.gpu_share, split.assignment,
            )  # fmt: skip
        gain = None if decision.against is None else decision.against_s / decision.seconds
        backend = best.device_id.partition(":")[0]
        return Answer(best.device_id, backend, best.implementation, decision.seconds, gain, decision.basis(n))


def size_and_others(op: str, shape: Size) -> tuple[int, Others]:
    """Return n and the other params of a call. `shape` is as in `Policy.choose`. n is 0 if the op has no such
    params, or if the shapes fit several. Raises UsageError for a mapping without n, and for a value that is no
    shape."""
    if type(shape) is int and shape >= 0:  # the usual case, before any slower question
        return shape, ()
    value: Any = shape
    try:
        if isinstance(value, Mapping):
            params, declared = {name: _whole(number) for name, number in value.items()}, _load(op)
            unfit = declared and (params.keys() - declared.options.keys() - {"n"} or declared.fits(params))
            return 0 if unfit else params["n"], beside_size(params)
        if not isinstance(value, Sequence):
            return _whole(value), ()
        arrays = value if value and isinstance(value[0], Sequence) else (value,)
        shapes = tuple(tuple(map(_whole, extents)) for extents in arrays)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError):  # the last is PyTorch's
        why = "n and the lengths of axes are whole numbers from 0 on"
        raise UsageError("no-size", f"{repr(value)[:60]} names no size", why=why) from None
    return _find_params(op, shapes)


def _whole(value: Any) -> int:
    """Return a whole number from 0 on as an int, or raise an error for any other value."""
    number = int(value)
    if number != value or number < 0:
        raise ValueError
    return number


@lru_cache(maxsize=MOST_SHAPES)
def _find_params(op: str, shapes: tuple[Shape, ...]) -> tuple[int, Others]:
    """Return n and the other params with which the op's first inputs have these shapes. n is 0 if no params
    fit, or several."""
    declared, whole = _load(op), math.prod(shapes[0])
    # a user's function: the length of its single axis
    if declared is None:
        return whole if len(shapes[0]) < 2 else 0, ()
    if not shapes[0] or not declared.inputs or tuple(declared.inputs[0].shape({"n": 64})) == (64,):
        return whole, ()
    if set(declared.options) == {"columns"}:  # rows, however many axes count them
        shapes = tuple((math.prod(lengths[:-1]), lengths[-1]) for lengths in shapes if lengths)
    if len(declared.inputs) < len(shapes):
        return 0, ()
    extents = sorted({whole, *itertools.chain(*shapes)} - {0})
    # Params that the shapes do not determine keep the values of the plain, square op.
    for count in range(len(declared.options) + 1):
        fitting = [
            params for params in _candidates(declared, extents, count) if _fits(declared, params, shapes)
        ]
        if fitting:  # two ways to read them are none
            return (fitting[0]["n"], beside_size(fitting[0])) if len(fitting) == 1 else (0, ())
    return 0, ()


def _fits(declared: Op, params: Params, shapes: Sequence[Shape]) -> bool:
    operands = zip(declared.inputs, shapes, strict=False)
    return declared.fits(params) is None and all(
        tuple(operand.shape(params)) == shape for operand, shape in operands
    )


def _candidates(declared: Op, extents: Sequence[int], count: int) -> Iterator[dict[str, int]]:
    for names in itertools.combinations(sorted(declared.options), count):
        for n, *values in itertools.product(extents, repeat=count + 1):
            yield {"n": n, **dict(zip(names, values, strict=True))}


def _load(op: str) -> Op | None:
    from gpubench import kernels

    try:
        return kernels.load(op)
    except (KeyError, BadPlugin):
        return None
