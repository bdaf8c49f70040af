"""Child side: inputs, reference and comparison for a user's function of any objects, in place of an op's
arrays.

A function must compute at each call. To check this, it is called with other values in the same arrays. Each
result must fit these values, and a call with new values must not take much longer than the next call with the
same values.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from gpubench.backends.contract import Buffer, Launch, Session
from gpubench.backends.shared.reference import samples_of, storable
from gpubench.base import disk
from gpubench.base.errors import Unsupported
from gpubench.base.messages import REASONS
from gpubench.functions.declare import UserFunction
from gpubench.functions.loading import (
    Unreadable,
    equal,
    leaves,
    make_inputs,
    on_host,
    plain,
    size,
)
from gpubench.functions.session import (
    Allowed,
    CallSession,
    ObjectBuffer,
    Translated,
    allow_condition,
    answer,
    compare,
)
from gpubench.functions.session import session_of as session_of
from gpubench.kernels.contract.op import Op
from gpubench.measure.worker.operands import Operands
from gpubench.measure.worker.workspace import WRONG_FUNCTION, Workspace, Wrong, kind_of
from gpubench.result.case import Case
from gpubench.result.run import Check, RunWarning

Judged = tuple[list[Any], tuple[Any, Allowed]]  # inputs, and their expected result with the allowed errors

# If the answer takes longer than this, a function is called with other values only at its first size.
SHORT_ANSWER_S = 0.05
# Calling it with other values takes about this many times as long as its answer.
FRESH_ANSWERS = 8


def kinds_of(op: Op) -> tuple[type[Operands], type[Workspace]]:
    """Return the classes of operands and workspaces for the op. They are `CallOperands` and `CallWorkspace` for
    a user's function of objects other than arrays."""
    return (Operands, kind_of(op)) if op.calls is None else (CallOperands, CallWorkspace)


class CallOperands(Operands):
    """The inputs of a user's function, and its reference result."""

    _made_at: tuple[str, list[Any]] | None = None
    _made_s = 0.0  # the seconds in which the inputs were made
    # the error if the function returns earlier results or computes them outside its calls, else None
    false: Wrong | None = None
    # how PyTorch's result of a function of NumPy differs at the smallest size; "": not at all; None: not tried
    meant: str | None = None
    _others: tuple[str, list[Judged]] | None = None

    def inputs(self, case: Case) -> list[Any]:
        """Return the host objects that the user's `inputs` makes for the case."""
        if self._made_at is None or self._made_at[0] != case.workload:
            began = time.perf_counter()
            self._made_at = case.workload, self.make(case)
            self._made_s = time.perf_counter() - began
        return self._made_at[1]

    def make(self, case: Case, others: int = 0) -> list[Any]:
        """Make the inputs of a case. Each value of `others` above 0 gives other values."""
        names = [operand.name for operand in self.op.inputs]
        with Translated(self.op.calls):
            return make_inputs(self.op.calls, names, case.n, case.dtype, self._seed + others)

    def others(self, case: Case) -> list[Judged]:
        """Return other inputs of the same size, each with its expected result and the allowed errors. Raises
        Unsupported. If computing a result takes long, the list is empty at all sizes but the function's
        first."""
        if self._others is not None and self.answer(case)[2] > SHORT_ANSWER_S:
            return []
        if self._others is None or self._others[0] != case.workload:
            values = [self.make(case, number) for number in range(1, OTHERS + 1)]
            self._others = case.workload, [(x, answer(self.op.calls, x, case.dtype)) for x in values]
        return self._others[1]

    def answer(self, case: Case) -> tuple[Any, Allowed, float]:
        """Return the reference result, the allowed relative errors, and the seconds of making the inputs and
        the result. The result is that of NumPy in float64. For a pair of programs it is that of the CPU's
        program."""
        file = self._scratch / f"{self.op.digest}-{self._key(case).replace('/', '_').replace(' ', '_')}.pickle"
        if file.exists():
            with file.open("rb") as stream:
                stored: tuple[Any, Allowed, float] = pickle.load(stream)
            return stored
        inputs, began = self.inputs(case), time.perf_counter()
        want, allowed = answer(self.op.calls, inputs, case.dtype)
        reference = want, allowed, self._made_s + time.perf_counter() - began
        with contextlib.suppress(Exception):  # what cannot be pickled is computed by each worker
            disk.write_whole(file, pickle.dumps(reference, protocol=5))
        return reference


