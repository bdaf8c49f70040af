"""The `gpubench-advise` document, version 1: what other programs read. Times in seconds, plain ratios."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpubench.report.analysis.advise import Confidence
from gpubench.report.analysis.cost_curves import Basis
from gpubench.report.analysis.types import Label


class Row(msgspec.Struct, frozen=True):
    """Base of the document's parts: immutable. A field that does not apply is null."""


class AdviceTime(Row, frozen=True, kw_only=True):
    """The expected time of one call, transfers included where the data is on the host."""

    estimate_s: float
    lo_s: float
    hi_s: float
    ci_kind: Literal["bootstrap", "within-session"]


class AdviceGain(Row, frozen=True, kw_only=True):
    """Time on `device_id` over the time on the device advised: above 1 the advice gains."""

    device_id: str
    ratio: float
    lo: float
    hi: float


class AdviceSplit(Row, frozen=True, kw_only=True):
    """`fraction` of the work on the GPU of `device_id`, the rest on the CPU. `ratio`: time of the better of the two
    alone over the time of both."""

    device_id: str
    fraction: float
    ratio: float
    lo: float
    hi: float
    case_id: str


class AdviceCandidate(Row, frozen=True, kw_only=True):
    """One device. Without a time, `reason` says why. `case_ids` are the cases behind it, at the sizes `between`."""

    device_id: str
    name: str
    kind: str
    form: str | None
    time: AdviceTime | None
    basis: Basis
    between: tuple[int, int] | None
    labels: tuple[Label, ...]
    case_ids: tuple[str, ...]
    reason: str | None


class AdviceSource(Row, frozen=True, kw_only=True):
    """The result that answered; `tool`: the versions that made it."""

    run_id: str
    label: str | None
    started_at: str
    complete: bool
    machine: str
    tool: dict[str, str]


class AdviceDocument(Row, frozen=True, kw_only=True):
    """Where one call should run. `device_id` is null where the answer is unknown; `reason` then says why.

    `split` is null unless the answer is to split the call over the CPU and a GPU: `backend` is then hybrid.
    """

    name: Literal["gpubench-advise"] = "gpubench-advise"
    schema_version: int = 1
    op: str
    n: int
    params: dict[str, int]
    dtype: str
    data: Literal["host", "device"]
    calls: int
    regime: str
    basis: Basis
    device_id: str | None
    backend: str | None
    form: str | None
    time: AdviceTime | None
    gain: AdviceGain | None
    confidence: Confidence
    reason: str | None
    split: AdviceSplit | None
    candidates: tuple[AdviceCandidate, ...]
    source: AdviceSource
