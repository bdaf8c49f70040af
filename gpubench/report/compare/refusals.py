"""What no comparison can be made of, told with what differs: exit 4 (measurement.md, section 12)."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.errors import InputError
from gpubench.model.result import Run
from gpubench.report.compare.comparability import IDENTITY, print_differences
from gpubench.report.compare.options import CompareOptions
from gpubench.report.compare.pairing import Paired
from gpubench.report.compare.types import Difference, JudgedCase
from gpubench.report.listing import first_few

Named = tuple[str, Run]  # the name under which the user gave a file, and what it holds


def require_same_machine(found: Sequence[Difference], base: str, new: str, options: CompareOptions) -> None:
    """`found` are the differences of the whole runs. Raises InputError naming the fields of another machine."""
    if foreign := _foreign(found, options):
        raise InputError(
            "not-comparable", f"{base} and {new} stem from different machines", why=_listed(foreign),
            hint="measure both on one machine, or compare all the same with --allow-different-machine",
        )  # fmt: skip


def require_fitting(options: CompareOptions, base: Named) -> None:
    """Thresholds of another machine, or of other cases, are none. Raises InputError."""
    found = options.noise
    if found is None:
        return
    differences = print_differences(base[1].fingerprint, found.fingerprint, 0)
    if foreign := _foreign(differences, options):
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} stem from different machines", why=_listed(foreign),
            hint="measure the thresholds on the same machine with `gpubench noise -o`",
        )  # fmt: skip
    if not any(outcome.id in found.shares for outcome in base[1].outcomes):
        raise InputError(
            "not-comparable", f"{base[0]} and {found.source} have no case in common",
            why="the thresholds are those of other cases",
            hint="measure the thresholds of the same ops and sizes with `gpubench noise -o`",
        )  # fmt: skip


def _foreign(found: Sequence[Difference], options: CompareOptions) -> list[Difference]:
    """The fields of another machine, unless those are allowed to differ."""
    return [] if options.allow_different_machine else [row for row in found if row.scope in IDENTITY]


def require_common(
    part: Paired, rows: Sequence[JudgedCase], found: Sequence[Difference], base: str, new: str
) -> None:
    """A file whose every case failed is a result; one that shares nothing with the base is not. Raises InputError."""
    if any(row.verdict != "not-comparable" for row in rows) or part.failed:
        return
    if any(row.k_new for row in rows):
        reasons = [row for row in found if row.scope in ("protocol", "op")]
        raise InputError(
            "not-comparable", f"{base} and {new} have no case that can be compared",
            why=_listed(reasons) or "the numbers of every common case are implausible",
            hint="measure both with the same options and the same definition of the ops",
        )  # fmt: skip
    raise InputError(
        "not-comparable", f"{base} and {new} have no case in common",
        why=f"cases with a number: {len(part.missing)} in {base} alone, {len(part.added)} in {new} alone, none in both",
        hint="measure the same ops, sizes and devices on both sides",
    )  # fmt: skip


def _listed(rows: Sequence[Difference], most: int = 4) -> str:
    """`cpu: 'A' against 'B'; usable_cpus: '2' against '4'`."""
    texts = list(dict.fromkeys(f"{row.field}: {row.base!r} against {row.value!r}" for row in rows))
    return first_few(texts, most, between="; ")
