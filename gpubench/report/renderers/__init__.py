"""The formats for people (lines, Markdown, HTML), one file each; here a comparison or its noise as text or JSON.

They draw what sections hold; the command line, the Python interface and wings name a format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpubench.report.layout import RenderOptions, TextDocument

DOCUMENT_FORMATS = ("table", "plain", "markdown", "html", "json")


def render_documents(
    content: msgspec.Struct, documents: Callable[[], Sequence[TextDocument]], format: str, options: RenderOptions,
    title: str,
) -> str:  # fmt: skip
    """Return `content` as JSON, else its `documents`, in Markdown and HTML below `title`: text with one trailing
    newline.

    `format` is one of DOCUMENT_FORMATS; its module is imported only when it is asked for.
    """
    if format == "json":
        from gpubench.report.layout import json_text

        return json_text(content, options)
    if format == "html":
        from gpubench.report.renderers import html

        return html.draw(documents(), title)
    if format == "markdown":
        from gpubench.report.renderers import markdown

        return markdown.draw(documents(), options, title)
    from gpubench.report.renderers import text

    return text.draw(documents(), options, plain=format == "plain")
