"""Child side: whether a user's function computes at each call. It is called with other values in the same arrays: each
result has to be theirs, and a call with new values must not take much longer than the next one with the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpubench.backends.contract import Launch
from gpubench.functions.objects import leaves, size
from gpubench.functions.session import CallSession, ObjectBuffer

# Sets of other values; and as many more where the times of these say that a function keeps its results.
OTHERS, MORE_OTHERS = 2, 4
# A call with new values takes so many times as long as one with the same, and so much longer, if results are kept.
KEPT_TIMES, KEPT_S = 8.0, 1e-3
# To read a result may take so long beside its bytes, at this rate, and no more than so many calls.
READING_S, READING_BYTES_PER_S, READING_CALLS = 5e-3, 2e7, 4

Values = Sequence[Any]


class Round(NamedTuple):
    """Calls in a row with the same new values: the results of the first and the last one, the times of the first and of
    the fastest other one, and the time that it took to read the first result."""

    results: tuple[Any, Any]
    first_s: float
    again_s: float
    reading_s: float

    @property
    def slower(self) -> float:
        """How many times as long the first call took; 1 for a difference that says nothing."""
        return self.first_s / self.again_s if self.first_s - self.again_s > KEPT_S else 1.0

    @property
    def is_late(self) -> bool:
        """Whether the result was computed when it was read."""
        usual_s = sum(size(value) for _, value in leaves(self.results[0])) / READING_BYTES_PER_S
        return self.reading_s - usual_s > max(READING_S, READING_CALLS * self.first_s)


class Caller:
    """A launch, and the objects that it reads, in which other values are put."""

    def __init__(self, session: CallSession, launch: Launch, buffers: Sequence[ObjectBuffer]) -> None:
        self._session, self._launch, self._buffers = session, launch, buffers

    def call(self, values: Values) -> float:
        """Put values in the place of those that are there, and call. Returns the seconds of the call."""
        for buffer, host in zip(self._buffers, values, strict=True):
            self._session.refill(buffer, host)
        self._session.sync()
        return self._seconds()

    def rounds(self, several: Sequence[Values]) -> Iterator[Round]:
        """Call with each of these values; the number of calls differs, as a function may skip each second one. Results
        may be views of the values, which the next round replaces."""
        self._seconds()
        for i, values in enumerate(several):
            yield self._round(values, 2 + i % 2)

    def _round(self, values: Values, again: int) -> Round:
        first_s = self.call(values)
        began = time.perf_counter()
        first = self._result()
        reading_s = time.perf_counter() - began
        again_s = min(self._seconds() for _ in range(again))
        return Round((first, self._result()), first_s, again_s, reading_s)

    def _seconds(self) -> float:
        began = time.perf_counter()
        self._session.run(self._launch)
        self._session.sync()
        return time.perf_counter() - began

    def _result(self) -> Any:
        result = ObjectBuffer()
        self._session.download(self._launch.output, result)
        return result.value


def find_false_time(rounds: Sequence[Round], more: Callable[[], Iterable[Round]]) -> str:
    """Say why the times of a function are no times of its work; empty: they are. `more` calls with more new values, as
    a busy machine interrupts now and then, but not each time."""
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
