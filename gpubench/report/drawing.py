"""A comparison or its noise as text: JSON, or its sections and tables in a format for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.report.formats._document import Document
from gpubench.report.formats._options import RenderOptions

FORMATS = ("table", "plain", "markdown", "json")


def rendered(
    found: msgspec.Struct, documents: Callable[[], Sequence[Document]], format: str, options: RenderOptions, title: str
) -> str:  # fmt: skip
    """`found` as JSON, else its `documents`, in Markdown below `title`: text with one trailing newline.

    `format` is one of FORMATS; its module is imported only when it is asked for.
    """
    if format == "json":
        from gpubench.report.formats._json import json_text

        return json_text(found, options)
    if format == "markdown":
        from gpubench.report.formats import markdown

        return markdown.draw(documents(), options, title)
    if format == "table":
        from gpubench.report.formats import terminal

        return terminal.draw(documents(), options)
    from gpubench.report.formats import plain

    return plain.draw(documents(), options)