class CallWorkspace(Workspace):
    """The inputs, buffers and reference that all cases of one size of a function share on one device."""

    _operands: CallOperands

    @functools.cached_property
    def host_outputs(self) -> list[Any]:
        """A list of one object, which holds a downloaded result of any type."""
        return [ObjectBuffer()]

    def rest(self) -> None:
        """Keep the inputs, which other workspaces drop and make again. A user's function may make different
        ones."""

    def make_reference(self) -> None:
        """Compute the answer, or read it from its file."""
        self._operands.answer(self.case)

    def answer_samples(self) -> list[float]:
        """Return some elements of the answer, or an empty list if it is not numeric."""
        with contextlib.suppress(Unreadable):
            return samples_of([on_host(leaf) for _, leaf in leaves(self._operands.answer(self.case)[0])])
        return []

    def fetch(self, output: Buffer, way: Any, *, travels: bool | None = None) -> None:
        """Do nothing: a timer downloads the whole result."""

    def spoil_host_output(self) -> None:
        """Drop the downloaded result."""
        self.host_outputs[0].value = None

    def verify(self, launch: Launch, case: Case | None = None) -> Check:
        """Check that the inputs are unchanged, then compare the result. Raises Unsupported if an input was
        changed, and Wrong if the result is wrong."""
        for operand, host, buffer in zip(self.op.inputs, self.inputs, self.buffers, strict=True):
            if not self.op.calls.same and not equal(plain(host), buffer.value):
                raise Unsupported(
                    f"it changes {operand.name}: it has to leave its inputs as they are, so work on a copy",
                    reason="bad-function",
                )
        check = self._compare_answer(_download(self.session, launch))
        if self._is_foreign and self._operands.meant is None:
            self._try_smallest(launch)
        self._require_meaning()
        return check

    @property
    def _is_foreign(self) -> bool:
        """Whether the device's library has names of NumPy with other meanings, such as PyTorch's `std`."""
        return bool(self.op.calls.of_numpy) and self.session.device.backend == "torch"

    def _try_smallest(self, launch: Launch) -> None:
        """Compare the function's results at its smallest size, where other meanings show most: with n - 1 in place
        of n in `std`, for example."""
        self._operands.meant = ""
        case = msgspec.structs.replace(self.case, params={**self.case.params, "n": self.op.sizes.low})
        if case == self.case:  # whose result has just been compared
            return
        caller = Caller(cast("CallSession", self.session), launch, self.buffers)
        try:
            values = self._operands.make(case)
            caller.call(values)
            self._compare(_download(self.session, launch), values, answer(self.op.calls, values, case.dtype))
        finally:
            caller.call(self.inputs)

    def _require_meaning(self) -> None:
        """Raise Unsupported if PyTorch means something else by the function's text."""
        if self._operands.meant:
            raise Unsupported(
                f"PyTorch means another result by this text of NumPy: {self._operands.meant}",
                hint="write it as f(xp, x), with the names of the array API", reason="bad-function",
            )  # fmt: skip

    def require_fresh(self, limit_s: float | None) -> list[RunWarning]:
        """Call the function with other values, and judge its results and times. Raises Wrong. A function that
        takes longer than SHORT_ANSWER_S is called only at its first size; returns a warning instead if that would
        take longer than `limit_s` seconds."""
        operands = self._operands
        answer_s = operands.answer(self.case)[2]
        if limit_s is not None and answer_s > SHORT_ANSWER_S and FRESH_ANSWERS * answer_s > limit_s:
            n, seconds = self.case.n, FRESH_ANSWERS * answer_s
            message = (
                f"{self.case.op} was not called with other values at n = {n}, about {seconds:.0f} s:"
                " a function that keeps its results goes unnoticed"
            )
            return [RunWarning(code="budget", severity="info", message=message, hint=REASONS["budget"].remedy)]
        if operands.false is None:
            launch = self.compile(self.case, self.buffers, None)
            caller = Caller(cast("CallSession", self.session), launch, self.buffers)
            try:
                operands.false = self._judge_others(caller, operands.others(self.case))
            except Unsupported:  # other values are none for it
                pass
            finally:
                caller.call(self.inputs)
        if operands.false is not None:
            raise operands.false
        return []

    def _judge_others(self, caller: Caller, others: list[Judged]) -> Wrong | None:
        own = [(self.inputs, self._operands.answer(self.case)[:2])] if others else []
        rounds: list[Round] = []
        for each in caller.rounds([values for values, _ in (*others, *own)]):
            inputs, reference = (*others, *own)[len(rounds)]
            rounds.append(each)
            try:
                for result in each.results:
                    self._compare(result, inputs, reference)
            except Wrong as wrong:
                wrong.detail = f"called with other values it returns what is not theirs: {wrong.detail}"
                return wrong
        more = range(OTHERS + 1, OTHERS + MORE_OTHERS + 1)
        why = find_false_time(
            rounds[: len(others)], lambda: caller.rounds([self._operands.make(self.case, i) for i in more])
        )
        if not why:
            return None
        check = Check(ok=False, max_error=None, limit=0.0, scale="value", index=[])
        return Wrong(check, hint="mend the function: each call has to do its whole work", detail=why)

    def verify_host_output(self, case: Case) -> Check:
        """Compare the result that a timed call downloaded. Raises Wrong."""
        return self._compare_answer(self.host_outputs[0].value)

    def _compare_answer(self, got: Any) -> Check:
        return self._compare(got, self.inputs, self._operands.answer(self.case)[:2])

    def _compare(self, got: Any, inputs: Values, reference: tuple[Any, Allowed]) -> Check:
        """Compare a result on the host with the reference result for the same inputs, and raise Wrong if it
        differs."""
        function: UserFunction = self.op.calls
        want, allowed = reference
        if function.same is not None:
            with Translated(function):
                right = bool(function.same(want, got))
            check = Check(ok=right, max_error=0.0 if right else None, limit=0.0, scale="value", index=[])
            if not right:
                raise Wrong(check, hint=WRONG_FUNCTION, detail="same(cpu, gpu) says that the results differ")
            return check
        try:
            discrepancy = compare(got, want, allowed)
            if not discrepancy.right:
                allowed = allow_condition(function, inputs, self.case.dtype, want, allowed)
                discrepancy = compare(got, want, allowed)
        except Unreadable as unreadable:
            raise Unsupported(str(unreadable), reason="bad-function") from unreadable
        check = Check(
            ok=discrepancy.right, max_error=storable(discrepancy.error), limit=discrepancy.limit, scale="value",
            index=discrepancy.place,
        )  # fmt: skip
        if not discrepancy.right and self._is_foreign:
            self._operands.meant = discrepancy.words or f"an element is off by {discrepancy.error:.2g}"
            self._require_meaning()
        if not discrepancy.right:
            raise Wrong(check, hint=WRONG_FUNCTION, detail=discrepancy.words)
        return check


