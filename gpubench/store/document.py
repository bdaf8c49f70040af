"""Run <-> bytes: six significant digits, no NaN, older versions upgraded in memory.

Errors name `source`, the file as the user wrote it, so that the message can be acted upon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from gpubench.errors import InputError
from gpubench.model.result import SCHEMA_VERSION, Outcome, Run

SIGNIFICANT_DIGITS = 6
RESULT_NAME = "gpubench-result"
Document = TypeVar("Document", bound=msgspec.Struct)
_WRITTEN_BY = {RESULT_NAME: "run", "gpubench-noise": "noise -o", "gpubench-fleet": "merge"}
_RUN_AGAIN = "run `gpubench run` again; the run that should have written it never saved"

# One pure function per step: MIGRATIONS[v] turns the plain data of version v into that of version v + 1.
MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class _Header(msgspec.Struct):
    """The two fields with which every document of ours starts."""

    name: Any = None
    schema_version: Any = None


def dumps(document: msgspec.Struct) -> bytes:
    """The JSON of a document, one line with its newline: the same bytes for the same document.

    Raises ValueError for NaN and infinity, naming the field: msgspec would write them as null.
    """
    return msgspec.json.encode(_rounded(msgspec.to_builtins(document), "")) + b"\n"


class Encoder:
    """`dumps` for a run that grows and is saved again and again: an outcome that stayed the same object is
    encoded once. A run of 400 cases takes 3 ms instead of 18."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Outcome, msgspec.Raw]] = {}

    def dumps(self, run: Run) -> bytes:
        """The same bytes as `dumps(run)`. Raises ValueError as it does."""
        plain = _rounded(msgspec.to_builtins(msgspec.structs.replace(run, outcomes=[])), "")
        plain["outcomes"] = [self._encoded(outcome) for outcome in run.outcomes]
        return msgspec.json.encode(plain) + b"\n"

    def _encoded(self, outcome: Outcome) -> msgspec.Raw:
        known = self._known.get(outcome.id)
        if known is None or known[0] is not outcome:
            raw = msgspec.Raw(msgspec.json.encode(_rounded(msgspec.to_builtins(outcome), outcome.id)))
            known = self._known[outcome.id] = (outcome, raw)
        return known[1]


def loads(data: bytes, source: str) -> Run:
    """The Run that `data` holds. Raises InputError with what is wrong with it."""
    return checked(loads_as(Run, data, source, name=RESULT_NAME, newest=SCHEMA_VERSION), source)


def checked(run: Run, source: str) -> Run:
    """`run`, if its cases make sense beyond what its type says. Raises InputError."""
    _check_unique(run, source)
    _check_sizes(run, source)
    return run


def loads_as(kind: type[Document], data: bytes, source: str, *, name: str, newest: int) -> Document:
    """The document `name` that `data` holds, of version `newest` or older. Raises InputError."""
    if not data.strip():
        _refuse("empty-file", source, "it is empty", _RUN_AGAIN if name == RESULT_NAME else "", name=name)
    try:
        version = _check_header(msgspec.json.decode(data, type=_Header), source, name, newest)
        if version == newest:
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(upgrade(msgspec.json.decode(data), version), type=kind)
    except msgspec.ValidationError as error:
        _refuse("bad-document", source, f"it is not a valid {name} document: {error}", name=name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            _refuse("truncated-file", source, "it ends in the middle: the JSON is truncated", name=name)
        _refuse("not-json", source, f"it is not JSON: {error}", name=name)


def upgrade(data: dict[str, Any], version: int) -> dict[str, Any]:
    """Plain data of an older version as plain data of the present one."""
    for step in range(version, SCHEMA_VERSION):
        data = {**MIGRATIONS[step](data), "schema_version": step + 1}
    return data


def _check_header(header: _Header, source: str, wanted: str, newest: int) -> int:
    name, version = header.name, header.schema_version
    if name != wanted:
        if isinstance(name, str) and name.startswith("gpubench-"):
            _refuse("wrong-document", source, f"it is a {name} document, not a {wanted} document", name=wanted)
        why = f'it is JSON, but no {wanted} document: "name" is {_show(name)}'
        _refuse("wrong-document", source, why, name=wanted)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        _refuse(
            "bad-document",
            source,
            f'"schema_version" is {_show(version)}, not a whole number from 1 on',
            name=wanted,
        )
    if version > newest:
        _refuse(
            "too-new",
            source,
            f"it has schema version {version}; this gpubench reads up to {newest}",
            "upgrade gpubench: pip install --upgrade gpubench",
        )
    return version


def _check_unique(run: Run, source: str) -> None:
    seen: set[str] = set()
    for outcome in run.outcomes:
        if outcome.id in seen:
            _refuse("bad-document", source, f"the case {_show(outcome.id)} occurs twice")
        seen.add(outcome.id)


def _check_sizes(run: Run, source: str) -> None:
    for outcome in run.outcomes:
        n = outcome.case.params.get("n")
        if n is None or n < 1:
            what = "has no size n" if n is None else f"has the size n = {n}"
            _refuse("bad-document", source, f"the case {_show(outcome.id)} {what}")


def _refuse(code: str, source: str, why: str, hint: str = "", *, name: str = RESULT_NAME) -> NoReturn:
    hint = hint or f"give a file that `gpubench {_WRITTEN_BY[name]}` has written"
    raise InputError(code, f"{source} cannot be used", why=why, hint=hint) from None


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _rounded(value: Any, path: str) -> Any:
    """`value` with every float rounded; `path` is where it stands in the document."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path or 'the document'} is {value}: a result holds finite numbers or null")
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(type(item) is float for item in value):
            return _rounded_samples(value, path)
        return [_rounded(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return value


def _rounded_samples(samples: list[float] | tuple[float, ...], path: str) -> list[float]:
    # Nearly all of a result is lists of samples, and the file is saved after every case.
    if not all(map(math.isfinite, samples)):
        index = next(i for i, sample in enumerate(samples) if not math.isfinite(sample))
        raise ValueError(f"{path}[{index}] is {samples[index]}: a result holds finite numbers or null")
    form = f"%.{SIGNIFICANT_DIGITS}g"
    return [float(form % sample) for sample in samples]
