"""The equal GPUs that a search left out: is one of them slower than its like (docs/fleet.md)?

At least four GPUs are judged by the rule of fleets; of fewer the difference is reported, which is no verdict. Both
halves of the blocks have to say so, each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.analysis.analyse import Analysis, derive_once
from gpubench.curves.shortfall import FEWEST_PEERS, TOLERANCE, growing_k, is_uniform, spread
from gpubench.curves.stats import median
from gpubench.result.run import Run, TwinTimes

# Of each half.
FEWEST_BLOCKS = 2
_USERS = "other-gpu-users"


class SlowTwin(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that falls short of its like by that share, and the op that shows it most. `judged`: by the rule for four
    GPUs or more; else it is a difference and no verdict."""

    device_id: str
    gpu_id: str | None
    op: str
    shortfall: float
    judged: bool


class TwinCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Equal GPUs: `measured_id` in full, `compared` of all `device_ids` by some cases. `worst` falls short of its like
    by `worst_shortfall`; those in `slower` by more than chance makes of it. `left_out` has a reason for each GPU that
    was not compared. `text` says it."""

    name: str
    measured_id: str
    device_ids: tuple[str, ...]
    compared: tuple[str, ...]
    worst: str | None
    worst_shortfall: float | None
    slower: tuple[SlowTwin, ...]
    left_out: dict[str, str]
    text: str


@derive_once
def twin_checks(analysis: Analysis) -> tuple[TwinCheck, ...]:
    """Return a check for each group of equal GPUs, the one that was measured in full first."""
    run = analysis.run
    names = {device.id: device.name for device in run.devices}
    groups: dict[str, list[TwinTimes]] = {}
    first = ""
    for one in run.twins or ():
        first = one.device_id if one.device_id in names else first
        groups.setdefault(first, []).append(one)
    return tuple(_check(run, names.get(first, ""), ours) for first, ours in groups.items())


def _check(run: Run, name: str, times: Sequence[TwinTimes]) -> TwinCheck:
    devices = tuple(dict.fromkeys(one.device_id for one in times))
    shared = _shared(run)
    left_out = {id: "other processes compute on it" for id in devices if id in shared}
    left_out |= {one.device_id: one.reason for one in times if one.reason is not None}
    by_case: dict[str, dict[str, TwinTimes]] = {}
    for one in times:
        if one.device_id not in left_out and len(one.blocks_s) >= 2 * FEWEST_BLOCKS and min(one.blocks_s) > 0:
            by_case.setdefault(one.case_id.rpartition("@")[0], {})[one.device_id] = one
    compared = [id for id in devices if any(id in ours and len(ours) > 1 for ours in by_case.values())]
    left_out |= {id: "there was no time for it" for id in devices if id not in compared and id not in left_out}
    looks = len(by_case) * len(devices)
    worst: dict[str, float] = {}
    slower: dict[str, SlowTwin] = {}
    for case, ours in by_case.items():
        for id, shortfall in _shortfalls({id: one.blocks_s for id, one in ours.items()}).items():
            worst[id] = max(worst.get(id, 0.0), shortfall)
        for slow in _slow(case, ours, looks):
            if slow.device_id not in slower or slower[slow.device_id].shortfall < slow.shortfall:
                slower[slow.device_id] = slow
    last = max(worst, key=lambda id: worst[id], default=None)
    found = TwinCheck(
        name=name, measured_id=devices[0], device_ids=devices, compared=tuple(compared), worst=last,
        worst_shortfall=None if last is None else worst[last],
        slower=tuple(sorted(slower.values(), key=lambda one: -one.shortfall)), left_out=left_out, text="",
    )  # fmt: skip
    return msgspec.structs.replace(found, text=_text(found))


def _shared(run: Run) -> set[str]:
    """GPUs that other processes compute on: they tell nothing of the hardware."""
    warnings = [one for one in run.warnings if one.code == _USERS and one.severity == "warning"]
    return {id for one in warnings for id in str((one.data or {}).get("devices", "")).split(", ")}


def _shortfalls(blocks: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return by how much the rate of each falls short: of the median of four GPUs or more, of the fastest of fewer."""
    rates = {id: 1 / median(ours) for id, ours in blocks.items()}
    like = median(list(rates.values())) if len(rates) >= FEWEST_PEERS else max(rates.values())
    return {id: 1 - rate / like for id, rate in rates.items()}


def _slow(case: str, times: Mapping[str, TwinTimes], looks: int) -> list[SlowTwin]:
    """Return those that both halves of the blocks, and the whole, call slow; none where so many are that the GPUs are
    not alike."""
    whole = {id: one.blocks_s for id, one in times.items()}
    middle = min(map(len, whole.values())) // 2
    halves = [{id: ours[part] for id, ours in whole.items()} for part in (slice(middle), slice(middle, None))]
    named = set.intersection(*(_suspects(ours, looks) for ours in (whole, *halves)))
    if not is_uniform(len(named), len(whole)):
        return []
    short = _shortfalls(whole)
    op, judged = case.partition("/")[0], len(whole) >= FEWEST_PEERS
    return [
        SlowTwin(device_id=id, gpu_id=times[id].gpu_id, op=op, shortfall=short[id], judged=judged)
        for id in sorted(named)
    ]


def _suspects(blocks: Mapping[str, Sequence[float]], looks: int) -> set[str]:
    threshold = TOLERANCE
    if len(blocks) >= FEWEST_PEERS:
        rates = [1 / median(ours) for ours in blocks.values()]
        threshold = max(TOLERANCE, growing_k(looks) * spread(rates))
    return {id for id, shortfall in _shortfalls(blocks).items() if shortfall > threshold}


def _text(found: TwinCheck) -> str:
    """`8 x NVIDIA H200: cupy:0 measured in full, the 7 others within 1.3 % of their median (worst cupy:5).`"""
    first, others = found.measured_id, len(found.device_ids) - 1
    head = f"{others + 1} x {found.name}: {first} measured in full"
    rest = [f"{id} not compared ({reason})" for id, reason in found.left_out.items()]
    like = "" if found.worst_shortfall is None else f"within {found.worst_shortfall:.1%}".replace("%", " %")
    if found.slower:
        worst, more = found.slower[0], len(found.slower) - 1
        what = f"{worst.device_id} is {worst.shortfall:.0%} slower at {worst.op}".replace("%", " %")
        what += f", {more} more GPU{'s' if more > 1 else ''} too" if more else ""
        what += ": `gpubench run --ops health`" if worst.judged else f" (of {others + 1} GPUs no verdict)"
        parts = [head, what]
    elif len(found.compared) < 2:
        parts = [head]
    elif others == 1:
        parts = [head, f"{found.device_ids[1]} {like}"]
    else:
        same = len(found.compared) == others + 1
        parts = [head, f"{f'the {others} others' if same else 'those compared'} {like} (worst {found.worst})"]
    if len(rest) > 1:
        rest = [f"{len(rest)} not compared"]
    return ", ".join([*parts, *rest]) + "."
