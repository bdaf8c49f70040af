"""The outcomes of several runs, case by case: samples of all sessions, or the reason why there is no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.model.result import Check, Failure, Measurement, Outcome, Run, Skip
from gpubench.report.merging.agreement import check_case

Numbering = Mapping[tuple[int, int], int]  # run and session there -> session in the merged run
_KERNELS = " or "


def joined(runs: Sequence[Run], numbering: Numbering) -> list[Outcome]:
    """Each case once, in the order in which the runs name them, its sessions numbered anew.

    A case that failed in one run has failed: a later session does not make up for a wrong result. A case that one
    run skipped or did not reach is measured if another run has measured it.
    """
    by_id: dict[str, list[tuple[int, Outcome]]] = {}
    for i, run in enumerate(runs):
        for outcome in run.outcomes:
            by_id.setdefault(outcome.id, []).append((i, outcome))
    return [_joined(told, numbering) for told in by_id.values()]


def _joined(told: Sequence[tuple[int, Outcome]], numbering: Numbering) -> Outcome:
    for kind in (Failure, Measurement, Skip):
        found = [(i, outcome) for i, outcome in told if isinstance(outcome, kind)]
        if found and kind is Measurement:
            return _measurement([(i, one) for i, one in found if isinstance(one, Measurement)], numbering)
        if found:
            return found[0][1]
    return told[0][1]


def _measurement(told: Sequence[tuple[int, Measurement]], numbering: Numbering) -> Measurement:
    parts = [part for _, part in told]
    check_case(parts)
    blocks = [
        msgspec.structs.replace(block, session=numbering[i, block.session])
        for i, part in told
        for block in part.blocks
    ]
    return msgspec.structs.replace(
        parts[0],
        kernel=_kernels(parts),
        check=max((part.check for part in parts), key=_error),
        blocks=sorted(blocks, key=lambda block: (block.session, block.round, block.position)),
        parts=sorted(
            (
                msgspec.structs.replace(one, session=numbering[i, one.session])
                for i, part in told
                for one in part.parts
            ),
            key=lambda one: one.session,
        ),
        stops=sorted(
            (
                msgspec.structs.replace(one, session=numbering[i, one.session])
                for i, part in told
                for one in part.stops
            ),
            key=lambda one: one.session,
        ),
    )


def _kernels(parts: Sequence[Measurement]) -> str | None:
    """What the device took; where it chose differently, all of it."""
    names = {name for part in parts if part.kernel for name in part.kernel.split(_KERNELS)}
    return _KERNELS.join(sorted(names)) or None


def _error(check: Check) -> float:
    return check.max_error or 0.0
