"""The map on a page: lanes in a grid that follows the page's width, and a switch for what else it can show."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpubench.analysis.analyse import Analysis
from gpubench.analysis.ratio_map import RatioMap, ratio_map
from gpubench.report.markup import element, fragment
from gpubench.report.sections.map import AXIS, MEANING, TITLE, MapPanel, MapView, device_names, map_view
from gpubench.report.sections.map_svg import axis_svg, gains, lane_svg, scale_svg, strip_height
from gpubench.report.wording import situation_text

ATTRIBUTE = "data-map"


class MapSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """What the page's script puts in place of the first view: by the number of the devices and of the situations."""

    views: dict[str, MapSlot]


class MapSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One view as text: its title and its panels."""

    title: str
    panels: str


class PageMap(msgspec.Struct, frozen=True, kw_only=True):
    """A figure for the page, and what its switch needs; None where there is nothing to choose."""

    figure: Element
    switch: MapSwitch | None


def page_map(analysis: Analysis, prefix: str) -> PageMap | None:
    """The map of one run; None where no GPU was timed beside a CPU."""
    found = ratio_map(analysis)
    if not found.lanes:
        return None
    devices = device_choices(found)
    situations = situation_choices(found)
    views = {
        f"{i}-{j}": map_view(analysis, found, ours, theirs)
        for (i, ours), (j, theirs) in itertools.product(enumerate(devices), enumerate(situations))
    }
    names = dict(zip(found.devices, device_names(found.devices), strict=True))
    fields = [
        _select(f"{prefix}map-devices", "GPU", [" and ".join(names[one] for one in ours) for ours in devices]),
        _select(f"{prefix}map-situations", "Situation", [_situations_text(one) for one in situations]),
    ]
    label = f"What the map of {analysis.run.started_at} shows"
    choice = element(
        "form", {"class": "switch", "hidden": "hidden", "aria-label": label},
        *(field for field in fields if field is not None),
    )  # fmt: skip
    several = len(views) > 1
    figure = map_figure(views["0-0"], prefix, choice if several else None)
    slots = {
        key: MapSlot(
            title=view.title, panels="".join(fragment(part) for part in _panels(view, f"{prefix}m{key}-"))
        )
        for key, view in views.items()
    }
    return PageMap(figure=figure, switch=MapSwitch(views=slots) if several else None)


def device_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The GPUs to begin with, each alone, and as many together as a lane has room for."""
    together = found.devices[: len(found.devices) if len(found.devices) <= 3 else 0]
    choices = [found.shown, *((device,) for device in found.devices), together]
    return [choice for choice in dict.fromkeys(choices) if choice]


def situation_choices(found: RatioMap) -> list[tuple[str, ...]]:
    """The two situations to begin with, then the others, two at a time."""
    others = found.others
    return [found.situations, *(others[i : i + 2] for i in range(0, len(others), 2))]


def _situations_text(situations: Sequence[str]) -> str:
    return "; ".join(situation_text(one) for one in situations)


def _select(name: str, label: str, texts: Sequence[str]) -> Element | None:
    if len(texts) < 2:
        return None
    options = [
        element("option", {"value": str(i)} | ({"selected": "selected"} if not i else {}), text)
        for i, text in enumerate(texts)
    ]
    return element(
        "div", {"class": "field"}, element("label", {"for": name}, label),
        element("select", {"id": name, "autocomplete": "off"}, *options),
    )  # fmt: skip


def map_figure(view: MapView, prefix: str, choice: Element | None = None) -> Element:
    """The picture with its title and its legend. To a screen reader it is one image; the table below says the
    rest."""
    name = f"{prefix}map"
    title = element("p", {"class": "map-title"}, view.title)
    origin = [element("p", {"class": "quiet"}, line) for line in view.origin]
    head = element("div", {"class": "map-head"}, element("div", {}, title, *origin), choice)
    panels = element("div", {"class": "panels", "aria-hidden": "true"}, *_panels(view, f"{name}-"))
    picture = element(
        "div", {"role": "img", "aria-label": TITLE, "aria-describedby": f"{name}-caption"}, panels
    )
    key = element("div", {"class": "map-key", "aria-hidden": "true"}, scale_svg(f"{name}-scale"))
    caption = element("figcaption", {"id": f"{name}-caption"}, MEANING)
    return element(
        "figure",
        {"class": "map", "id": name, ATTRIBUTE: prefix},
        head,
        picture,
        element("div", {"class": "map-foot"}, key, caption),
    )


def _panels(view: MapView, name: str) -> list[Element]:
    return [_panel(panel, view.found, f"{name}{i}") for i, panel in enumerate(view.panels)]


def _panel(panel: MapPanel, found: RatioMap, name: str) -> Element:
    rows: list[Element] = []
    for i, lane in enumerate(panel.lanes):
        tall = "tall" if strip_height(len(lane.strips)) > 20 else "low"
        rows.append(element("span", {"class": "op"}, lane.label))
        rows.append(lane_svg(lane, found, f"{name}l{i}"))
        texts = [element("span", {}, text) for text in gains(lane)]
        rows.append(element("span", {"class": f"gains {tall}"}, *texts))
    rows += [element("span", {"class": "op"}), axis_svg(found), element("span", {})]
    return element(
        "div", {"class": "panel"}, element("p", {"class": "situation"}, panel.situation),
        element("div", {"class": "lanes"}, *rows), element("p", {"class": "axis quiet"}, AXIS),
    )  # fmt: skip