# ---------------------------------------------------------------- calls with other values

# Number of sets of other values, and how many more are tried if their times suggest that a function keeps its
# results.
OTHERS, MORE_OTHERS = 2, 4
# A function keeps its results if a call with new values takes at least this many times, and this much longer
# than, a call with the same values.
KEPT_TIMES, KEPT_S = 8.0, 1e-3
# Reading a result may take this long in addition to its bytes at this rate, or as long as this many calls.
READING_S, READING_BYTES_PER_S, READING_CALLS = 5e-3, 2e7, 4

Values = Sequence[Any]


class Round(NamedTuple):
    """The calls in a row with the same new values."""

    results: tuple[Any, Any]  # results of the first and of the last call
    first_s: float  # seconds of the first call
    again_s: float  # seconds of the fastest other call
    reading_s: float  # seconds of reading the first result

    @property
    def slower(self) -> float:
        """The time of the first call / the time of the fastest other call, or 1 if they differ by KEPT_S or
        less."""
        return self.first_s / self.again_s if self.first_s - self.again_s > KEPT_S else 1.0

    @property
    def is_late(self) -> bool:
        """Whether the result seems to have been computed only when it was read."""
        usual_s = sum(size(value) for _, value in leaves(self.results[0])) / READING_BYTES_PER_S
        return self.reading_s - usual_s > max(READING_S, READING_CALLS * self.first_s)


class Caller:
    """A launch with its input buffers, whose values can be replaced."""

    def __init__(self, session: CallSession, launch: Launch, buffers: Sequence[ObjectBuffer]) -> None:
        self._session, self._launch, self._buffers = session, launch, buffers

    def call(self, values: Values) -> float:
        """Replace the values of the inputs and call. Returns the seconds of the call."""
        for buffer, host in zip(self._buffers, values, strict=True):
            self._session.refill(buffer, host)
        self._session.sync()
        return self._seconds()

    def rounds(self, several: Sequence[Values]) -> Iterator[Round]:
        """Yield one round of calls for each set of values. Results may be views of values that the next round
        replaces."""
        self._seconds()
        for i, values in enumerate(several):
            yield self._round(values, 2 + i % 2)  # it alternates: a function may skip every second call

    def _round(self, values: Values, again: int) -> Round:
        first_s = self.call(values)
        began = time.perf_counter()
        first = _download(self._session, self._launch)
        reading_s = time.perf_counter() - began
        again_s = min(self._seconds() for _ in range(again))
        return Round((first, _download(self._session, self._launch)), first_s, again_s, reading_s)

    def _seconds(self) -> float:
        began = time.perf_counter()
        self._session.run(self._launch)
        self._session.sync()
        return time.perf_counter() - began


def _download(session: Session, launch: Launch) -> Any:
    """Return the result of a launch as an object on the host."""
    result = ObjectBuffer()
    session.download(launch.output, result)
    return result.value


def find_false_time(rounds: Sequence[Round], more: Callable[[], Iterable[Round]]) -> str:
    """Return why the times of a function do not measure its work, or an empty string if they do. `more` returns
    rounds with further values. If a busy machine made calls slow, some of these rounds are not."""
    late, slower = all(each.is_late for each in rounds), min((each.slower for each in rounds), default=1.0)
    if not rounds or not (late or slower > KEPT_TIMES):
        return ""
    again = list(more())
    if late and all(each.is_late for each in again):
        return "its result is computed when it is read: compute it in the function"
    slower = min(slower, *(each.slower for each in again))
    if slower <= KEPT_TIMES:
        return ""
    return f"it keeps results: a call takes {slower:.0f} times as long with new values as with the same"
