"""The `gpubench-compare` document, version 2: what a comparison finds and what other programs read.

Times are in seconds, ratios are new / base, `new` in a row is an index into the list of new files.
Version history: 1 = first version. 2 = `ratio` is `new_s` / `base_s`; `low_end_ratio` is what it was.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.analysis.findings import MinSpeedup
from gpubench.analysis.samples import Label
from gpubench.base.messages import WarningCode
from gpubench.curves.stats import ALPHA
from gpubench.result.case import Case, Selector
from gpubench.result.run import Fingerprints, Severity

VerdictWord = Literal["FASTER", "SLOWER", "SAME", "UNSURE", "not-comparable"]
Correction = Literal["max-t"]
DifferenceScope = Literal["machine", "device", "software", "protocol", "op", "kernel"]
CompareFailOn = Literal["slower", "unsure", "failed", "missing", "noisy"]
GateName = CompareFailOn | Literal["min-speedup"]
GATES: tuple[CompareFailOn, ...] = ("slower", "unsure", "failed", "missing", "noisy")
DEFAULT_GATES: tuple[CompareFailOn, ...] = ("slower", "failed", "missing")


class SideRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result file. `source` is the name that the user gave it, without its folders. `sessions` are those that
    count as one observation each: a session that was disturbed and its repeats are one.
    """

    source: str
    run_id: str
    label: str | None
    started_at: str
    sessions: int
    machine: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is not the same in both files. `id`: only this case is concerned."""

    new: int
    scope: DifferenceScope
    field: str
    base: str | None
    value: str | None
    id: str | None = None


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """The geometric mean of new / base over the common cases of one device, with its interval."""

    device_id: str
    ratio: float
    lo: float
    hi: float
    cases: int


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """How one new file stands to the base."""

    interleaved: bool  # never more than two sessions of one side in a row; a session and its repeats are one
    correction: Correction | None  # what adjusted the p-values of its family; null: no case has enough sessions
    family: int  # cases that were tested together
    spread: float | None = None  # of its middle case
    smallest_effect: float | None = None  # of its middle case
    own_sizes: int = 0  # cases of sizes that one of the runs chose by itself, and only it has
    devices: tuple[DeviceChange, ...] = ()  # where sessions are too few to judge each case


class JudgedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case that both files have a number for, with its verdict and why it is no better one. Where base has one that
    cannot be true, new may have none: `k_new` is 0.

    `ratio` is `new_s` / `base_s`, [`lo`, `hi`] its interval. `low_end_ratio` is new / base of the sessions' low ends,
    which the tests look at; `p` and `p_adjusted` belong to the direction in which it points. `median_ratio` is that of
    the sessions' medians, `slow_end_ratio` that of their 90 % quantiles. `threshold` is a share. `muted`: no gate
    looks at it. A time that cannot be true is null.

    `spread`: the standard deviation of the low ends between sessions of one side, as a share. `smallest_effect`: the
    change, as a share, that four of five comparisons like this one would call SLOWER; null where none would.
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
    low_end_ratio: float | None = None
    median_ratio: float | None = None
    slow_end_ratio: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    threshold: float | None = None
    k_base: int = 0
    k_new: int = 0
    sessions_needed: int | None = None
    spread: float | None = None
    smallest_effect: float | None = None
    labels: tuple[Label, ...] = ()
    muted: bool = False


class AbsentCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case with a number on one side alone, and why there is none on the other."""

    new: int
    id: str
    reason: str
    detail: str = ""
    muted: bool = False


class Gate(msgspec.Struct, frozen=True, kw_only=True):
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


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A finding about the comparison, with its advice."""

    code: WarningCode
    severity: Severity
    message: str
    hint: str


class VerdictCounts(msgspec.Struct, frozen=True, kw_only=True):
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


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`missing` and `failed` have a number in base only, `added` in new only.

    `correction` and `interleaved` sum up `pairs`: null if none of them tested anything; whether all took turns.
    """

    name: Literal["gpubench-compare"] = "gpubench-compare"
    schema_version: int = 2
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
    counts: VerdictCounts
    gates: tuple[Gate, ...]
    warnings: tuple[Notice, ...]
    exit_code: int
    exit_reason: Literal["ok", "gate", "input"]


INTERLEAVED, APART = 0.05, 0.10  # thresholds of the effect, as shares


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds by A/A on one machine: by case id the share that a change has to exceed. `source` names the file."""

    source: str
    fingerprint: Fingerprints
    shares: dict[str, float]


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`thresholds`: (selection or None for every case, share); of those that select a case the last one holds.

    `noise` raises the usual threshold of the cases that it names; `thresholds` outweigh both.
    `fail_on` None: the default gates, and nobody insists on the one for regressions unless `insist` does, as a CI
    does. `min_speedups` are gates on base / new. `advisory`: a gate that fails is reported and ends nothing.
    """

    fail_on: tuple[CompareFailOn, ...] | None = None
    min_speedups: tuple[MinSpeedup, ...] = ()
    thresholds: tuple[tuple[Selector | None, float], ...] = ()
    noise: Thresholds | None = None
    ignored: tuple[Selector, ...] = ()
    alpha: float = ALPHA
    advisory: bool = False
    allow_different_machine: bool = False
    insist: bool = False

    @property
    def gates(self) -> tuple[CompareFailOn, ...]:
        return DEFAULT_GATES if self.fail_on is None else self.fail_on

    def must_count(self, gate: GateName) -> bool:
        """Whether it is an error that this gate could not have failed: somebody asked for it, or a CI relies on it."""
        if gate == "min-speedup" or (self.fail_on is not None and gate in self.fail_on):
            return True
        return self.insist and gate == "slower" and not self.advisory

    def threshold(self, case: Case, interleaved: bool) -> float:
        """The effect below which a difference is none, as a share."""
        usual = INTERLEAVED if interleaved else APART
        if self.noise is not None:
            usual = max(usual, self.noise.shares.get(case.id, 0.0))
        chosen = (share for selects, share in reversed(self.thresholds) if selects is None or selects(case))
        return next(chosen, usual)

    def ignores(self, case: Case) -> bool:
        """Whether no gate looks at this case."""
        return any(selects(case) for selects in self.ignored)
