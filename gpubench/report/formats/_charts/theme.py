"""Light and dark: what of a chart is not data. Colours that colour-blind readers tell apart (after Okabe and Ito)."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# The CPU is grey: what everything else is set against.
LIGHT = ("#5f6773", "#0072b2", "#c2570c", "#00845f", "#a8438c", "#8a6d00")
DARK = ("#b6bec9", "#5cb3ea", "#f2935c", "#35c79d", "#e597cb", "#e3c04a")


def theme(*, dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's `config` on a light or a dark background; the background itself is left to the page."""
    ink, quiet, line = ("#e6e9ee", "#a9b1bd", "#39414d") if dark else ("#1d2329", "#5b6470", "#dfe3e8")
    axis = {
        "labelColor": quiet, "titleColor": quiet, "gridColor": line, "domainColor": line, "tickColor": line,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8,
    }  # fmt: skip
    return {
        "background": "transparent", "font": FONT, "aria": False,
        "view": {"stroke": None}, "axis": axis, "title": {"color": ink},
        "legend": {
            "orient": "top", "labelColor": ink, "titleColor": quiet, "titleFontWeight": "normal",
            "labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 2, "columns": 3,
            "offset": 6, "symbolOpacity": 1, "titleOrient": "left",
            "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 4}},
        },
        "range": {"category": list(DARK if dark else LIGHT)},
        "line": {"strokeWidth": 2}, "rule": {"color": quiet}, "text": {"color": ink, "fontSize": 12},
        "tick": {"thickness": 1.5},
    }  # fmt: skip
