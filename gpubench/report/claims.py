"""The file of claims: expected speedups and times, as TOML or JSON (docs/claims.md)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import InputError, UsageError
from gpubench.report.analysis.types import Claim
from gpubench.selectors import selector
from gpubench.units import parse_duration

BUILTIN = "builtin"  # stands for the claims that come with gpubench
_HINT = "docs/claims.md shows the form; gpubench's own are --claims builtin"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One claim as it is written: times with a unit, or plain seconds."""

    claim: str
    case: str | None = None
    speedup: float | None = None
    cpu: str | float | None = None
    gpu: str | float | None = None
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
        text = _text(name)
    except FileNotFoundError:
        raise InputError(
            "unreadable", f"--claims: {name} cannot be read", why="there is no such file", hint=_HINT
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError("unreadable", f"--claims: {name} cannot be read", why=why, hint=_HINT) from None
    return tuple(
        _claim(entry, found.tolerance, name) for found in [_parsed(text, name)] for entry in found.claims
    )


def _text(name: str) -> str:
    if name == BUILTIN:
        return (resources.files("gpubench.report") / "data" / "claims.toml").read_text(encoding="utf-8")
    return Path(name).read_text(encoding="utf-8")


def _parsed(text: str, name: str) -> _File:
    import tomllib

    try:
        data: Any = msgspec.json.decode(text) if name.lower().endswith(".json") else tomllib.loads(text)
        found = msgspec.convert(data, _File)
    except (tomllib.TOMLDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=str(error), hint=_HINT) from None
    if found.name != "gpubench-claims" or found.schema_version != 1:
        why = (
            f"it is {found.name} version {found.schema_version}; this gpubench reads gpubench-claims version 1"
        )
        raise InputError("bad-claims", f"--claims: {name} cannot be used", why=why, hint=_HINT)
    return found


def _claim(entry: _Entry, tolerance: float, name: str) -> Claim:
    def refuse(why: str) -> InputError:
        return InputError(
            "bad-claims", f"--claims: {name}: the claim {entry.claim[:40]!r}", why=why, hint=_HINT
        )

    try:
        cpu_s, gpu_s = _seconds(entry.cpu), _seconds(entry.gpu)
        if entry.case is not None:
            selector(entry.case, option="--claims")
    except UsageError as error:
        raise refuse(f"{error.message}: {error.why}") from None
    claim = Claim(
        claim=entry.claim, case=entry.case, speedup=entry.speedup, cpu_s=cpu_s, gpu_s=gpu_s,
        tolerance=tolerance if entry.tolerance is None else entry.tolerance,
    )  # fmt: skip
    if claim.expected is None and gpu_s is None:
        raise refuse("it expects nothing: give speedup, or gpu, or cpu and gpu")
    if claim.expected is not None and not 0 < claim.expected < float("inf"):
        raise refuse("a speedup is a number above 0")
    if not 0 <= claim.tolerance < 1:
        raise refuse("a tolerance is a share from 0 to below 1")
    return claim


def _seconds(value: str | float | None) -> float | None:
    if value is None:
        return None
    return parse_duration(value if isinstance(value, str) else f"{value:.12f}", option="--claims")
