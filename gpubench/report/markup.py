"""Elements of a page or a picture. Foreign text enters as text nodes and attribute values only, and is escaped on the
way out."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, tostring

from gpubench.base.escaping import visible

Content = Element | str | None


def element(tag: str, attributes: Mapping[str, str] | None = None, *content: Content) -> Element:
    """An element with its content in order; None is left out. Of text only what shows is kept."""
    made = Element(tag, {name: visible(value) for name, value in (attributes or {}).items()})
    for part in content:
        if isinstance(part, str):
            _append(made, visible(part))
        elif part is not None:
            made.append(part)
    return made


def verbatim(tag: str, attributes: Mapping[str, str], text: str) -> Element:
    """A script or a style, whose text no browser unescapes. Raises ValueError if it could end its own element."""
    if f"</{tag}" in text.lower() or "<!--" in text:
        raise ValueError(f"the text would end or change its {tag} element")
    made = Element(tag, dict(attributes))
    made.text = text
    return made


def markup(root: Element) -> str:
    """The document as HTML."""
    return "<!DOCTYPE html>\n" + fragment(root) + "\n"


def fragment(root: Element, *, xml: bool = False) -> str:
    """A part of a page; `xml`: a file of its own, such as an SVG."""
    text: str = tostring(root, encoding="unicode", method="xml" if xml else "html")
    return text


def _append(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
