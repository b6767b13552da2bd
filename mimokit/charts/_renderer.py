"""How a chart reaches the eye: the one place where that is decided.

Altair writes Vega-Lite 6 and by default fetches its scripts from the network. JupyterLab 4 brings
Vega-Lite 5 with it and shows charts of that version offline, so the spec goes out under the MIME
type of version 5. Beside it goes a picture, for everything that cannot draw a spec: nbconvert's
HTML, the preview of a code host, a notebook opened without its kernel.
"""

from __future__ import annotations

import importlib.util
from typing import Any, cast

import altair as alt

from mimokit.charts import _palette

MIME_TYPE = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.6.1.json"
PICTURE_VERSION = "5.8"
"""Version of Vega-Lite that draws the picture: the oldest one at hand, closest to JupyterLab's."""

FONT = "Helvetica Neue, Arial, sans-serif"


def version_5(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec as one of Vega-Lite 5."""
    return {**spec, "$schema": SCHEMA}


def svg(spec: dict[str, Any]) -> str | None:
    """Return the picture of a spec, or None where vl-convert is not installed."""
    if importlib.util.find_spec("vl_convert") is None:
        return None
    import vl_convert

    return str(vl_convert.vegalite_to_svg(version_5(spec), vl_version=PICTURE_VERSION))


def mime_bundle(spec: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return what a notebook is given for a chart: the spec, its picture and its description."""
    bundle: dict[str, Any] = {
        MIME_TYPE: version_5(spec),
        "text/plain": f"<chart: {spec.get('description', 'no description')}>",
    }
    picture = svg(spec)
    if picture is not None:
        bundle["image/svg+xml"] = picture
    return bundle


def bundle_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the MIME bundle of a chart, whatever renderer is enabled."""
    return mime_bundle(chart.to_dict())


def theme() -> alt.theme.ThemeConfig:
    """Return the look of all charts: a white card that can be read on a dark page as well."""
    text: dict[str, Any] = {
        "labelColor": _palette.MUTED,
        "titleColor": _palette.MUTED,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    }
    config: dict[str, Any] = {
        "background": _palette.PAPER,
        "padding": 14,
        "font": FONT,
        "view": {"stroke": None, "continuousWidth": 560, "continuousHeight": 200},
        "title": {
            "anchor": "start",
            "color": _palette.INK,
            "fontSize": 14,
            "subtitleColor": _palette.MUTED,
            "subtitleFontSize": 12,
            "offset": 12,
        },
        "axis": {
            **text,
            "gridColor": _palette.GRID,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
            "titlePadding": 8,
        },
        "legend": {**text, "symbolType": "square"},
        "header": text,
    }
    return cast(alt.theme.ThemeConfig, {"config": config})


def enable() -> None:
    """Make altair draw charts this way, unless the notebook has chosen another way before."""
    if alt.renderers.active in ("", "default"):
        alt.renderers.register("mimokit", mime_bundle)
        alt.renderers.enable("mimokit")
    if alt.theme.active in ("", "default"):
        alt.theme.register("mimokit", enable=True)(theme)
