"""`StepperView`: a stepper as a picture with buttons; `show_step`: the picture alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets
from IPython.display import HTML

from mimokit.experiment import Stepper, StepperError
from mimokit.units import counted, listed
from mimokit_widgets._widget import PersistentWidget
from mimokit_widgets.modules import joined_modules, joined_styles
from mimokit_widgets.view_models.step_clock import clock_svg
from mimokit_widgets.view_models.step_picture import step_svg
from mimokit_widgets.view_models.step_words import (
    code_html,
    crossings_html,
    heading_html,
    tensors_html,
)

STYLES = ("shared.css", "stepper.css")


class StepperView(PersistentWidget):
    """A stepper to click through; follows what cells do with the stepper as well.

    Attributes:
        stepper: what is shown.
        selected: the rank whose tensors are listed, or None.
    """

    _esm = joined_modules("stepper.js")
    _css = joined_styles(*STYLES)

    selected = traitlets.Int(None, allow_none=True)
    _shown = traitlets.Dict().tag(sync=True)

    def __init__(self, stepper: Stepper, **options: Any) -> None:
        self.stepper = stepper
        self._error = ""
        super().__init__(**options)
        self.on_msg(self._on_message)
        self.observe(self._draw, ["selected"])
        stepper.on_change(self._draw)
        self._draw()

    def _in_html(self) -> str:
        return step_html(self.stepper)

    def _draw(self, _: object = None) -> None:
        stepper = self.stepper
        snapshot = stepper.now
        self._shown = {
            "heading": heading_html(stepper),
            "clock": clock_svg(stepper),
            "picture": step_svg(stepper),
            "code": code_html(snapshot),
            "crossings": crossings_html(stepper),
            "tensors": tensors_html(stepper, self.selected),
            "selected": self.selected,
            "number": -1 if snapshot is None else snapshot.number,
            "taken": len(stepper.snapshots),
            "found": _found(stepper),
            "error": self._error or self._ended(),
        }
        self._saved.follow()

    def _ended(self) -> str:
        return (
            "" if self.stepper.ended is None else f"This stepper has ended: {self.stepper.ended}."
        )

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        """Do what a button asks for; what goes wrong becomes a sentence in the view."""
        self._error = ""
        try:
            self._do(content)
        except Exception as error:
            self._error = str(error).strip().splitlines()[0]
        self._draw()
        self.send({"type": "done"})

    def _do(self, content: Mapping[str, Any]) -> None:
        stepper, kind = self.stepper, content.get("type")
        if kind == "next":
            stepper.next()
        elif kind == "back":
            stepper.back()
        elif kind == "look":
            stepper.look_at(int(content["number"]))
        elif kind == "crossing":
            stepper.run_until_crossing()
        elif kind == "difference":
            stepper.run_until_difference()
        elif kind == "iteration":
            stepper.run_until(action="report")
        elif kind == "select":
            rank = int(content["rank"])
            self.selected = None if rank == self.selected else rank
        else:
            raise StepperError(f"The view does not know what {kind!r} is.")


def _found(stepper: Stepper) -> str:
    """Return how many differences from the plan have been found, and in which steps."""
    steps = [str(each.number) for each in stepper.snapshots if each.differences]
    if not steps:
        return ""
    where = f"step{'s' if steps[1:] else ''} {listed(steps)}"
    return f"{counted(len(stepper.differences), 'difference')} so far, in {where}"


def step_html(stepper: Stepper) -> str:
    """Return the step that is looked at as HTML that needs no kernel."""
    snapshot = stepper.now
    return (
        f"<style>{joined_styles(*STYLES)}</style><div class='mimokit stepper'>"
        f"<div class='told'>{heading_html(stepper)}</div>"
        f"<div class='clock'>{clock_svg(stepper)}</div><div class='body'>"
        f"<div class='picture'>{step_svg(stepper)}</div>"
        f"<div class='side'>{crossings_html(stepper)}{code_html(snapshot)}</div></div></div>"
    )


def show_step(stepper: Stepper) -> HTML:
    """Return the picture of the step that is looked at, to stay in a notebook."""
    return HTML(step_html(stepper))
