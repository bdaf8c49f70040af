"""What travels inside the page: compressed, as base64, so that nothing in it can be taken for markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
from xml.etree.ElementTree import Element

from gpubench.report.formats._html.elements import verbatim


def block(name: str, data: bytes) -> Element:
    """A script element that no browser runs; the page's script reads it by its id."""
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode()  # without a time: the same bytes again
    return verbatim("script", {"type": "text/plain", "id": name}, packed)


def digest(text: str) -> str:
    """A source for the page's policy: the one script text that it allows."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
