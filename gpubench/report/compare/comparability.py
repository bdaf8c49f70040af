"""What two runs differ in, and whether they may be compared all the same (measurement.md, section 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gpubench.model.result import Fingerprint, Fingerprints, Measurement, Run
from gpubench.report.analysis.labels import workers
from gpubench.report.analysis.turns import observations
from gpubench.report.compare.types import Difference, Scope

# What changes the meaning of a sample. How many are taken, and until when, does not.
PROTOCOL = ("inputs", "seed", "cache", "warmup_s", "order")
# Where one of these differs, the files stem from two machines.
IDENTITY: tuple[Scope, ...] = ("machine", "device")
LONGEST_STRETCH = 2  # sessions of one side in a row, in an order that counts as interleaved


def run_differences(base: Run, new: Run, index: int) -> tuple[Difference, ...]:
    """Differences of the whole runs: machine, devices, software, protocol."""
    found = print_differences(base.fingerprint, new.fingerprint, index)
    ours_protocol = {name: str(getattr(base.settings, name)) for name in PROTOCOL}
    theirs_protocol = {name: str(getattr(new.settings, name)) for name in PROTOCOL}
    return (*found, *_fields(index, "protocol", ours_protocol, theirs_protocol, common=True))


def print_differences(base: Fingerprints, new: Fingerprints, index: int) -> tuple[Difference, ...]:
    """Differences of two fingerprints: machine, devices, software."""
    found: list[Difference] = []
    pairs: tuple[tuple[Scope, Fingerprint, Fingerprint], ...] = (
        ("machine", base.machine, new.machine),
        ("device", base.device, new.device),
        ("software", base.software, new.software),
    )
    for scope, ours, theirs in pairs:
        # A device or package that one side lacks is no difference of the other's: its cases are missing.
        found += _fields(index, scope, ours.fields, theirs.fields, common=scope != "software")
    return tuple(found)


def case_differences(
    base: Run, new: Run, ours: Measurement, theirs: Measurement, index: int
) -> tuple[Difference, ...]:
    """Differences of one case: the meaning of its op, the threads of its device, its kernel."""
    device = ours.case.device_id
    rows: tuple[tuple[Scope, str, str | None, str | None], ...] = (
        ("op", "op_hash", ours.op_hash, theirs.op_hash),
        ("protocol", "threads", _threads(base, device), _threads(new, device)),
        ("kernel", "kernel_hash", ours.kernel_hash, theirs.kernel_hash),
        ("kernel", "kernel", ours.kernel, theirs.kernel),
        ("kernel", "staging", ours.staging, theirs.staging),
    )
    return tuple(
        Difference(new=index, scope=scope, field=field, base=one, value=other, id=ours.id)
        for scope, field, one, other in rows
        # Threads that one side does not tell are no difference; a kernel that it does not name is one.
        if one != other and (field != "threads" or None not in (one, other))
    )


def interleaved(base: Run, new: Run) -> bool:
    """Whether the sides took turns: never more than two of one side in a row, a session and its repeats being one."""
    try:
        order = sorted((datetime.fromisoformat(start), side) for side, start in _starts(base, new))
    except (ValueError, TypeError):  # times that cannot be read or ordered prove nothing
        return False
    sides = [side for _, side in order]
    longest = LONGEST_STRETCH + 1
    return bool(sides) and not any(
        len(set(sides[i : i + longest])) == 1 for i in range(len(sides) - longest + 1)
    )


def _starts(base: Run, new: Run) -> list[tuple[int, str]]:
    sides = [(side, run, frozenset(observations(run))) for side, run in enumerate((base, new))]
    return [
        (side, session.started_at)
        for side, run, counting in sides
        for session in run.sessions
        if session.index in counting
    ]


def _fields(
    index: int, scope: Scope, base: Mapping[str, str], new: Mapping[str, str], *, common: bool
) -> Iterable[Difference]:
    names = base.keys() & new.keys() if common else base.keys() | new.keys()
    return [
        Difference(new=index, scope=scope, field=name, base=base.get(name), value=new.get(name))
        for name in sorted(names)
        if base.get(name) != new.get(name)
    ]


def _threads(run: Run, device_id: str) -> str | None:
    """The threads of a device's workers over all sessions, such as `2` or `1, 2`; None where none tells."""
    counts = {worker.threads for worker in workers(run, device_id) if worker.threads is not None}
    return ", ".join(str(count) for count in sorted(counts)) or None
