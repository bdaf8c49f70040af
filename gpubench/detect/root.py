"""All file access of detection, below one root, and the forms in which the kernel writes numbers.

Paths are those of the described machine ("/proc/meminfo"). Only regular files are opened, at most 4 MiB of each; links
never lead out of the root.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from gpubench.detect.records import make_fact, missing
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import NOT_PROBED, Fact, Status

T = TypeVar("T")

MOST_BYTES = 4 << 20
MOST_LINKS = 40
MOST_WORDS = 1024  # characters of a name: a file of more is spoiled
MOST_MEMBERS = 1 << 16  # more CPUs or nodes than any kernel supports: a larger number is a spoiled file
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class FileText(NamedTuple):
    """The stripped text of a file, or None and why."""

    path: str
    text: str | None
    status: Status

    def fact(self, parse: Callable[[str], T | None]) -> Fact[T]:
        """The parsed text; `parse` raises ValueError for a spoiled file and gives None for "no such thing"."""
        if self.text is None:
            return missing(self.status, self.path)
        try:
            value = parse(self.text)
        except (ValueError, LookupError, OverflowError):
            return missing("invalid", self.path)
        return make_fact(value, self.path)


class TouchedFiles(NamedTuple):
    """The record of all that was touched: texts of files, names in folders, targets of links, refused files."""

    files: dict[str, str]
    folders: dict[str, list[str]]
    links: dict[str, str]
    refused: set[str]


class Root:
    """The file system of a machine: "/" is this one, any other folder a recorded one."""

    def __init__(self, base: str = "/", trace: TouchedFiles | None = None) -> None:
        self.base = base
        self.trace = trace or TouchedFiles({}, {}, {}, set())
        self._resolved: dict[str, str | None] = {}
        self._direct = os.path.realpath(base) == "/" and trace is None

    def read(self, path: str) -> FileText:
        """The text of a regular file without NUL bytes and outer white space; never raises."""
        real = self._real(path)
        if real is None:
            return FileText(path, None, "absent")
        try:
            raw = _read_regular(self._host(real))
            status: Status = "invalid" if raw is None else "ok"
        except OSError as error:
            raw, status = None, _status_of(error)
        text = None if raw is None else raw.decode("utf-8", "replace").replace("\0", "").strip()
        # A recording gives the same answer: a refused file is one without rights, a broken one a folder.
        if text is not None:
            self.trace.files[real] = text
        elif status == "permission":
            self.trace.refused.add(real)
        elif status == "invalid":
            self.trace.folders.setdefault(real, [])
        return FileText(path, text, status)

    def fact(self, path: str, parse: Callable[[str], Any]) -> Fact[Any]:
        return self.read(path).fact(parse)

    def facts(
        self, folder: str, files: Mapping[str, tuple[str, Callable[[str], Any]]], *, asleep: bool = False
    ) -> dict[str, Fact[Any]]:
        """Return facts by their names, each of a file in a folder that its parser reads; none is read of an `asleep`
        device."""
        return {
            name: NOT_PROBED if asleep else self.fact(f"{folder}/{file}", parse)
            for name, (file, parse) in files.items()
        }

    def names(self, path: str) -> list[str] | None:
        """Sorted names in a folder, or None if it cannot be listed."""
        real = self._real(path)
        try:
            names = None if real is None else sorted(os.listdir(self._host(real)))
        except OSError:
            return None
        if real is not None and names is not None:
            self.trace.folders[real] = names
        return names

    def names_like(self, path: str, form: str) -> list[str]:
        """The names in a folder that are of this form; none if it cannot be listed."""
        return [name for name in self.names(path) or () if re.fullmatch(form, name)]

    def link(self, path: str) -> str | None:
        """The last name of a link's target, or None if `path` is no link."""
        target = self.target(path)
        return None if target is None else target.rstrip("/").rpartition("/")[2]

    def target(self, path: str) -> str | None:
        """A link's target as it is written, or None if `path` is no link."""
        parent, _, name = path.rpartition("/")
        folder = self._real(parent) if parent else "/"
        return None if folder is None else self._target(f"{folder.rstrip('/')}/{name}")[0]

    def exists(self, path: str) -> bool:
        """Whether anything is there (a broken link is not)."""
        real = self._real(path)
        if real is None or not os.path.lexists(self._host(real)):
            return False
        if os.path.isdir(self._host(real)):
            self.trace.folders.setdefault(real, [])
        else:
            self.trace.files.setdefault(real, "")
        return True

    def _host(self, real: str) -> str:
        return real if self._direct else self.base.rstrip("/") + real

    def _real(self, path: str) -> str | None:
        """`path` without links, below the root; None if a part is missing or links run in a circle."""
        if "\0" in path:
            return None
        if self._direct:
            return path
        if path not in self._resolved:
            self._resolved[path] = self._walk(path)
        return self._resolved[path]

    def _walk(self, path: str) -> str | None:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self._real(parent) if parent else ""
        if folder is None or not name:
            return folder
        budget = MOST_LINKS
        todo, at, there = [name], folder, True
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at, there = at.rpartition("/")[0], True
                continue
            step = f"{at}/{part}"
            # /proc/self is a link to a number that changes: a recording keeps the word instead.
            target, there = (None, True) if step == "/proc/self" else self._target(step)
            if target is None:
                at = step
                continue
            budget -= 1
            if budget < 0:
                return None
            if target.startswith("/"):
                at = ""
            todo += reversed(target.split("/"))
        return at if there else None

    def _target(self, step: str) -> tuple[str | None, bool]:
        """Return where a link leads, and whether there is anything at all."""
        try:
            target = os.readlink(self._host(step))
        except OSError as error:  # there may be something that is no link; opening it tells
            return None, error.errno not in _ABSENT
        self.trace.links[step] = target
        return target, True


