"""The `gpubench-compare` document, version 2: the results of a comparison, for other programs to read.

Times are in seconds. Ratios are new / base. `new` in a row is an index into the list of new files.
Version history: 1 = first version. 2 = `ratio` is `new_s` / `base_s`; its former value is now `low_end_ratio`.
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
    """One result file."""

    source: str  # the name that the user gave it, without its folders
    run_id: str  # of the run
    label: str | None  # of the user
    started_at: str  # UTC
    sessions: int  # that count as one observation each: a disturbed session and its repeats are one
    machine: str  # its CPU and GPUs, in words


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is not the same in both files."""

    new: int  # index of the new file
    scope: DifferenceScope  # what it concerns
    field: str  # its name
    base: str | None  # its value there
    value: str | None  # its value in the new file
    id: str | None = None  # the only case that is concerned


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """The geometric mean of new / base over the common cases of one device."""

    device_id: str  # the device
    ratio: float  # new / base
    lo: float  # low end of its interval
    hi: float  # high end of its interval
    cases: int  # how many


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
    """One case that both files have a number for. A time that cannot be true is null."""

    new: int  # index of the new file
    id: str  # of the case
    verdict: VerdictWord  # the word
    reason: str | None = None  # why it is no better one
    base_s: float | None = None  # seconds in base
    new_s: float | None = None  # seconds in new
    ratio: float | None = None  # `new_s` / `base_s`
    lo: float | None = None  # low end of its interval
    hi: float | None = None  # high end of its interval
    low_end_ratio: float | None = None  # new / base of the sessions' low ends, which the tests look at
    median_ratio: float | None = None  # of the sessions' medians
    slow_end_ratio: float | None = None  # of the sessions' 90 % quantiles
    p: float | None = None  # in the direction in which `low_end_ratio` points
    p_adjusted: float | None = None  # over all cases that were tested together
    threshold: float | None = None  # the change below which there is none, as a share
    k_base: int = 0  # sessions of base
    k_new: int = 0  # sessions of new; 0 where base has a number that cannot be true
    sessions_needed: int | None = None  # to tell
    spread: float | None = None  # standard deviation of the low ends between sessions of one side, as a share
    # the change that four of five such comparisons would call SLOWER; null where none would
    smallest_effect: float | None = None
    labels: tuple[Label, ...] = ()  # what is wrong with a number
    muted: bool = False  # no gate looks at it


class AbsentCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case with a number on one side alone, and why there is none on the other."""

    new: int  # index of the new file
    id: str  # of the case
    reason: str  # why there is no number
    detail: str = ""  # the reason in words
    muted: bool = False  # no gate looks at it


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition whose breach is exit 3."""

    name: GateName  # which one
    passed: bool  # it holds
    impossible: bool = False  # nothing could have failed it in one of the files, or it has no case to look at
    ids: tuple[str, ...] = ()  # cases that breach it: their whole interval lies below
    selector: str | None = None  # of `min-speedup`: the cases that it asks
    least: float | None = None  # of `min-speedup`: times as fast as in base
    missing: tuple[str, ...] = ()  # cases without a ratio, which is a breach too
    near: tuple[str, ...] = ()  # cases whose interval contains `least`

    @property
    def low(self) -> tuple[str, ...]:
        """The field `ids`, under the name that the gates of a report use."""
        return self.ids

    @property
    def reason(self) -> None:
        """Always None: a gate of a comparison fails because of single cases, never as a whole."""
        return


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A finding about the comparison."""

    code: WarningCode  # of the list of messages
    severity: Severity  # how grave it is
    message: str  # one sentence
    hint: str  # one sentence of advice


class VerdictCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many cases have which verdict."""

    faster: int = 0  # surely
    slower: int = 0  # surely
    same: int = 0  # within the threshold
    unsure: int = 0  # too noisy to tell
    not_comparable: int = 0  # numbers mean different things
    missing: int = 0  # in new
    failed: int = 0  # in new
    added: int = 0  # in new only
    muted: int = 0  # whatever their verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """New files beside a base."""

    name: Literal["gpubench-compare"] = "gpubench-compare"  # of the document
    schema_version: int = 2  # of the document
    base: SideRow  # the file that others are held against
    new: tuple[SideRow, ...]  # the other files
    alpha: float  # of the tests
    interleaved: bool  # whether all took turns with base
    correction: Correction | None  # null if none of `pairs` tested anything
    pairs: tuple[Pair, ...]  # base and a new file each
    differences: tuple[Difference, ...]  # between the files
    cases: tuple[JudgedCase, ...]  # with a verdict
    missing: tuple[AbsentCase, ...]  # with a number in base only
    failed: tuple[AbsentCase, ...]  # with a number in base only, and broken in new
    added: tuple[AbsentCase, ...]  # with a number in new only
    counts: VerdictCounts  # by verdict
    gates: tuple[Gate, ...]  # that were asked for
    warnings: tuple[Notice, ...]  # findings
    exit_code: int  # of the command
    exit_reason: Literal["ok", "gate", "input"]  # in one word


INTERLEAVED, APART = 0.05, 0.10  # thresholds of the effect, as shares


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of one machine, measured by comparing unchanged work with itself (A/A)."""

    source: str  # the name of their file
    fingerprint: Fingerprints  # of the machine
    shares: dict[str, float]  # by case id what a change has to exceed


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a comparison."""

    fail_on: tuple[CompareFailOn, ...] | None = None  # None: the default gates
    min_speedups: tuple[MinSpeedup, ...] = ()  # gates on base / new
    # (selection or None for every case, share); of those that select a case the last one holds
    thresholds: tuple[tuple[Selector | None, float], ...] = ()
    # raises the usual threshold of the cases that it names; `thresholds` outweigh both
    noise: Thresholds | None = None
    ignored: tuple[Selector, ...] = ()  # cases that no gate looks at
    alpha: float = ALPHA  # of the tests
    advisory: bool = False  # a gate that fails is reported and ends nothing
    allow_different_machine: bool = False  # compare all the same
    insist: bool = False  # on the gate for regressions, as a CI does

    @property
    def gates(self) -> tuple[CompareFailOn, ...]:
        return DEFAULT_GATES if self.fail_on is None else self.fail_on

    def must_count(self, gate: GateName) -> bool:
        """Tell whether it is an error if this gate can never fail. It is for a gate that the user requested or a CI
        relies on."""
        if gate == "min-speedup" or (self.fail_on is not None and gate in self.fail_on):
            return True
        return self.insist and gate == "slower" and not self.advisory

    def threshold(self, case: Case, interleaved: bool) -> float:
        """Return the share up to which a difference counts as none."""
        usual = INTERLEAVED if interleaved else APART
        if self.noise is not None:
            usual = max(usual, self.noise.shares.get(case.id, 0.0))
        chosen = (share for selects, share in reversed(self.thresholds) if selects is None or selects(case))
        return next(chosen, usual)

    def ignores(self, case: Case) -> bool:
        """Tell whether all gates ignore this case."""
        return any(selects(case) for selects in self.ignored)
