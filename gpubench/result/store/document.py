"""The conversion between a Run and bytes (six significant digits, no NaN, older versions upgraded in memory),
and the lines of a `.part` file.

Errors name `source`, the file as the user wrote it, so that the user can act on the message.

A `.part` file holds a run that is under way. Its lines, put together, are the result so far. The first line
names the format. Each other line does one of two things. It states a new value that replaces an earlier one:
the head (the document without sessions and outcomes), a session by its index, or an outcome by its id. Or it
says that an outcome is forgotten. If the process is killed or the power fails, lines at the end may be
damaged, so readers drop them.

Every file is checked against bounds, so that it is reported or refused within seconds. Every real run is within
the bounds, and a report of a file within them takes at most 10 s and 1 GiB. The text is checked before it is
decoded, because decoding alone may take all memory. A result is checked again after it is decoded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gpubench.base import disk, group_by
from gpubench.base.errors import InputError
from gpubench.base.installation import upgrade_command
from gpubench.base.messages import ERRORS
from gpubench.base.streams import cut, encode_json, inert_json
from gpubench.result.case import rename_old_devices
from gpubench.result.run import SCHEMA_VERSION, Measurement, Run

MIB = 2**20
MAX_BYTES = 256 * MIB
MAX_TOML_BYTES = MIB // 2  # TOML is written by hand, and its decoder takes seconds for each MiB
MAX_VALUES = 10_000_000
MAX_STRINGS = 2_000_000
MAX_CONTAINERS = 2_000_000
MAX_DEPTH = 50
MAX_STRING_BYTES = 256 * 2**10
MAX_TEXT_BYTES = 24 * MIB
MAX_INTEGER = 2**63 - 1
MAX_LARGE_INTEGERS = 100_000  # integers with as many digits as MAX_INTEGER, each of which is checked
MAX_EXPONENT = 99  # numbers lie within 1e-99 to 1e99, so that products and quotients of two are finite

MAX_SAMPLES = 2_200_000
MAX_BLOCKS = 100_000
MAX_CASES = 10_000
MAX_SESSIONS = 2_000
MAX_DEVICES = 128
MAX_WARNINGS = 10_000
MAX_CLAIMS = 200
# A report compares each case with every session, worker, peak, device and warning.
MAX_LOOKUPS = 5_000_000

# The shape of a JSON text without strings: every digit becomes 0, and every character that may stand before a
# number becomes a comma.
_SHAPE = bytes.maketrans(b"123456789E:[ \n\r\t+-", b"000000000e,,,,,,,,")
# A TOML key inside too many tables, with a dot for each: the decoder's time and memory grow with the square of
# their number.
_DOTTED = re.compile(rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % MAX_DEPTH)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_EMPTY = re.compile(rb"\[\]|\{\}")
_EXPONENT = re.compile(rb"[eE][+-]?0*([1-9][0-9]{2,})")
_MOST_DIGITS = len(str(MAX_INTEGER))
_LONG_INTEGER = re.compile(rb",0{%d}" % _MOST_DIGITS)


@contextlib.contextmanager
def enough_memory(source: str) -> Iterator[None]:
    """Raise an InputError that names the memory limit if reading `source` in the context runs out of memory."""
    try:
        yield
    except MemoryError:
        refused = OSError(errno.ENOMEM, "the memory that this process may take does not hold it")
        raise InputError(
            "unreadable", f"{source} cannot be read", why=disk.reason(refused),
            hint=disk.remedy(refused, "name a smaller file")
        ) from None  # fmt: skip


def require_json(data: bytes, source: str) -> None:
    """Raise InputError if the JSON text `data` exceeds a bound of this module. `source` is the name of the file
    in the error."""
    require(source, "values", data.count(b",") + data.count(b"[") + data.count(b"{"), MAX_VALUES)
    if b"\\" in data:
        data = data.replace(rb"\\", b"__").replace(rb"\"", b"__")
    require(source, "texts", data.count(b'"') // 2, MAX_STRINGS)
    parts = data.split(b'"')
    require(source, "bytes in one text", max(map(len, parts[1::2]), default=0), MAX_STRING_BYTES)
    require(source, "bytes of text", sum(map(len, parts[1::2])), MAX_TEXT_BYTES)
    rest = b"".join(parts[::2])
    del parts, data
    _require_depth(rest.translate(None, _NO_BRACKETS), source)
    _require_numbers(rest, source)


def require_runs(runs: Iterable[Run], source: str) -> None:
    """Raise InputError if the runs of one document together are too large for a report within seconds."""
    runs = list(runs)
    blocks = [block for run in runs for measurement in run.measurements for block in measurement.blocks]
    sessions = [session for run in runs for session in run.sessions]
    cases = sum(len(run.outcomes) for run in runs)
    devices = max((len(run.devices) for run in runs), default=0)
    warnings = sum(len(run.warnings) for run in runs)
    beside = len(sessions) + sum(len(session.workers) + len(session.peaks) for session in sessions) + warnings
    require(source, "cases", cases, MAX_CASES)
    require(source, "sessions", len(sessions), MAX_SESSIONS)
    require(source, "devices", devices, MAX_DEVICES)
    require(source, "warnings", warnings, MAX_WARNINGS)
    require(source, "blocks", len(blocks), MAX_BLOCKS)
    require(source, "samples", sum(len(block.wall_s) for block in blocks), MAX_SAMPLES)
    require(source, "pairs of a case with a session, worker, peak or warning", cases * beside, MAX_LOOKUPS)


def toml(data: bytes) -> dict[str, Any]:
    """Return the tables of a TOML text in UTF-8. Raises ValueError if the text is invalid, too large or nested
    too deeply."""
    if len(data) > MAX_TOML_BYTES:
        raise ValueError(f"it holds {len(data):,} bytes, and at most {MAX_TOML_BYTES:,} are read")
    import tomllib

    if _DOTTED.search(data) is None:
        try:
            return tomllib.loads(data.decode())
        except RecursionError:
            pass
    raise ValueError(f"its tables and lists stand more than {MAX_DEPTH} deep inside each other")


def _require_depth(brackets: bytes, source: str) -> None:
    """Raise InputError if the JSON text with these `brackets` has too many or too deep lists and objects."""
    require(source, "lists and objects", len(brackets) // 2, MAX_CONTAINERS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = _EMPTY.sub(b"", brackets)  # the innermost pairs
    if b"[]" in brackets or b"{}" in brackets:
        _refuse_json(source, f"its lists and objects stand more than {MAX_DEPTH} deep inside each other")


def _require_numbers(text: bytes, source: str) -> None:
    """Raise InputError for a number out of bounds in the JSON `text`, whose strings have been removed."""
    # Only numbers that look suspicious in this shape are examined, which is fast.
    shape = text.translate(_SHAPE)
    for i, match in enumerate(_LONG_INTEGER.finditer(shape)):
        require(source, f"integers of {_MOST_DIGITS} digits", i, MAX_LARGE_INTEGERS)
        digits = text[match.start() + 1 : match.end() + 1]  # one more than the largest has
        if digits.isdigit() or int(digits[:-1]) > MAX_INTEGER:
            _refuse_json(source, f"it holds a number above {MAX_INTEGER}, the largest integer")
    if b"e000" in shape or b"e,000" in shape:
        exponent = _EXPONENT.search(text)
        if exponent is not None:
            end = exponent[0][:20].decode()
            _refuse_json(
                source, f"it holds a number outside of 1e-{MAX_EXPONENT} to 1e{MAX_EXPONENT}: one ends in {end}"
            )
    if b"." + b"0" * MAX_EXPONENT in text:
        _refuse_json(source, f"it holds a number below 1e-{MAX_EXPONENT}")


def require(source: str, what: str, count: int, most: int) -> None:
    """Raise InputError if `count` exceeds `most`, the largest number of `what` that is read."""
    if count > most:
        _refuse_json(source, f"it holds {count:,} {what}, and at most {most:,} are read")


def _refuse_json(source: str, why: str) -> NoReturn:
    raise InputError("too-large", f"{source} cannot be used", why=why)


SIGNIFICANT_DIGITS = 6
RESULT_NAME = "gpubench-result"
Document = TypeVar("Document", bound=msgspec.Struct)
_WRITTEN_BY = {RESULT_NAME: "run", "gpubench-noise": "noise -o", "gpubench-fleet": "merge"}


class Header(msgspec.Struct):
    """The two fields with which every gpubench document starts."""

    name: Any = None  # the name of the document's format
    schema_version: Any = None  # the version of the document's format


def dumps(document: msgspec.Struct) -> bytes:
    """Return a document as one line of JSON with a newline. The same document gives the same bytes. Floats have
    SIGNIFICANT_DIGITS digits. Raises ValueError, which names the field, for NaN and infinity."""
    return inert_json(encode(document)) + b"\n"


def encode(value: msgspec.Struct, path: str = "") -> bytes:
    """Return the JSON of a part of a document, with rounded floats. `path` is the part's place, for error
    messages. Raises ValueError for NaN and infinity."""
    return encode_json(_round(msgspec.to_builtins(value), path))


def loads(data: bytes, source: str) -> Run:
    """Return the Run in the JSON `data`. `source` is the name of its file in errors. Raises InputError if the
    data is no valid result."""
    return check_run(loads_as(Run, data, source, name=RESULT_NAME, newest=SCHEMA_VERSION), source)


def check_run(run: Run, source: str) -> Run:
    """Return `run` unchanged. Raises InputError if a case is invalid, or if the run exceeds a bound of this
    module."""
    require_runs([run], source)
    for case_id, fault in _faults(run):
        _refuse("bad-document", source, f"the case {_show(case_id)} {fault}")
    return run


def loads_as(kind: type[Document], data: bytes, source: str, *, name: str, newest: int) -> Document:
    """Return the document in the JSON `data` as a `kind`, upgraded from versions older than `newest`. `name` is
    the name of its format, and `source` that of its file in errors. Raises InputError if the data is no such
    document, too large, or of a version that is not read."""
    if not (begin := data.lstrip()[:1]):
        again = ERRORS["empty-file"].remedy if name == RESULT_NAME else ""
        _refuse("empty-file", source, "it is empty", again, name=name)
    if begin in (b"{", b"["):  # anything else is no document, whatever its numbers look like
        require_json(data, source)
    try:
        version = _check_header(msgspec.json.decode(data, type=Header), source, name, newest)
        if version == newest:
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(upgrade(msgspec.json.decode(data), name), type=kind)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        _refuse("bad-document", source, f"it is not a valid {name} document: {error}", name=name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            _refuse("truncated-file", source, "it ends in the middle: the JSON is truncated", name=name)
        _refuse("not-json", source, f"it is not JSON: {error}", name=name)


def _check_header(header: Header, source: str, expected: str, newest: int) -> int:
    name, version = header.name, header.schema_version
    if name != expected:
        if isinstance(name, str) and name.startswith("gpubench-"):
            _refuse(
                "wrong-document", source, f"it is a {name} document, not a {expected} document", name=expected
            )
        says = 'it has no "name"' if name is None else f'"name" is {_show(name)}'
        why = f"it is JSON, but no {expected} document: {says}"
        _refuse("wrong-document", source, why, name=expected)
    if type(version) is not int or version < 1:  # a bool is no number here
        _refuse(
            "bad-document", source, f'"schema_version" is {_show(version)}, not a whole number from 1 on',
            name=expected
        )  # fmt: skip
    oldest = min(UPGRADES.get(expected, (newest,)))
    if version < oldest:
        _refuse(
            "too-old", source,
            f"it has schema version {version}, whose numbers mean something else; this gpubench reads from {oldest} on",
            f"measure again: gpubench {_WRITTEN_BY.get(expected, 'run')}"
        )  # fmt: skip
    if version > newest:
        _refuse(
            "too-new", source, f"it has schema version {version}; this gpubench reads up to {newest}",
            f"upgrade gpubench: {upgrade_command()}"
        )  # fmt: skip
    return version


def _faults(run: Run) -> Iterator[tuple[str, str]]:
    """Yield a pair (case id, description of the fault) for each fault of a case."""
    seen: set[str] = set()
    for outcome in run.outcomes:
        n = outcome.case.params.get("n")
        if outcome.id in seen:
            yield outcome.id, "occurs twice"
        if n is None or n < 1:
            yield outcome.id, "has no size n" if n is None else f"has the size n = {n}"
        seen.add(outcome.id)
        if not isinstance(outcome, Measurement):
            continue
        # Each stage of a workload has its times, which stand in lists beside each other.
        for timed in outcome.stages:
            if timed.wall_s and not _fit(timed.stages, timed.chain_s, timed.alone_s, empty=()):
                yield outcome.id, "has other stages than times of stages"
            if timed.wall_s and not (timed.span_s and timed.empty_s):
                yield outcome.id, "has stages without a span"
        for assignment_times in outcome.assignment_times:
            whole = assignment_times.cpu_whole_s and assignment_times.gpu_whole_s and assignment_times.enter_s
            if not whole or not _fit(
                assignment_times.stages,
                assignment_times.cpu_s,
                assignment_times.gpu_s,
                empty=assignment_times.gpu_s,
            ):
                yield outcome.id, "has other stages than costs of stages"


def _fit(stages: Sequence[str], *times: Sequence[Sequence[float]], empty: Sequence[Sequence[float]]) -> bool:
    """Return whether each of `times` has one list for each stage. Only the lists in `empty` may be empty."""
    return all(len(values) == len(stages) and (values is empty or all(values)) for values in times)


def _refuse(code: str, source: str, why: str, hint: str = "", *, name: str = RESULT_NAME) -> NoReturn:
    hint = hint or f"give a file that `gpubench {_WRITTEN_BY.get(name, 'run')}` has written, not a report"
    raise InputError(code, f"{source} cannot be used", why=why, hint=hint) from None


def _show(value: Any) -> str:
    return cut(repr(value), 80)


def _round(value: Any, path: str) -> Any:
    """Return `value` with floats rounded, or raise ValueError, which names `path`, for NaN and infinity."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path or 'the document'} is {value}: a result holds finite numbers or null")
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _round(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(type(item) is float for item in value):
            return _round_samples(value, path)
        return [_round(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return value


def _round_samples(samples: list[float] | tuple[float, ...], path: str) -> list[float]:
    # Nearly all of a result is lists of samples.
    if not all(map(math.isfinite, samples)):
        index = next(i for i, sample in enumerate(samples) if not math.isfinite(sample))
        raise ValueError(f"{path}[{index}] is {samples[index]}: a result holds finite numbers or null")
    form = f"%.{SIGNIFICANT_DIGITS}g"
    return [float(form % sample) for sample in samples]


def schema(name: str, kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of `kind`, a struct or a union of structs, under the title `name`. The comment
    above or after a field becomes its description in the schema."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    document = msgspec.json.schema(kind)
    structs = group_by(_structs(msgspec.Struct), lambda struct: struct.__name__)
    for key, definition in document["$defs"].items():
        properties = definition.get("properties", {})
        for struct in structs.get(key.partition("_")[0], ()):  # Fact_str_ is Fact[str]
            notes: dict[str, str] = {}
            for base in [base for base in reversed(struct.__mro__) if getattr(base, "__struct_fields__", ())]:
                notes |= _field_notes(base.__module__).get(base.__name__, {})
            for field, encoded in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
                if field in notes and encoded in properties:
                    properties[encoded]["description"] = notes[field]
    return {"$schema": dialect, "title": name, **document}


@functools.cache
def _field_notes(module: str) -> dict[str, dict[str, str]]:
    """Return the comments above and after the fields in a module, by class and field."""
    import inspect  # no other command needs it

    try:  # once a module: the text of each class by itself costs a syntax tree of the whole file
        text = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return {}
    return {
        match[1]: {
            name: note
            for above, name, after in re.findall(r"(?m)^((?:    # .+\n)*)    (\w+): (?:.*  # (.+))?", match[0])
            if (note := " ".join([*above.replace("    # ", "").splitlines(), after]).strip())
        }
        for match in re.finditer(r"(?m)^class (\w+).*\n(?:(?:[ \t)#].*)?\n)*", text)
    }


def _structs(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for struct in kind.__subclasses__():
        yield struct
        yield from _structs(struct)


PART_SUFFIX = ".part"
PART_NAME, PART_VERSION = "gpubench-part", 1
FIRST_LINE = msgspec.json.encode({"name": PART_NAME, "schema_version": PART_VERSION}) + b"\n"
_BEGIN = FIRST_LINE[: FIRST_LINE.index(b",")]


class PartLine(msgspec.Struct, omit_defaults=True):
    """One line of a `.part` file: a head, a session, an outcome, or the id of a forgotten outcome."""

    head: Raw | UnsetType = UNSET  # the document without sessions and outcomes
    index: int | UnsetType = UNSET  # the index of `session`
    session: Raw | UnsetType = UNSET  # a session, which replaces an earlier one with the same index
    id: str | UnsetType = UNSET  # the id of `outcome`
    # an outcome, which replaces an earlier one with the same id; its lists extend the kept lists
    outcome: Raw | UnsetType = UNSET
    blocks: int = 0  # the number of blocks kept from the earlier outcome; those of `outcome` follow
    parts: int = 0  # the number of parts kept from the earlier outcome; those of `outcome` follow
    forgotten: str | UnsetType = UNSET  # the id of an outcome that is removed


def part_of(path: str | Path) -> Path:
    """Return the path of the `.part` file beside the result `path`, or beside its target if `path` is a
    link."""
    target = Path(os.path.realpath(path))
    return target.with_name(target.name + PART_SUFFIX)


def is_part(data: bytes) -> bool:
    """Return whether `data` is a `.part` file of gpubench. The beginning of the file is enough."""
    return data.startswith(_BEGIN)


def join_lines(data: bytes, source: str) -> bytes:
    """Return the result so far, as JSON, from the lines of a `.part` file, without damaged lines at its end.
    Raises InputError if a readable line follows a damaged one, no line has a head, or the blocks are too
    many."""
    first, *lines = data.split(b"\n")
    loads_as(Header, first, source, name=PART_NAME, newest=PART_VERSION)
    try:
        return _assemble(_read_lines(lines[:-1], source), source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        _refuse_part(source, str(error))


def _assemble(lines: Iterable[PartLine], source: str) -> bytes:
    head: Raw | None = None
    sessions: dict[int, Raw] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    blocks = 0
    for line in lines:
        if line.head is not UNSET:
            head = line.head
        if line.session is not UNSET and line.index is not UNSET:
            sessions[line.index] = line.session
        if line.outcome is not UNSET and line.id is not UNSET:
            standing = outcomes.get(line.id, {})
            blocks -= len(standing.get("blocks", ()))
            outcomes[line.id] = _grow(standing, line, source)
            blocks += len(outcomes[line.id].get("blocks", ()))
            require(source, "blocks", blocks, MAX_BLOCKS)
        if line.forgotten is not UNSET:
            blocks -= len(outcomes.pop(line.forgotten, {}).get("blocks", ()))
    if head is None:
        _refuse_part(source, "the run ended before it had written anything")
    document: dict[str, object] = dict(msgspec.json.decode(head, type=dict[str, Raw]))
    document["sessions"] = [sessions[index] for index in sorted(sessions)]
    document["outcomes"] = list(outcomes.values())
    return msgspec.json.encode(document)


def _grow(before: dict[str, Any], line: PartLine, source: str) -> dict[str, Any]:
    """Return the outcome of `line` as a mapping from field to JSON, with the kept items of `before`."""
    fields: dict[str, Any] = msgspec.json.decode(line.outcome, type=dict[str, Raw])  # type: ignore[arg-type]
    for name, standing in (("blocks", line.blocks), ("parts", line.parts)):
        if name not in fields:
            continue
        items = before.get(name, [])
        if not 0 <= standing <= len(items):
            _refuse_part(source, f"a line builds on {standing} {name}, and {len(items)} are there")
        del items[standing:]  # in place: copies would cost quadratic time over many lines
        items += msgspec.json.decode(fields[name], type=list[Raw])
        fields[name] = items
    return fields


def _read_lines(lines: Iterable[bytes], source: str) -> Iterable[PartLine]:
    """Yield the lines before the first damaged one, as a power failure damages the end of a file."""
    spoiled = None
    for number, text in enumerate(lines, 2):
        try:
            if not text.isascii():
                text.decode()  # the decoder does not check the text of a Raw field
            line = msgspec.json.decode(text, type=PartLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            spoiled = spoiled or number
            continue
        if spoiled is not None:
            _refuse_part(source, f"line {spoiled} is spoiled, and lines that can be read follow it")
        yield line


def _refuse_part(source: str, why: str) -> NoReturn:
    raise InputError("bad-part", f"{source} cannot be used", why=why)


# ---------------------------------------------------------------- older versions

Plain = dict[str, Any]
_PHASES = ("main", "sweep")  # phases of blocks since version 3


def result_3(data: Plain) -> Plain:
    """Upgrade a result to version 3. The blocks of a search are removed, and cases that have no other blocks.
    Settings without `protocol` get protocol 1."""
    outcomes = [_without_search(outcome) for outcome in data.get("outcomes", [])]
    settings = {"protocol": 1, **data.get("settings", {})}
    return {**data, "outcomes": [outcome for outcome in outcomes if outcome is not None], "settings": settings}


def _without_search(outcome: Plain) -> Plain | None:
    blocks = outcome.get("blocks", [])
    planned = [block for block in blocks if block.get("phase", "main") in _PHASES]
    if len(planned) == len(blocks):
        return outcome
    return {**outcome, "blocks": planned} if planned else None


# Fields whose names changed with version 4.
_RENAMED = {
    "ceilings": "peaks", "twins": "identical_gpus", "form": "implementation", "forms": "implementations",
    "fraction": "gpu_share", "placement": "assignment", "placings": "assignment_times"
}  # fmt: skip
_RENAMED_CODES = {"placement-mismatch": "assignment-mismatch"}
# Fields whose content is not renamed, because users and other programs name it.
_FREE = ("machine", "environment", "label", "tags", "argv", "params", "sizes")


def result_4(data: Plain) -> Plain:
    """Upgrade a result to version 4: rename fields and devices."""
    return {**_rename(data), "machine": _machine(data["machine"])}


def _rename(value: Any) -> Any:
    if isinstance(value, str):
        return _RENAMED_CODES.get(value) or rename_old_devices(value)
    if isinstance(value, dict):
        return {
            _RENAMED.get(key) or rename_old_devices(key): item if key in _FREE else _rename(item)
            for key, item in value.items()
        }
    if isinstance(value, list) and value and not isinstance(value[0], int | float):  # samples have no names
        return [_rename(item) for item in value]
    return value


def _machine(data: Plain) -> Plain:
    """Return the machine of a result, with the evidence of its recommendation renamed."""
    advice = data.get("recommendation") or {}
    if not advice.get("measured"):
        return data
    evidence = {"gpu_share" if key == "split" else key: value for key, value in advice["measured"].items()}
    return {**data, "recommendation": {**advice, "measured": _rename(evidence)}}


def fleet_nodes(data: Plain) -> Plain:
    """Upgrade a fleet document by upgrading the results of its nodes."""
    nodes = [
        {**node, "result": upgrade(node["result"], RESULT_NAME)} if node.get("result") else node
        for node in data.get("nodes", [])
    ]
    return {**data, "nodes": nodes}


# For each name of a document: the functions that upgrade plain data of version v (the key) to version v + 1.
UPGRADES: dict[str, Mapping[int, Callable[[Plain], Plain]]] = {
    RESULT_NAME: {2: result_3, 3: result_4},
    "gpubench-fleet": {2: fleet_nodes, 3: fleet_nodes},
}


def upgrade(data: Plain, name: str) -> Plain:
    """Return plain data of the document `name` in its newest version. Raises KeyError, TypeError or
    AttributeError if the data does not have the shape of a readable version."""
    steps = UPGRADES[name]
    version = data["schema_version"]
    if version < min(steps):
        raise TypeError(f"a {name} in it has schema version {version}, which is no longer read")
    while version in steps:
        data = {**steps[version](data), "schema_version": version + 1}
        version += 1
    return data
