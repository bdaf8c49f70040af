"""The `gpubench-compare` document, version 1: what a comparison finds and what other programs read.

Times are in seconds, ratios are new / base, `new` in a row is an index into the list of new files.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.model.result import Severity
from gpubench.report.analysis.types import Label

VerdictWord = Literal["FASTER", "SLOWER", "SAME", "UNSURE", "not-comparable"]
Correction = Literal["bh", "max-t"]
Scope = Literal["machine", "device", "software", "protocol", "op", "kernel"]
FailOn = Literal["slower", "unsure", "failed", "missing", "noisy"]
GateName = FailOn | Literal["min-speedup"]
GATES: tuple[FailOn, ...] = ("slower", "unsure", "failed", "missing", "noisy")
DEFAULT_GATES: tuple[FailOn, ...] = ("slower", "failed", "missing")


class Row(msgspec.Struct, frozen=True):
    """Base of the document's parts: immutable."""


class SideRow(Row, frozen=True, kw_only=True):
    """One result file. `source` is the name that the user gave it, without its folders. `sessions` are those that
    count as one observation each: a session that was disturbed and its repeats are one.
    """

    source: str
    run_id: str
    label: str | None
    started_at: str
    sessions: int
    machine: str


class Difference(Row, frozen=True, kw_only=True):
    """A field that is not the same in both files. `id`: only this case is concerned."""

    new: int
    scope: Scope
    field: str
    base: str | None
    value: str | None
    id: str | None = None


class Pair(Row, frozen=True, kw_only=True):
    """How one new file stands to the base. `interleaved`: never more than two sessions of one side in a row, where a
    session and its repeats are one.

    `correction` is what the p-values of its `family` of cases were adjusted by; null: nothing was tested.
    """

    interleaved: bool
    correction: Correction | None
    family: int


class JudgedCase(Row, frozen=True, kw_only=True):
    """One case that both files have a number for, with its verdict and why it is no better one. Where base has one that
    cannot be true, new may have none: `k_new` is 0.

    `ratio` is new / base of the sessions' low ends, [`lo`, `hi`] its exact interval; `p` and `p_adjusted` belong to the
    direction in which the ratio points. `threshold` is a share. `muted`: no gate looks at it. A time that cannot be
    true is null.
    """

    new: int
    id: str
    verdict: VerdictWord
    reason: str | None = None
    base_s: float | None = None
    new_s: float | None = None
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    threshold: float | None = None
    k_base: int = 0
    k_new: int = 0
    sessions_needed: int | None = None
    labels: tuple[Label, ...] = ()
    muted: bool = False


class AbsentCase(Row, frozen=True, kw_only=True):
    """A case with a number on one side alone, and why there is none on the other."""

    new: int
    id: str
    reason: str
    detail: str = ""
    muted: bool = False


class Gate(Row, frozen=True, kw_only=True):
    """A condition whose breach is exit 3. `impossible`: in one of the files nothing could have failed it, or
    it has no case to look at.

    `ids` breach it. Of `min-speedup`, which asks the cases of `selector` to be `least` times faster than in base: its
    whole interval lies below. `missing` have no ratio, which is a breach too; the interval of `near` contains `least`.
    """

    name: GateName
    passed: bool
    impossible: bool = False
    ids: tuple[str, ...] = ()
    selector: str | None = None
    least: float | None = None
    missing: tuple[str, ...] = ()
    near: tuple[str, ...] = ()

    @property
    def low(self) -> tuple[str, ...]:
        """`ids`, as the gates of a report call them."""
        return self.ids

    @property
    def reason(self) -> None:
        """No gate of a comparison fails as a whole: the cases are the reason."""
        return


class Notice(Row, frozen=True, kw_only=True):
    """A finding about the comparison, with its advice."""

    code: str
    severity: Severity
    message: str
    hint: str


class Counts(Row, frozen=True, kw_only=True):
    """How many cases have which verdict; muted ones count as `muted` alone."""

    faster: int = 0
    slower: int = 0
    same: int = 0
    unsure: int = 0
    not_comparable: int = 0
    missing: int = 0
    failed: int = 0
    added: int = 0
    muted: int = 0


class Comparison(Row, frozen=True, kw_only=True):
    """`missing` and `failed` have a number in base only, `added` in new only.

    `correction` and `interleaved` sum up `pairs`: all of them alike, or the weaker one.
    """

    name: Literal["gpubench-compare"] = "gpubench-compare"
    schema_version: int = 1
    base: SideRow
    new: tuple[SideRow, ...]
    alpha: float
    interleaved: bool
    correction: Correction | None
    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]
    cases: tuple[JudgedCase, ...]
    missing: tuple[AbsentCase, ...]
    failed: tuple[AbsentCase, ...]
    added: tuple[AbsentCase, ...]
    counts: Counts
    gates: tuple[Gate, ...]
    warnings: tuple[Notice, ...]
    exit_code: int
    exit_reason: Literal["ok", "gate", "input"]
