"""A widget that stays: usable while a cell runs, and a picture when its kernel is gone."""

from __future__ import annotations

from typing import Any

import anywidget

from mimokit_widgets.saved_picture import SavedPicture
from mimokit_widgets.shell_choice import let_the_browser_choose_the_shell


class StayingWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A widget that leaves a picture of itself in a saved notebook."""

    def __init__(self, **options: Any) -> None:
        self._saved = SavedPicture(self._in_html)
        super().__init__(**options)

    def open(self) -> None:
        """Connect to the browser."""
        super().open()
        let_the_browser_choose_the_shell(self.comm)

    def _ipython_display_(self) -> None:
        """Show the widget, and below it what stays when the kernel is gone."""
        self._saved.show_below(self)

    def _in_html(self) -> str:
        """Return what stays."""
        raise NotImplementedError
