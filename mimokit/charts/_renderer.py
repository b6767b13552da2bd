"""Renders charts in notebooks without a network.

Altair writes Vega-Lite 6 and by default loads its scripts from the network. JupyterLab 4 includes
Vega-Lite 5 and shows charts of that version offline, so specs have the MIME type of version 5. An
SVG picture is sent with each spec, for viewers that cannot draw specs: nbconvert's HTML, the
preview of a code host, a notebook without its kernel.

JupyterLab draws the spec in the colours of its theme. The picture brings its own paper where it is
an image, and has the colours of the page where it is a part of that.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from mimokit.charts import _palette

if TYPE_CHECKING:
    import altair as alt

MIME_TYPE = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.6.1.json"
PICTURE_VERSION = "5.8"
"""Version of Vega-Lite for the picture: the oldest of vl-convert, closest to JupyterLab's."""

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

FONT = "Helvetica Neue, Arial, sans-serif"

_ON_PAPER = (
    f"<style>svg:root {{ color: {_palette.INK}; background: {_palette.PAPER}; }}</style></svg>"
)
"""Within a page of HTML, no SVG is the root."""
_AS_ELEMENTS = {"embedOptions": {"renderer": "svg"}}
"""Elements of the page have its colours, also after its theme has changed; a canvas has not."""


def import_jsonschema() -> None:
    """Import what altair and nbformat do; 38 grammars for addresses, 1.0 s, wait for the first."""
    name = "rfc3987_syntax"
    if name in sys.modules or importlib.util.find_spec(name) is None:
        return
    late: Any = ModuleType(name)
    late.is_valid_syntax = lambda *given: importlib.import_module(name).is_valid_syntax(*given)
    sys.modules[name] = late
    importlib.import_module("jsonschema")
    del sys.modules[name]


def version_5(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec as one of Vega-Lite 5."""
    return {**spec, "$schema": SCHEMA}


def on_page(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec as one that is drawn in the colours of the page around it.

    It has a width in pixels: JupyterLab draws one that is as wide as its cell again and again.
    """
    return version_5({"usermeta": _AS_ELEMENTS, **spec})


def svg(spec: dict[str, Any]) -> str | None:
    """Return the picture of a spec, or None if vl-convert is not installed."""
    if importlib.util.find_spec("vl_convert") is None:
        return None
    import vl_convert

    drawn = str(vl_convert.vegalite_to_svg(in_xml(version_5(spec)), vl_version=PICTURE_VERSION))
    return drawn.removesuffix("</svg>") + _ON_PAPER


def in_xml(value: Any) -> Any:
    """Return a spec in whose texts every character that XML cannot hold is replaced.

    Such a character, as in the name of a folder, makes vl-convert abort the whole process.
    """
    if isinstance(value, str):
        return _NOT_IN_XML.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {in_xml(key): in_xml(inner) for key, inner in value.items()}
    return [in_xml(inner) for inner in value] if isinstance(value, list | tuple) else value


def mime_bundle(spec: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return the MIME bundle of a chart: its spec, picture and description."""
    bundle: dict[str, Any] = {
        MIME_TYPE: on_page(spec),
        "text/plain": f"<chart: {spec.get('description', 'no description')}>",
    }
    picture = svg(spec)
    if picture is not None:
        bundle["image/svg+xml"] = picture
    return bundle


def bundle_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the MIME bundle of a chart, independent of the enabled renderer."""
    return mime_bundle(chart.to_dict())


def theme() -> alt.theme.ThemeConfig:
    """Return the theme of all charts, in the colours of the page."""
    text: dict[str, Any] = {
        "labelColor": _palette.TEXT,
        "titleColor": _palette.TEXT,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    }
    faint = {"labelOpacity": _palette.FAINT, "titleOpacity": _palette.FAINT}
    config: dict[str, Any] = {
        "background": "transparent",
        "padding": 14,
        "font": FONT,
        "view": {"stroke": None, "continuousWidth": 720, "continuousHeight": 200},
        "title": {
            "anchor": "start",
            "color": _palette.TEXT,
            "fontSize": 14,
            "subtitleColor": _palette.TEXT,
            "subtitleFontSize": 12,
            "offset": 12,
        },
        "axis": {
            **text,
            **faint,
            "gridColor": _palette.TEXT,
            "gridOpacity": _palette.FAINTEST,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
            "titlePadding": 8,
        },
        "legend": {**text, **faint, "symbolType": "square"},
        "header": text,
    }
    return cast("alt.theme.ThemeConfig", {"config": config})


def enable() -> None:
    """Enable this renderer and theme in altair, unless the notebook has enabled others."""
    import altair as alt

    if alt.renderers.active in ("", "default"):
        alt.renderers.register("mimokit", mime_bundle)
        alt.renderers.enable("mimokit")
    if alt.theme.active in ("", "default"):
        alt.theme.register("mimokit", enable=True)(theme)
