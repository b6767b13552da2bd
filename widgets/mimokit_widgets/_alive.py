"""Widgets that stay alive on a page without a kernel: they hold what Python would have answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ipywidgets import DOMWidget

from mimokit.charts.browser.saved import saved_view
from mimokit_widgets.modules import saved_modules

JUPYTERS = {"_esm", "_css", "_anywidget_id", *DOMWidget.class_trait_names(sync=True)}
"""Traits that are not the view's."""

Answers = Mapping[str, Mapping[str, Any]]
"""A message of the browser, as JSON -> the traits that it makes Python set."""


def asked(**message: Any) -> str:
    """Return a message as the browser writes it, its entries in the given order."""
    return json.dumps(message, separators=(",", ":"))


def state_of(widget: Any) -> dict[str, Any]:
    """Return what a widget tells its view."""
    return {name: getattr(widget, name) for name in widget.keys if name not in JUPYTERS}


def alive(entry: str, widget: Any, answers: Answers, still: str) -> str:
    """Return a widget as HTML that needs no kernel.

    Args:
        entry: the file of its browser's half.
        answers: what it can be asked on a page; to all else it says that no kernel is there.
        still: HTML for a page without scripts.
    """
    return saved_view(saved_modules(entry), widget._css, state_of(widget), answers, still)
