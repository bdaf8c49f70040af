"""What runs have to agree in before their sessions may stand in one result (measurement.md, section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.errors import InputError
from gpubench.model.result import Measurement, Run
from gpubench.report.compare.comparability import PROTOCOL

# A comparison asks the workers of each case for their threads; one result has one setting.
_SETTINGS = (*PROTOCOL, "threads")
_OF_A_CASE = ("case", "op_hash", "kernel_hash", "staging", "flops", "bytes")


def check(runs: Sequence[Run]) -> None:
    """Raises InputError naming the first field in which two of `runs` differ. A field that one lacks is none."""
    for scope in ("machine", "device", "software"):
        fields = [(run.id, getattr(run.fingerprint, scope).fields) for run in runs]
        _agree(scope, [(run_id, name, value) for run_id, found in fields for name, value in found.items()])
    _agree("protocol", [(run.id, name, getattr(run.settings, name)) for run in runs for name in _SETTINGS])


def check_case(measured: Sequence[Measurement]) -> None:
    """The same for one case: its op, its kernel's text and how its data moves."""
    for name in _OF_A_CASE:
        values = [getattr(one, name) for one in measured]
        if any(value != values[0] for value in values):
            other = next(value for value in values if value != values[0])
            raise _different(f"the case {measured[0].id}", name, values[0], other)
    shares = sorted({share for one in measured for share in _shares(one)})
    if len(shares) > 1:
        raise _different(f"the case {measured[0].id}", "the share of the GPU", shares[0], shares[-1])


def _shares(one: Measurement) -> set[float]:
    """The shares at which a split was measured, beside those that it tried."""
    return {block.fraction for block in one.blocks if block.phase == "main" and block.fraction is not None}


def _agree(scope: str, told: Iterable[tuple[str, str, object]]) -> None:
    first: dict[str, tuple[str, object]] = {}
    for run_id, name, value in told:
        known_id, known = first.setdefault(name, (run_id, value))
        if known != value:
            raise _different(f"the runs {known_id[:8]} and {run_id[:8]}", f"{scope} {name}", known, value)


def _different(who: str, field: str, one: object, other: object) -> InputError:
    return InputError(
        "not-mergeable", f"{who} cannot be merged: {field} differs",
        why=f"{one} in one, {other} in another, and sessions of one result are measured alike",
        hint="`gpubench report FILE FILE` shows them side by side, `gpubench compare` tells which is faster",
    )  # fmt: skip
