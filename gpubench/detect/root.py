"""All file access of detection, below one root, and the forms in which the kernel writes numbers.

Paths are those of the described machine ("/proc/meminfo"). Only regular files are opened, at most 4 MiB of each; links
never lead out of the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from gpubench.detect.records import known, missing
from gpubench.result.identity import is_placeholder
from gpubench.result.machine import Fact, Status

T = TypeVar("T")

MOST_BYTES = 4 << 20
MOST_LINKS = 40
MOST_WORDS = 1024  # characters of a name: a file of more is spoiled
MOST_MEMBERS = 1 << 16  # more CPUs or nodes than any kernel supports: a larger number is a spoiled file
_DENIED = (errno.EACCES, errno.EPERM)


class FileText(NamedTuple):
    """What a file said: stripped text, or None and why."""

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
        return missing("absent", self.path) if value is None else known(value, self.path)


class TouchedFiles(NamedTuple):
    """What was touched, for a recording: texts of files, names in folders, targets of links, refused files."""

    files: dict[str, str]
    folders: dict[str, list[str]]
    links: dict[str, str]
    refused: set[str]


class Root:
    """The file system of a machine: "/" is this one, any other folder a recorded one."""

    def __init__(self, base: str = "/", trace: TouchedFiles | None = None) -> None:
        self.base = base
        self.trace = trace
        self._resolved: dict[str, str | None] = {}
        self._direct = os.path.realpath(base) == "/" and trace is None

    def read(self, path: str) -> FileText:
        """The text of a regular file without NUL bytes and outer white space; never raises."""
        real, about = self._leaf(path)
        if real is None:
            return FileText(path, None, "absent")
        try:
            raw = _read_regular(self._host(real), about)
        except OSError as error:
            return self._unread(path, real, _status_of(error))
        if raw is None:
            return self._unread(path, real, "invalid")
        text = raw.decode("utf-8", "replace").replace("\0", "").strip()
        if self.trace is not None:
            self.trace.files[real] = text
        return FileText(path, text, "ok")

    def _unread(self, path: str, real: str, status: Status) -> FileText:
        """A recording gives the same answer: a refused file is one without rights, a broken one a folder."""
        if self.trace is not None and status == "permission":
            self.trace.refused.add(real)
        elif self.trace is not None and status == "invalid":
            self.trace.folders.setdefault(real, [])
        return FileText(path, None, status)

    def fact(self, path: str, parse: Callable[[str], Any]) -> Fact[Any]:
        return self.read(path).fact(parse)

    def names(self, path: str) -> list[str] | None:
        """Sorted names in a folder, or None if it cannot be listed."""
        real = self._real(path)
        if real is None:
            return None
        try:
            found = sorted(os.listdir(self._host(real)))
        except OSError:
            return None
        if self.trace is not None:
            self.trace.folders[real] = found
        return found

    def link(self, path: str) -> str | None:
        """The last name of a link's target, or None if `path` is no link."""
        target = self.target(path)
        return None if target is None else target.rstrip("/").rpartition("/")[2]

    def target(self, path: str) -> str | None:
        """A link's target as it is written, or None if `path` is no link."""
        parent, _, name = path.rpartition("/")
        folder = self._real(parent) if parent else "/"
        if folder is None:
            return None
        at = f"{folder.rstrip('/')}/{name}"
        try:
            target = os.readlink(self._host(at))
        except OSError:
            return None
        if self.trace is not None:
            self.trace.links[at] = target
        return target

    def exists(self, path: str) -> bool:
        """Whether anything is there (a broken link is not)."""
        real = self._real(path)
        there = real is not None and os.path.lexists(self._host(real))
        if there and self.trace is not None and real is not None:
            if os.path.isdir(self._host(real)):
                self.trace.folders.setdefault(real, [])
            else:
                self.trace.files.setdefault(real, "")
        return there

    def _host(self, real: str) -> str:
        return real if self._direct else self.base.rstrip("/") + real

    def _leaf(self, path: str) -> tuple[str | None, os.stat_result | None]:
        """As `_real`, for a file that is seldom a link; and what is known about it by then."""
        folder, _, name = path.rpartition("/")
        if self._direct or name in ("", ".", "..") or "\0" in path:
            return self._real(path), None
        parent = self._real(folder) if folder else ""
        if parent is None:
            return None, None
        step = f"{parent.rstrip('/')}/{name}"
        try:
            about = os.lstat(self._host(step))
        except OSError:
            return step, None  # opening it tells why
        return (self._real(path), None) if stat.S_ISLNK(about.st_mode) else (step, about)

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
            target, there = self._target(step)
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
        """Where a link leads, and whether there is anything at all."""
        # /proc/self is a link to a number that changes: a recording keeps the word instead.
        if step == "/proc/self":
            return None, os.path.lexists(self._host(step))
        try:
            target = os.readlink(self._host(step))
        except OSError as error:
            return None, error.errno == errno.EINVAL  # it is there, and no link
        if self.trace is not None:
            self.trace.links[step] = target
        return target, True


def _read_regular(path: str, about: os.stat_result | None = None) -> bytes | None:
    """Up to 4 MiB of a regular file; None for a folder, pipe, socket or device. Raises OSError."""
    found = about or os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        return None
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        parts, left = [], MOST_BYTES
        while left > 0 and (part := os.read(handle, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
            if len(part) == found.st_size:  # a file on a disk ends here; those of a kernel lie about their size
                break
        return b"".join(parts)
    finally:
        os.close(handle)


def _status_of(error: OSError) -> Status:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "absent"
    return "permission" if error.errno in _DENIED else "invalid"


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
    """As `size`, with None for 0, which is no answer. Raises ValueError."""
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
        first = _member(low)
        last = _member(high) if dash else first
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


def _member(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"not a number: {text[:20]!r}")
    return int(text)
