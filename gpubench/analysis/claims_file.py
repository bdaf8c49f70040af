"""The file of claims (docs/claims.md): TOML or JSON, and gpubench's own."""

from __future__ import annotations

from importlib import resources

import msgspec

from gpubench.analysis.claims import Claim, Divisor, Range
from gpubench.base import disk
from gpubench.base.errors import InputError, UsageError
from gpubench.base.messages import ERRORS
from gpubench.base.units import parse_duration
from gpubench.result.run import DeviceKind
from gpubench.result.selectors import selector
from gpubench.result.store import limits

BUILTIN = "builtin"  # stands for the claims that come with gpubench
_HINT = ERRORS["bad-claims"].remedy


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One claim as it is written: times with a unit, or plain seconds."""

    claim: str
    document: str | None = None
    case: str | None = None
    cases: tuple[str, ...] = ()
    also: str | None = None
    device: DeviceKind | None = None
    against: Divisor = "cpu"
    speedup: float | None = None
    cpu: str | float | None = None
    gpu: str | float | None = None
    time: tuple[str | float, str | float] | None = None
    break_even: Range | None = None
    tolerance: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file. `tolerance` holds for the claims that name none."""

    claims: list[_Entry]
    name: str = "gpubench-claims"
    schema_version: int = 1
    source: str | None = None
    tolerance: float = 0.1


def load(name: str) -> tuple[Claim, ...]:
    """The claims in the file `name`, or gpubench's own for `builtin`. Raises InputError and UsageError."""
    try:
        data = _read(name)
    except FileNotFoundError:
        raise InputError(
            "unreadable", f"--claims: {name} cannot be read", why="there is no such file", hint=_HINT
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError("unreadable", f"--claims: {name} cannot be read", why=why, hint=_HINT) from None
    found = _parsed(data, name)
    return tuple(_claim(entry, found.tolerance, name) for entry in found.claims)


def _read(name: str) -> bytes:
    if name == BUILTIN:
        return (resources.files("gpubench.analysis") / "data" / "claims.toml").read_bytes()
    return disk.read_regular(name, limits.MAX_BYTES + 1)


def _parsed(data: bytes, name: str) -> _File:
    try:
        if name.lower().endswith(".json"):
            limits.require_json(data, f"--claims: {name}")
            found = msgspec.json.decode(data, type=_File)
        else:
            found = msgspec.convert(limits.toml(data), _File)
        limits.require_claims(len(found.claims), f"--claims: {name}")
    except (ValueError, RecursionError) as error:  # of msgspec and tomllib too
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=str(error)) from None
    if found.name != "gpubench-claims" or found.schema_version != 1:
        why = (
            f"it is {found.name} version {found.schema_version}; this gpubench reads gpubench-claims version 1"
        )
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=why)
    return found


def _claim(entry: _Entry, tolerance: float, name: str) -> Claim:
    def refuse(why: str) -> InputError:
        return InputError("bad-claims", f"--claims: {name}: the claim {entry.claim[:40]!r}", why=why)

    cases = (entry.case,) if entry.case is not None else entry.cases
    try:
        claim = Claim(
            claim=entry.claim, document=entry.document, cases=cases, also=entry.also, device=entry.device,
            against=entry.against, speedup=entry.speedup, cpu_s=_seconds(entry.cpu), gpu_s=_seconds(entry.gpu),
            time_s=None if entry.time is None else (_in_seconds(entry.time[0]), _in_seconds(entry.time[1])),
            break_even=entry.break_even, tolerance=tolerance if entry.tolerance is None else entry.tolerance,
        )  # fmt: skip
        for text in (*cases, *([entry.also] if entry.also else ())):
            selector(text, option="--claims")
    except UsageError as error:
        raise refuse(f"{error.message}: {error.why}") from None
    if why := _wrong(entry, claim):
        raise refuse(why)
    return claim


def _wrong(entry: _Entry, claim: Claim) -> str | None:
    """What makes no sense together."""
    sides = [claim.speedup, claim.cpu_s, claim.gpu_s]
    ranges = [ends for ends in (claim.time_s, claim.break_even) if ends is not None]
    if not ranges and all(side is None for side in sides):
        return "it expects nothing: give speedup, cpu, gpu, time or break_even"
    if len(ranges) > 1 or (ranges and any(side is not None for side in sides)):
        return "it expects two things: give time or break_even alone"
    if any(not 0 < first <= last < float("inf") for first, last in ranges):
        return "a range goes from a smaller number above 0 to a larger one"
    if claim.expected is not None and not 0 < claim.expected < float("inf"):
        return "a speedup is a number above 0"
    if not 0 <= claim.tolerance < 1:
        return "a tolerance is a share from 0 to below 1"
    if entry.case is not None and entry.cases:
        return "give case or cases, not both"
    if len(claim.cases) > 1 and (claim.expected is None and claim.gpu_s is None):
        return "several cases add up for a speedup or a gpu time alone"
    if claim.against == "gpu" and claim.speedup is None:
        return 'against = "gpu" needs the speedup over the GPU'
    return None


def _seconds(value: str | float | None) -> float | None:
    return None if value is None else _in_seconds(value)


def _in_seconds(value: str | float) -> float:
    return parse_duration(value if isinstance(value, str) else f"{value:.12f}", option="--claims")
