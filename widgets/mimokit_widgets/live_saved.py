"""A monitor as HTML that draws itself: the same view, without a kernel and without a network."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from html import escape
from typing import Any

from mimokit_widgets.live_rows import thinned
from mimokit_widgets.missing_widget import hide_the_missing_widget
from mimokit_widgets.modules import joined_modules, joined_styles

MOST_ROWS = 20_000
"""Rows in a page, about 100 bytes each; of longer runs only every second, third ... iteration."""
STYLES = ("shared.css", "live_monitor.css")

HIDE = hide_the_missing_widget(saved=".mimokit-remembered", live=".mimokit-live-now")


def remembered(state: Mapping[str, Any], sentence: str, picture: str | None = None) -> str:
    """Return HTML that shows a run; where scripts are not run, the sentence and the picture.

    Args:
        state: what the view asks of its model, all rows under `_history`.
        sentence: what a page without scripts says.
        picture: an address (`data:...`) of a picture for a page without scripts.
    """
    rows, every = thinned(state["_history"], MOST_ROWS)
    given = {**state, "_history": rows, "_every": every}
    name = f"mimokit-run-{uuid.uuid4().hex[:12]}"
    image = f'<img alt="{escape(sentence)}" src="{picture}">' if picture else ""
    arguments = ", ".join(_literal(part) for part in (name, joined_styles(*STYLES), given))
    return (
        f'<div class="mimokit-remembered {name}"><p>{escape(sentence)}</p>{image}</div>'
        f"<style>{HIDE}</style>"
        f'<script type="module">\n{joined_modules("live_saved.js")}\n'
        f"showRemembered({arguments});\n</script>"
    )


def _literal(value: Any) -> str:
    """Return a value as JavaScript that may stand within an element of HTML."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
