"""What every view is built on: a widget that leaves a picture in a saved notebook."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle, display
from ipywidgets import DOMWidget

from mimokit.charts.browser.saved_view import saved_view
from mimokit_widgets.modules import joined_modules, joined_styles, saved_modules

JUPYTERS = {"_esm", "_css", "_anywidget_id", "_ahead", *DOMWidget.class_trait_names(sync=True)}
"""Traits that a view without a kernel has no use for."""

Answers = Mapping[str, Mapping[str, Any]]
"""A message of the browser, as JSON -> the traits that it makes Python set."""


def asked(**message: Any) -> str:
    """Return a message as the browser writes it, its entries in the given order."""
    return json.dumps(message, separators=(",", ":"))


def state_of(widget: Any) -> dict[str, Any]:
    """Return what a widget tells its view."""
    state = widget.get_state().items()
    return {name: value for name, value in state if name not in JUPYTERS}


class EndOfCell:
    """Calls a function after every cell.

    A notebook that is executed headless listens only while a cell runs; a run that ends within a
    cell must therefore leave its picture before that cell ends.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._shell = get_ipython()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)

    def _after_cell(self, *_: Any) -> None:
        self._call()

    def forget(self) -> None:
        """Stop calling."""
        if self._shell is not None:
            with contextlib.suppress(ValueError):
                self._shell.events.unregister("post_run_cell", self._after_cell)
            self._shell = None


def defer_shell_choice(comm: Any) -> None:
    """Have messages from the browser handled by the subshell they ask for.

    From 7.4 on ipykernel hands them to the shell that sent last, which may be the main one; there
    they would wait for the cell that runs.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for


class ByIdentity(traitlets.Any):  # type: ignore[misc]
    """Any value; another object is a change, however equal.

    Comparing two plans of many ranks entry by entry takes longer than making one.
    """

    def set(self, obj: Any, value: Any) -> None:
        """Set the value and notify unless it is the very same object."""
        new = self._validate(obj, value)
        old = obj._trait_values.get(self.name, self.default_value)
        obj._trait_values[self.name] = new
        if new is not old:
            obj._notify_trait(self.name, old, new)


def suppress_missing_widget(saved: str, live: str) -> str:
    """Return a style sheet that hides what JupyterLab says where it finds no model for a widget.

    Args:
        saved: selector of the picture that stays in the notebook.
        live: selector of the widget, which is there only while it has a model.
    """
    return (
        f".jp-OutputArea:has({saved}):not(:has({live})) "
        ".jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets)"
        "{display:none}"
    )


SECONDS_AFTER_THE_LAST_EDIT = 0.7
CLASS = "mimokit-saved"
"""Hidden by the widget's own style sheet, which is there only while the widget is."""
HIDE = suppress_missing_widget(saved=f".{CLASS}", live=f".mimokit:not(.{CLASS} *)")


class SavedPicture:
    """An output below the widget that follows it at a distance."""

    def __init__(self, draw: Callable[[], tuple[str, str]]) -> None:
        """Remember what returns the picture as HTML, and in words."""
        self._draw = draw
        self._handles: list[DisplayHandle] = []
        self._timer = threading.Timer(SECONDS_AFTER_THE_LAST_EDIT, self.draw_now)

    def show_below(self, widget: Any) -> None:
        """Show a widget, and one more picture below it."""
        bundle, metadata = widget._repr_mimebundle_()
        display(bundle, metadata=metadata, raw=True)
        handle = display(self.bundle(), raw=True, display_id=True)
        if handle is not None:
            self._handles.append(handle)

    def follow(self, _: object = None) -> None:
        """Draw again, once the edits have paused."""
        if not self._handles:
            return
        self._timer.cancel()
        self._timer = threading.Timer(self._timer.interval, self.draw_now)
        self._timer.daemon = True
        self._timer.start()

    def draw_now(self) -> None:
        """Draw again at once; what takes long (a large plan 0.8 s) waits longer from then on."""
        began = time.thread_time()
        for handle in self._handles:
            handle.update(self.bundle(), raw=True)
        self._timer.interval = max(SECONDS_AFTER_THE_LAST_EDIT, 4 * (time.thread_time() - began))

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle of the output."""
        picture, words = self._draw()
        html = f'<div class="{CLASS}">{picture}</div><style>{HIDE}</style>'
        return {"text/html": html, "text/plain": words}


class PersistentWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """A widget that leaves a picture of itself in a saved notebook.

    A class names the files of its browser's half: `class View(PersistentWidget, entry="view.js")`.
    """

    _entry = ""

    def __init_subclass__(cls, entry: str = "", styles: Sequence[str] = (), **options: Any) -> None:
        if entry:
            cls._entry, cls._esm = entry, joined_modules(entry)
        if styles:
            cls._css = joined_styles(*styles)
        super().__init_subclass__(**options)

    def __init__(self, **options: Any) -> None:
        self._saved = SavedPicture(lambda: (self._in_html(), self._in_words()))
        super().__init__(**options)
        self.on_msg(self._on_message)

    def open(self) -> None:
        """Connect to the browser."""
        super().open()
        defer_shell_choice(self.comm)

    def _ipython_display_(self) -> None:
        self._saved.show_below(self)

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        """Do what the browser asks for."""

    def _in_html(self) -> str:
        """Return the view as HTML that needs no kernel."""
        module = saved_modules(self._entry)
        return saved_view(module, self._css, state_of(self), self._answers(), self._still())

    def _answers(self) -> Answers:
        """Return what it can be asked on a page; to all else it says that no kernel is there."""
        return {}

    def _still(self) -> str:
        """Return HTML for a page without scripts."""
        raise NotImplementedError

    def _in_words(self) -> str:
        """Return what stands for it where no HTML is shown."""
        return type(self).__name__
