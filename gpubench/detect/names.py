"""Names of PCI devices from pci.ids: ours, or a newer one of the described machine. Never used to decide.

One id covers several products, so such a name is of a family. It is loaded for a GPU that no driver names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from gpubench.detect.root import Root

TABLE = Path(__file__).with_name("data") / "pci.ids.z"
PLACES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_DATE = re.compile(r"^#\s*Date:\s*(\d{4}-\d{2}-\d{2})", re.M)
_HEAD = 4096  # the date stands in the first lines
_LINE = re.compile(r"([0-9a-f]{4})  (\S.*)")


class Book(NamedTuple):
    """One file of names: what it calls itself, its date ("2026-10-24") and its text."""

    source: str
    date: str
    text: str


class Names:
    """Names by vendor and device id, for the machine below `root`; without one, from our table alone."""

    def __init__(self, root: Root | None = None) -> None:
        self.root = root
        self._books: list[Book] | None = None

    def __call__(self, vendor: int, device: int) -> tuple[str, str] | None:
        """The name and where it stands, or None."""
        if self._books is None:
            self._books = books(self.root)
        for book in self._books:
            name = _shipped(book.text, vendor, device) if book.source.startswith("pci.ids") else (
                devices(book.text, vendor).get(device))  # fmt: skip
            if name is not None:
                return name, book.source
        return None


def books(root: Root | None) -> list[Book]:
    """The machine's own files that are newer than our table, newest first; then our table."""
    own = table()
    newer = []
    for path in PLACES if root is not None else ():
        text = root.read(path).text if root is not None else None
        if text is not None and (dated := date(text)) is not None and dated > own.date:
            newer.append(Book(path, dated, text))
    return [*sorted(newer, key=lambda book: book.date, reverse=True), own]


def table() -> Book:
    """The names that gpubench ships."""
    try:
        text = zlib.decompress(TABLE.read_bytes()).decode()
        day = text[2 : text.index("\n")]
    except (OSError, ValueError, zlib.error):  # a spoiled installation costs names only
        return Book("pci.ids", "", "")
    return Book(f"pci.ids of {day}", day, text)


def date(text: str) -> str | None:
    """The day of a pci.ids."""
    found = _DATE.search(text[:_HEAD])
    return found[1] if found else None


def devices(text: str, vendor: int) -> dict[int, str]:
    """Names of a vendor's devices by id. Subsystems, comments and what cannot be read are left out."""
    start = re.search(rf"^{vendor:04x}  ", text, re.M)
    found: dict[int, str] = {}
    for line in text[start.start() :].splitlines()[1:] if start else ():
        if not line.startswith(("\t", "#")) and line:
            break
        entry = _LINE.fullmatch(line[1:].rstrip()) if line[1:2] != "\t" else None
        if entry and entry[2].isprintable():
            found.setdefault(int(entry[1], 16), entry[2])
    return found


def excerpt(text: str, wanted: Collection[tuple[int, int]]) -> str:
    """A pci.ids with nothing but its date and the names of `wanted` devices, for a recording."""
    lines = [f"# Date: {date(text)}"] if date(text) else []
    for vendor in sorted({vendor for vendor, _ in wanted}):
        names = devices(text, vendor)
        own = sorted(device for maker, device in wanted if maker == vendor and device in names)
        lines += [f"{vendor:04x}  -", *(f"\t{device:04x}  {names[device]}" for device in own)] if own else []
    return "\n".join(lines)


def _shipped(text: str, vendor: int, device: int) -> str | None:
    key = f"\n{vendor:04x}{device:04x}"
    start = text.find(key)
    return None if start < 0 else text[start + len(key) : text.index("\n", start + 1)]
