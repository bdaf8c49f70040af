"""The `gpubench-noise` document, version 1: how far unchanged work seems to change on one machine.

Shares run from 0 to 1; a threshold of 0.08 is a change of 8 %.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.model.result import Fingerprints

NAME = "gpubench-noise"
VERSION = 1


class NoiseRow(msgspec.Struct, frozen=True):
    """Base of the document's parts: immutable."""


class NoisyCase(NoiseRow, frozen=True, kw_only=True):
    """One case. `spread` is the 95th percentile of |new / base - 1| over all labellings, `threshold` what a
    comparison should take; `alarm_share` the labellings in which the case was called SLOWER at 5 %."""

    id: str
    spread: float
    threshold: float
    alarm_share: float


class Noise(NoiseRow, frozen=True, kw_only=True):
    """What a machine does to unchanged work, `sessions` a side.

    `labellings` is how often the sessions were put on two sides; in `false_alarm_share` of them some case was called
    SLOWER at the usual 5 %, in `raised_alarm_share` at the thresholds of `cases`, which the same sessions gave.
    `left_out` are cases that too few sessions have, or whose numbers cannot be true.
    """

    name: Literal["gpubench-noise"] = "gpubench-noise"
    schema_version: int = VERSION
    run_id: str
    machine: str
    fingerprint: Fingerprints
    sessions: int
    alpha: float
    labellings: int
    false_alarm_share: float
    raised_alarm_share: float
    cases: tuple[NoisyCase, ...]
    left_out: tuple[str, ...] = ()
