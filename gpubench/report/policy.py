"""`gpubench.Policy`: where one call should run, asked by a program at every call in place of a constant threshold.

Everything that a file tells is worked out when it is loaded; a call looks at one curve for each device and form.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import UsageError
from gpubench.model.result import Run
from gpubench.report import results
from gpubench.report.analysis.contest import (
    Family,
    Field,
    Key,
    Split,
    basis,
    choose,
    families,
    field,
    may_know,
    split_of,
)
from gpubench.report.analysis.cost_curves import Basis
from gpubench.report.call_shape import Others, Size, size_and_others

MOST_FIELDS = (
    4096  # kept; a caller that makes up ever new numbers of calls, or shapes, pays for them, not the memory
)
_Question = tuple[str, str, Others, str]


class Answer(msgspec.Struct, frozen=True):
    """Where to run: `device_id` as "cupy:0", its `backend`, and the form that was the fastest there.

    `expected_s` is the time of one call, transfers included where the regime has them; `gain` how many times as long
    the best of the other side (CPU or not) takes, None where nothing competes. `basis` is measured, interpolated, or
    unknown: then all else is None. `fraction` is the GPU's share of the work where the call should be split over the
    CPU and a GPU: then `backend` is "hybrid", `device_id` as "hybrid:cupy:0", and `gain` is over the better of the two.
    """

    device_id: str | None
    backend: str | None
    form: str | None
    expected_s: float | None
    gain: float | None
    basis: Basis
    fraction: float | None = None


UNKNOWN = Answer(None, None, None, None, None, "unknown")


class Policy:
    """Measured results as a function from op, shape, dtype and regime to a device. Immutable; safe among threads."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """`runs`, the newest first: an op is answered by the newest that compares two devices there."""
        self._found: dict[Key, list[tuple[Run, Family]]] = {}
        for run in runs:
            for key, family in families(run).items():
                self._found.setdefault(key, []).append((run, family))
        self._fields: dict[_Question, tuple[Field, ...]] = {}
        for key in self._found:
            for regime in ("resident", "transfer-always"):
                self._known(key.op, key.dtype, key.params, regime)

    @classmethod
    def load(cls, path: str | Path | None = None) -> Policy:
        """The policy of a result file, of this machine's results in a folder, or (None) of those that
        `gpubench run` saves by default. Raises InputError, a GpubenchError, if there is none that is usable."""
        return cls(results.runs(path))

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that were measured, sorted."""
        return tuple(sorted({key.op for key in self._found}))

    def choose(
        self,
        op: str,
        *,
        shape: Size,
        dtype: Any = "float32",
        regime: str = "transfer-always",
        hybrid: bool = False,
    ) -> Answer:
        """Where to run `op`, in about ten microseconds.

        `shape` is the size n, a mapping of n and further params ({"n": 1024, "m": 16}), the shapes of the op's inputs
        ([a.shape, b.shape]), or that of the first alone: what it does not tell is then square. `dtype` is a name or
        what has one, as NumPy's dtypes do. `regime` says where the data lives: "resident", "transfer-always" or
        "transfer-once-N" (N calls share one copy). What was not measured, or lies outside the measured sizes, is
        unknown. `hybrid`: the caller can compute a part of the call on either side at once, so that splits may be the
        answer too, where this very call was measured and the report recommends it. Raises UsageError for another
        regime and for a mapping without n.
        """
        n, params = size_and_others(op, shape)
        if n < 1:
            return UNKNOWN
        name = dtype if type(dtype) is str else _dtype_name(dtype)
        fields = self._fields.get((op, name, params, regime))
        if fields is None:
            fields = self._known(op, name, params, regime)
        answer = UNKNOWN
        for one in fields:
            if not may_know(one, n, two_sides=answer is not UNKNOWN):
                continue
            choice = choose(one, n)
            if choice.best is not None and (choice.against is not None or answer is UNKNOWN):
                split = split_of(one, n, choice) if hybrid and one.splits else None
                if split is not None:
                    return _splitting(split)
                best = choice.best
                gain = None if choice.against is None else choice.against_s / choice.seconds
                answer = Answer(
                    best.device_id, best.device_id.partition(":")[0], best.form, choice.seconds, gain,
                    basis(choice, n),
                )  # fmt: skip
                if gain is not None:
                    break
        return answer

    def _known(self, op: str, dtype: str, params: Others, regime: str) -> tuple[Field, ...]:
        calls = calls_of(regime)
        found = self._found.get(Key(op, dtype, params))
        if found is None:  # not remembered: what a caller makes up must not fill the memory
            return ()
        fields = tuple(field(run, family, calls) for run, family in found)
        if len(self._fields) < MOST_FIELDS:
            self._fields[op, dtype, params, regime] = fields
        return fields


def _splitting(split: Split) -> Answer:
    row = split.row
    return Answer(
        row.device_id, "hybrid", row.case.case.form, split.seconds, row.gain.estimate, "measured", row.fraction
    )


def calls_of(regime: str) -> int | None:
    """Calls that share a copy: None for "resident", 1 for "transfer-always", N for "transfer-once-N".

    Raises UsageError for any other text.
    """
    if regime == "resident":
        return None
    if regime == "transfer-always":
        return 1
    head, _, count = regime.rpartition("-")
    if head == "transfer-once" and count.isdecimal() and int(count) > 0:
        return int(count)
    raise UsageError(
        "unknown-regime", f"there is no regime {regime!r}", why="known: resident, transfer-always, transfer-once-N",
        hint="N is the number of calls that share one copy, as in transfer-once-10",
    )  # fmt: skip


def _dtype_name(dtype: Any) -> str:
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return str(name if name is not None else dtype)
