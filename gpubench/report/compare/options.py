"""What the user asks of a comparison: thresholds, muted cases and gates, as checked values."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.model.case import Case
from gpubench.model.result import Fingerprints
from gpubench.report.analysis.gates import MinSpeedup
from gpubench.report.compare.types import DEFAULT_GATES, FailOn, GateName
from gpubench.stats import ALPHA

Test = Callable[[Case], bool]
INTERLEAVED, APART = 0.05, 0.10  # thresholds of the effect, as shares


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """What A/A on one machine has found: by case id the share that a change has to exceed. `source` names the file."""

    source: str
    fingerprint: Fingerprints
    shares: dict[str, float]


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`thresholds`: (selection or None for every case, share); of those that select a case the last one holds.

    `noise` raises the usual threshold of the cases that it names; `thresholds` outweigh both.
    `fail_on` None: the default gates, and nobody insists on the one for regressions unless `insist` does, as a CI
    does. `min_speedups` are gates on base / new. `advisory`: a gate that fails is told and does not end the program.
    """

    fail_on: tuple[FailOn, ...] | None = None
    min_speedups: tuple[MinSpeedup, ...] = ()
    thresholds: tuple[tuple[Test | None, float], ...] = ()
    noise: Thresholds | None = None
    ignored: tuple[Test, ...] = ()
    alpha: float = ALPHA
    advisory: bool = False
    allow_different_machine: bool = False
    insist: bool = False

    @property
    def gates(self) -> tuple[FailOn, ...]:
        """The gates that are applied."""
        return DEFAULT_GATES if self.fail_on is None else self.fail_on

    def must_count(self, gate: GateName) -> bool:
        """Whether it is an error that this gate could not have failed: somebody asked for it, or a CI relies on it."""
        if gate == "min-speedup" or (self.fail_on is not None and gate in self.fail_on):
            return True
        return self.insist and gate == "slower" and not self.advisory

    def threshold(self, case: Case, interleaved: bool) -> float:
        """The effect below which a difference is none, as a share."""
        found = INTERLEAVED if interleaved else APART
        if self.noise is not None:
            found = max(found, self.noise.shares.get(case.id, 0.0))
        for selects, share in self.thresholds:
            if selects is None or selects(case):
                found = share
        return found

    def muted(self, case: Case) -> bool:
        """Whether no gate looks at this case."""
        return any(selects(case) for selects in self.ignored)
