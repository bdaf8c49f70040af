"""How the `.part` beside a result stands to it. Run id and sessions decide, never times: `touch`, `cp`, `git checkout`
and clocks change those."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from gpubench.base import disk
from gpubench.base.errors import InputError
from gpubench.result.store.document import PART_SUFFIX, part_of
from gpubench.result.store.files import RESULT_SUFFIXES, read
from gpubench.result.store.limits import enough_memory

# It goes on with the result; the result holds all of it; or each holds what the other one lacks.
Relation = Literal["ahead", "behind", "apart"]


class _Session(msgspec.Struct, frozen=True):
    index: int
    started_at: str = ""


class _Outcome(msgspec.Struct, frozen=True):
    blocks: list[msgspec.Raw] = []


class _Progress(msgspec.Struct, frozen=True):
    """How far a run has come."""

    id: str
    sessions: list[_Session] = []
    outcomes: list[_Outcome] = []

    @property
    def blocks(self) -> int:
        return sum(len(outcome.blocks) for outcome in self.outcomes)


def part_to_resume(path: str | Path) -> Path | None:
    """Return the `.part` that goes on with the result `path`, or stands in its place. None if there is none.

    Raises InputError if there are two and one of them cannot be read.
    """
    part = part_of(path)
    if not os.path.isfile(part):
        return None
    return part if not os.path.exists(path) or _relation(path, part) == "ahead" else None


def part_relation(path: str | Path) -> Relation:
    """Return how the `.part` beside the result `path` stands to it, "apart" if one of them cannot be read."""
    try:
        return _relation(path, part_of(path))
    except InputError:
        return "apart"


def set_aside(path: str | Path, *, resumed: bool) -> Path | None:
    """Give the `.part` beside the result `path` a name of its own, if a run that writes `path` would lose sessions with
    it. Returns the new name, which `--append` takes; None if nothing would be lost.

    `resumed`: the run goes on with what is there, else it begins anew. Raises OSError.
    """
    part = part_of(path)
    try:
        if not os.path.isfile(part) or not part.stat().st_size:
            return None
    except FileNotFoundError:
        return None
    if not os.path.exists(path):
        if resumed:
            return None
    elif (relation := part_relation(path)) == "behind" or (resumed and relation == "ahead"):
        return None
    progress = _progress_or_none(part)
    if progress is not None and not progress.sessions and not progress.blocks:
        return None
    aside = _free_name(part, "unreadable" if progress is None else _short(progress.id))
    disk.replace(part, aside)
    return aside


def measured_something(path: Path) -> bool:
    """Return whether a result holds a sample. A file that cannot be read counts: whoever reads it says why."""
    try:
        return bool(_progress(path).blocks)
    except InputError:
        return True


def _relation(path: str | Path, part: Path) -> Relation:
    if not part.stat().st_size:  # a power failure may leave the name alone
        return "behind"
    result, addition = _progress(path), _progress(part)
    before, after = set(result.sessions), set(addition.sessions)
    if result.id != addition.id:
        return "apart" if after or addition.blocks else "behind"
    if before < after or (before == after and addition.blocks > result.blocks):
        return "ahead"
    return "behind" if after <= before else "apart"


def _progress(path: str | Path) -> _Progress:
    """Raises InputError."""
    data, source = read(path)
    with enough_memory(source):
        try:
            return msgspec.json.decode(data, type=_Progress)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError("bad-document", f"{source} cannot be used", why=str(error)) from error


def _progress_or_none(path: Path) -> _Progress | None:
    try:
        return _progress(path)
    except InputError:
        return None


def _short(run_id: str) -> str:
    return "".join(letter for letter in run_id if letter.isascii() and letter.isalnum())[:8] or "unnamed"


def _free_name(part: Path, word: str) -> Path:
    """`r.WORD.json.part` for `r.json.part`, with a number where that is taken."""
    whole = part.name.removesuffix(PART_SUFFIX)
    suffix = next(whole[-len(end) :] for end in reversed(RESULT_SUFFIXES) if whole.lower().endswith(end))
    stem, number = whole.removesuffix(suffix), 1
    while True:
        name = f"{stem}.{word}{f'-{number}' if number > 1 else ''}{suffix}"
        aside = part.with_name(name + PART_SUFFIX)
        if not os.path.lexists(aside) and not os.path.lexists(part.with_name(name)):
            return aside
        number += 1
