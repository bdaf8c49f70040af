"""The `gpubench-compare` document, version 2: the result of a comparison, for other programs to read.

One base file is compared with one or several new files. Times are in seconds, and ratios are new / base. The
field `new` of a row is an index into the list of new files.
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
DifferenceScope = Literal["machine", "device", "card", "software", "protocol", "op", "kernel"]
CompareFailOn = Literal["slower", "unsure", "failed", "missing", "noisy"]
GateName = CompareFailOn | Literal["min-speedup"]
GATES: tuple[CompareFailOn, ...] = ("slower", "unsure", "failed", "missing", "noisy")
DEFAULT_GATES: tuple[CompareFailOn, ...] = ("slower", "failed", "missing")


class SideRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result file."""

    source: str  # the LABEL of `LABEL=FILE` on the command line, or else the file name without its folders
    run_id: str  # the id of the run
    label: str | None  # the label that the user gave the run; null if there is none
    started_at: str  # the time of its start, in UTC
    sessions: int  # the number of sessions; a disturbed session and its repeats count as one
    machine: str  # a description of its CPU and GPUs


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A property that differs between the base and a new file."""

    new: int  # the index of the new file
    scope: DifferenceScope  # the kind of the property
    field: str  # the name of the property
    base: str | None  # the value of the property in the base; null if the base has none
    value: str | None  # the value of the property in the new file; null if the file has none
    id: str | None = None  # the id of the case, if the difference concerns a single case


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """The geometric mean of the ratios new / base over the common cases of one device."""

    device_id: str  # the id of the device
    ratio: float  # the mean ratio new / base
    lo: float  # the low end of its interval
    hi: float  # the high end of its interval
    cases: int  # the number of cases in the mean


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the comparison of one new file with the base."""

    # whether at most two sessions of one file follow each other; a session and its repeats count as one
    interleaved: bool
    correction: Correction | None  # the method that adjusted the p-values; null if no case was tested
    family: int  # the number of cases that were tested together
    spread: float | None = None  # the median of the cases' `spread`; null: no case has one
    smallest_effect: float | None = None  # the median of the cases' `smallest_effect`; null: no case has one
    own_sizes: int = 0  # the number of cases at sizes that one run chose by itself and only that run has
    devices: tuple[DeviceChange, ...] = ()  # each device's change, if no case has enough sessions for a test


class JudgedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one case that both files measured. A case whose time in the base is implausible has a
    verdict, too, even if the new file lacks it.

    If the case cannot be compared, all its ratios and `threshold` are null. `spread` and `smallest_effect` are
    also null if there are too few sessions for them.
    """

    new: int  # the index of the new file
    id: str  # the id of the case
    verdict: VerdictWord  # FASTER, SLOWER, SAME, UNSURE or not-comparable
    reason: str | None = None  # the reason for an unsure or weak verdict, or against a comparison; else null
    base_s: float | None = None  # the time in the base, in seconds; null if it is implausible
    new_s: float | None = None  # the time in the new file, in seconds; null if it is implausible or missing
    ratio: float | None = None  # `new_s` / `base_s`
    lo: float | None = None  # the low end of the interval of `ratio`
    hi: float | None = None  # the high end of the interval of `ratio`
    low_end_ratio: float | None = None  # new / base of the sessions' fastest samples, which the tests use
    median_ratio: float | None = None  # the ratio new / base of the sessions' medians
    slow_end_ratio: float | None = None  # the ratio new / base of the sessions' 90 % quantiles
    p: float | None = None  # the p-value of the change in the direction of `low_end_ratio`; null: no test
    # `p`, adjusted for all cases that were tested together; null if the case was not among them
    p_adjusted: float | None = None
    threshold: float | None = None  # changes up to this share count as none
    k_base: int = 0  # the number of sessions with a time in the base
    k_new: int = 0  # the number of sessions with a time in the new file
    # the number of sessions a side that should give a sure verdict; null: unknown
    sessions_needed: int | None = None
    spread: float | None = None  # standard deviation between sessions of their fastest samples, as a share
    smallest_effect: float | None = None  # the smallest change, as a share, with an 80 % chance of SLOWER
    labels: tuple[Label, ...] = ()  # the labels that the case has in either file
    muted: bool = False  # whether all gates ignore the case


class AbsentCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that has a number in only one of the two files, with the reason why the other file has none."""

    new: int  # the index of the new file
    id: str  # the id of the case
    reason: str  # the code of the reason why the other file has no number
    detail: str = ""  # the reason as text
    muted: bool = False  # whether all gates ignore the case


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the comparison. If it fails, the exit code is 3."""

    name: GateName  # the name of the gate
    passed: bool  # whether the condition holds
    impossible: bool = False  # whether one of the files cannot fail the gate, whatever its results
    ids: tuple[str, ...] = ()  # the ids of the failing cases; `min-speedup`: their interval lies below `least`
    selector: str | None = None  # `min-speedup` only: the selector of the cases
    least: float | None = None  # `min-speedup` only: the required ratio base / new
    missing: tuple[str, ...] = ()  # `min-speedup` only: selected cases without a ratio, which also fail it
    near: tuple[str, ...] = ()  # `min-speedup` only: cases whose interval contains `least`

    @property
    def low(self) -> tuple[str, ...]:
        """The field `ids`, under the name that the gates of a report use."""
        return self.ids

    @property
    def reason(self) -> None:
        """Always None: a gate of a comparison fails because of single cases, never as a whole."""
        return


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A warning or note about the comparison."""

    code: WarningCode  # its code in the list of messages
    severity: Severity  # its severity
    message: str  # the notice in one sentence
    hint: str  # one sentence of advice


class VerdictCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of cases with each verdict. Muted cases are only counted in `muted`."""

    faster: int = 0  # cases that are surely faster
    slower: int = 0  # cases that are surely slower
    same: int = 0  # cases that changed by no more than their threshold
    unsure: int = 0  # cases without a sure verdict, because of noise, few sessions or disturbances
    not_comparable: int = 0  # cases whose numbers cannot be compared
    missing: int = 0  # cases that have a number only in the base
    failed: int = 0  # cases that have a number only in the base and failed in the new file
    added: int = 0  # cases that have a number only in the new file
    muted: int = 0  # cases that all gates ignore, whatever their verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one or several new files with a base file."""

    name: Literal["gpubench-compare"] = "gpubench-compare"  # the name of the document's format
    schema_version: int = 2  # the version of the document's format
    base: SideRow  # the base file
    new: tuple[SideRow, ...]  # the new files
    alpha: float  # the significance level of the tests
    interleaved: bool  # whether every new file took turns with the base
    correction: Correction | None  # the method that adjusted the p-values; null if no pair has a tested case
    pairs: tuple[Pair, ...]  # a summary for each new file
    differences: tuple[Difference, ...]  # the differences between the base and the new files
    cases: tuple[JudgedCase, ...]  # the cases that both files have, with their verdicts
    missing: tuple[AbsentCase, ...]  # the cases that have a number only in the base
    failed: tuple[AbsentCase, ...]  # the cases that have a number only in the base and failed in the new file
    added: tuple[AbsentCase, ...]  # the cases that have a number only in the new file
    counts: VerdictCounts  # the number of cases with each verdict
    gates: tuple[Gate, ...]  # the requested gates
    warnings: tuple[Notice, ...]  # warnings and notes about the comparison
    exit_code: int  # the exit code of the command
    exit_reason: Literal["ok", "gate", "input"]  # the reason for the exit code


INTERLEAVED, APART = 0.05, 0.10  # default thresholds, as shares: files that took turns, and all others
ALLOWED_SHARE = 0.05  # the share of permutations with a false alarm that `gpubench noise --check` allows


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of one machine. `gpubench noise` measured them by comparing unchanged work with itself."""

    source: str  # the name of the file with the thresholds
    fingerprint: Fingerprints  # the identity of the machine
    shares: dict[str, float]  # by case id: the share that a change has to exceed


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a comparison."""

    fail_on: tuple[CompareFailOn, ...] | None = None  # the gates that the user requested; None: DEFAULT_GATES
    min_speedups: tuple[MinSpeedup, ...] = ()  # the gates on the ratio base / new
    # pairs (selector, or None for all cases; threshold as a share); the last pair that selects a case applies
    thresholds: tuple[tuple[Selector | None, float], ...] = ()
    # measured thresholds; each raises the default threshold of its case, and `thresholds` override both
    noise: Thresholds | None = None
    ignored: tuple[Selector, ...] = ()  # selectors of the cases that all gates ignore
    alpha: float = ALPHA  # the significance level of the tests
    advisory: bool = False  # whether a failed gate is only reported and leaves the exit code unchanged
    allow_different_machine: bool = False  # whether files from different machines are compared
    insist: bool = False  # whether a regression gate that can never fail is an error, as a CI requires

    @property
    def gates(self) -> tuple[CompareFailOn, ...]:
        return DEFAULT_GATES if self.fail_on is None else self.fail_on

    def must_count(self, gate: GateName) -> bool:
        """Return whether it is an error if this gate can never fail: if the user requested the gate, and with
        `insist` also for the gate `slower`, unless `advisory` is set."""
        if gate == "min-speedup" or (self.fail_on is not None and gate in self.fail_on):
            return True
        return self.insist and gate == "slower" and not self.advisory

    def threshold(self, case: Case, interleaved: bool) -> float:
        """Return the threshold of a case: changes up to this share count as none. It is the threshold that the
        user gave for the case, or else the larger of the default and the measured one. `interleaved` tells
        whether the two files took turns."""
        usual = INTERLEAVED if interleaved else APART
        if self.noise is not None:
            usual = max(usual, self.noise.shares.get(case.id, 0.0))
        chosen = (share for selects, share in reversed(self.thresholds) if selects is None or selects(case))
        return next(chosen, usual)

    def ignores(self, case: Case) -> bool:
        """Return whether all gates ignore this case."""
        return any(selects(case) for selects in self.ignored)
