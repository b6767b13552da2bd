"""What stays of a planner in a saved notebook: its last plan, without a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from IPython.display import DisplayHandle, display

from mimokit_widgets.missing_widget import hide_the_missing_widget

SECONDS_AFTER_THE_LAST_EDIT = 0.7
CLASS = "mimokit-saved"
"""Hidden by the widget's own style sheet, which is there only while the widget is."""
HIDE = hide_the_missing_widget(saved=f".{CLASS}", live=f".mimokit:not(.{CLASS} *)")


class SavedPicture:
    """An output below the widget that follows it at a distance."""

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._handles: list[DisplayHandle] = []
        self._timer: threading.Timer | None = None

    def show_below(self, widget: Any) -> None:
        """Show a widget, and one more picture below it."""
        bundle, metadata = widget._repr_mimebundle_()
        display(bundle, metadata=metadata, raw=True)
        handle = display(self._bundle(), raw=True, display_id=True)
        if handle is not None:
            self._handles.append(handle)

    def follow(self) -> None:
        """Draw again, once the edits have paused."""
        if not self._handles:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(SECONDS_AFTER_THE_LAST_EDIT, self._draw_again)
        self._timer.daemon = True
        self._timer.start()

    def _draw_again(self) -> None:
        for handle in self._handles:
            handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, Any]:
        picture = self._draw()
        html = f'<div class="{CLASS}">{picture}</div><style>{HIDE}</style>'
        return {"text/html": html, "text/plain": "a layout"}
