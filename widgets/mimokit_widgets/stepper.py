"""`StepperView`: a stepper as a picture with buttons; `show_step`: the picture alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets
from IPython.display import HTML

from mimokit.cluster import ClusterError
from mimokit.experiment import Stepper, StepperError
from mimokit.planning.stepper.pictures import Window
from mimokit.units import counted, listed
from mimokit_widgets._widget import Answers, PersistentWidget, asked
from mimokit_widgets.modules import joined_styles
from mimokit_widgets.view_models.step_clock import clock_svg, legend_html
from mimokit_widgets.view_models.step_picture import step_svg
from mimokit_widgets.view_models.step_samples import SampleFaces
from mimokit_widgets.view_models.step_words import (
    code_html,
    crossings_html,
    heading_html,
    inside_html,
)
from mimokit_widgets.view_models.tensor_views import (
    finding_views,
    index_of,
    list_view,
    opened_view,
)

STYLES = ("shared.css", "stepper.css", "tensors.css")
MOST_SAVED = 24
"""Steps that a saved page can look at."""


class StepperView(PersistentWidget, entry="stepper.js", styles=STYLES):
    """A stepper to click through; follows what cells do with the stepper as well.

    A click on a rank shows its tensors as pictures, a click on one of them opens it; numbers can be
    edited there, and the next step reads them.

    The samples of what crosses travel along its arrows.

    Attributes:
        stepper: what is shown.
        samples: what samples look like.
        selected: the rank whose tensors are shown, or None.
        opened: the name of the tensor that is open, or None.
    """

    selected = traitlets.Int(None, allow_none=True)
    opened = traitlets.Unicode(None, allow_none=True)
    _shown = traitlets.Dict().tag(sync=True)
    _tensors = traitlets.Dict().tag(sync=True)
    _opened = traitlets.Dict().tag(sync=True)

    def __init__(self, stepper: Stepper, vocabulary: Sequence[str] = (), **options: Any) -> None:
        """Follow a stepper.

        Args:
            vocabulary: token id -> text; token ids are then shown as words.
        """
        self.stepper = stepper
        self.samples = SampleFaces(vocabulary)
        self._error = ""
        self._whole = False
        self._window: Window | None = None
        super().__init__(**options)
        self.observe(self._draw, "selected")
        self.observe(self._draw_opened, "opened")
        stepper.on_change(self._draw)
        self._draw()

    def _still(self) -> str:
        return _html(self.stepper, self.samples)

    def _answers(self) -> Answers:
        now, taken = self._shown["number"], len(self.stepper.snapshots)
        near = sorted(range(taken), key=lambda number: abs(number - now))[:MOST_SAVED]
        return dict(self._at(number, self._shown) for number in near)

    def _at(self, number: int, shown: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        there = self._of(self.stepper.as_of(number))
        tensors = (self._tensors, self._opened) if number == shown["number"] else ({}, {})
        answer = {
            "_shown": {"patch": there},
            "_tensors": tensors[0],
            "_opened": tensors[1],
        }
        return asked(type="look", number=number), answer

    def _draw(self, _: object = None) -> None:
        self._draw_list()
        self._draw_opened()
        self.samples.read(
            self.stepper, MOST_SAVED // 2
        )  # a page is saved in a thread: it asks none
        self._shown = self._of(self.stepper)
        self._saved.follow()

    def _of(self, stepper: Stepper) -> dict[str, Any]:
        snapshot = stepper.now
        return {
            "heading": heading_html(stepper),
            "clock": clock_svg(stepper),
            "legend": legend_html(stepper),
            "picture": step_svg(stepper, self.samples),
            "code": inside_html(snapshot) + code_html(snapshot),
            "crossings": crossings_html(stepper),
            "findings": [] if snapshot is None else finding_views(snapshot.findings),
            "selected": self.selected,
            "number": -1 if snapshot is None else snapshot.number,
            "taken": len(stepper.snapshots),
            "found": _found(stepper),
            "stops": _stops(stepper),
            "error": self._error or self._ended(),
        }

    def _draw_list(self) -> None:
        rank = self.selected
        if rank is None:
            self._tensors = {}
            return
        self._tensors = self._of_rank(
            lambda: {"rank": rank, "pictures": list_view(self.stepper, rank)}
        )

    def _draw_opened(self, _: object = None) -> None:
        rank, name, snapshot = self.selected, self.opened, self.stepper.now
        if rank is None or snapshot is None or name not in snapshot.records[rank].tensors:
            self._opened = {}
            return
        whole, window = self._whole, self._window
        self._opened = self._of_rank(
            lambda: opened_view(
                self.stepper, rank, name, whole=whole, window=window, samples=self.samples
            )
        )

    def _of_rank(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if self.stepper.now is None or self.stepper.ended is not None:
            return {}
        try:
            return ask()
        except (StepperError, ClusterError) as error:
            self._error = self._error or str(error).strip().splitlines()[0]
            return {}

    def _ended(self) -> str:
        return (
            "" if self.stepper.ended is None else f"This stepper has ended: {self.stepper.ended}."
        )

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        self._error = ""
        try:
            self._do(content)
        except Exception as error:
            self._error = str(error).strip().splitlines()[0]
        if self._error != self._shown["error"]:  # all else was drawn as it changed
            self._draw()
        self.send({"type": "done"})

    def _do(self, content: Mapping[str, Any]) -> None:
        kind, stepper = content.get("type"), self.stepper
        moves: dict[str, Callable[[], object]] = {
            "next": stepper.next,
            "back": stepper.back,
            "crossing": stepper.run_until_crossing,
            "difference": stepper.run_until_difference,
            "first": stepper.first_difference,
            "breakpoint": stepper.run_to_breakpoint,
            "iteration": lambda: stepper.run_until(action="report"),
            "look": lambda: stepper.look_at(int(content["number"])),
            "toggle": lambda: stepper.toggle_breakpoint(int(content["tick"])),
            "restore": lambda: stepper.restore(int(content["number"])),
            "select": lambda: self._select(int(content["rank"])),
            "open": lambda: self._open(str(content["name"])),
            "whole": lambda: self._show(whole=bool(content["whole"])),
            "window": lambda: self._show(window=content["window"]),
            "edit": lambda: self._edit(content),
            "take-back": stepper.take_back,
        }
        if kind not in moves:
            raise StepperError(f"The view does not know what {kind!r} is.")
        moves[kind]()

    def _select(self, rank: int) -> None:
        self._whole, self._window = False, None
        self.selected = None if rank == self.selected else rank

    def _open(self, name: str) -> None:
        self._whole, self._window = False, None
        self.opened = None if name == self.opened else name

    def _show(self, *, whole: bool = False, window: list[int] | None = None) -> None:
        self._whole = whole
        self._window = None
        if window is not None:
            top, bottom, left, right = map(int, window)
            self._window = top, bottom, left, right
        self._draw_opened()

    def _edit(self, content: Mapping[str, Any]) -> None:
        rank, name = int(content["rank"]), str(content["name"])
        text = str(content["value"]).strip()
        try:
            value = float(text)
        except ValueError:
            raise StepperError(
                f"{text or 'nothing'!r} is no number; type one such as 0.5, or nan."
            ) from None
        place = index_of(self.stepper, rank, name, int(content["row"]), int(content["column"]))
        self.stepper.edit(rank, name, value, place)


def _found(stepper: Stepper) -> str:
    steps = [str(each.number) for each in stepper.snapshots if each.differences]
    if not steps:
        return ""
    where = f"step{'s' if steps[1:] else ''} {listed(steps)}"
    return f"{counted(len(stepper.differences), 'difference')} so far, in {where}"


def _stops(stepper: Stepper) -> bool:
    """Whether *Play* stops here: at a breakpoint, a difference, or the end of an iteration."""
    snapshot, ticks = stepper.now, len(stepper.clock)
    if snapshot is None:
        return False
    tick = snapshot.number % ticks
    return tick in stepper.breakpoints or tick == ticks - 1 or bool(snapshot.differences)


def _html(stepper: Stepper, samples: SampleFaces) -> str:
    snapshot = stepper.now
    return (
        f"<style>{joined_styles(*STYLES)}</style><div class='mimokit stepper'>"
        f"<div class='told'>{heading_html(stepper)}</div>"
        f"<div class='clock'>{clock_svg(stepper)}</div><div class='body'>"
        f"<div class='picture'>{step_svg(stepper, samples)}</div>"
        f"<div class='side'>{crossings_html(stepper)}{code_html(snapshot)}</div></div></div>"
    )


def show_step(stepper: Stepper) -> HTML:
    """Return the picture of the step that is looked at, to stay in a notebook without a kernel."""
    samples = SampleFaces()
    samples.read(stepper)
    return HTML(_html(stepper, samples))