def _read_regular(path: str) -> bytes | None:
    """Up to 4 MiB of a regular file; None for a folder, pipe, socket or device. Raises OSError."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        return None
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        parts, room = [], MOST_BYTES
        while room > 0 and (part := os.read(handle, min(room, 1 << 16))):
            parts.append(part)
            room -= len(part)
            if len(part) == about.st_size:  # a file on a disk ends here; those of a kernel lie about their size
                break
        return b"".join(parts)
    finally:
        os.close(handle)


def _status_of(error: OSError) -> Status:
    if error.errno in _ABSENT:
        return "absent"
    return "permission" if error.errno in (errno.EACCES, errno.EPERM) else "invalid"


def matching(form: str, read: Callable[[re.Match[str]], Any] = lambda match: match[0]) -> Callable[[str], Any]:
    """Return the parser of texts of a form, which `read` turns into a value. It raises ValueError for other texts."""

    def parse(text: str) -> Any:
        match = re.fullmatch(form, text)
        if match is None:
            raise ValueError(f"not of the form {form}")
        return read(match)

    return parse


def integer(text: str) -> int:
    """A decimal number, possibly negative. Raises ValueError (also for "1_0" and "+1")."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)


def size(text: str) -> int:
    """A number of bytes, not negative. Raises ValueError."""
    value = integer(text)
    if value < 0:
        raise ValueError("a negative size")
    return value


def positive(text: str) -> int | None:
    """Return the number of bytes; None for 0, which is no answer. Raises ValueError."""
    return size(text) or None


def parse_name(text: str) -> str | None:
    """Printable text; None for an empty file and for a placeholder. Raises ValueError for anything that is no name."""
    if len(text) > MOST_WORDS or not text.replace("\n", "").replace("\t", "").isprintable() or "\ufffd" in text:
        raise ValueError("not text")
    return None if not text or is_placeholder(text) else text


def parse_list(text: str) -> frozenset[int]:
    """Members of "0-3,8", ascending; "" is the empty set. Raises ValueError for anything else."""
    members: set[int] = set()
    before = -1
    for item in text.split(",") if text else ():
        low, dash, high = item.strip().partition("-")
        first = size(low)
        last = size(high) if dash else first
        if not before < first <= last < MOST_MEMBERS:
            raise ValueError(f"not a list of numbers: {text[:40]!r}")
        before = last
        members.update(range(first, last + 1))
    return frozenset(members)


def parse_mask(text: str) -> frozenset[int]:
    """Members of a hexadecimal mask in groups of 32 bits, highest first: "f,00000001". Raises ValueError."""
    head, *groups = text.split(",")
    digits = head.removeprefix("0x") + "".join(group.rjust(8, "0") for group in groups)
    whole = all(group and len(group) <= 8 and group.isascii() and group.isalnum() for group in groups)
    if not whole or not digits.isalnum() or len(digits) * 4 > MOST_MEMBERS:
        raise ValueError(f"not a mask: {text[:40]!r}")
    value = int(digits, 16)
    return frozenset(n for n in range(value.bit_length()) if value >> n & 1)


def list_form(members: Iterable[int]) -> str:
    """The shortest list form, ascending: {0, 1, 2, 8} -> "0-2,8"."""
    runs: list[list[int]] = []
    for n in sorted(set(members)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
