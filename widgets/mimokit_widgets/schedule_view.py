"""`ScheduleView`: what a schedule idles, for any number of stages and micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from mimokit.tables import html_table
from mimokit_widgets._alive import alive
from mimokit_widgets._widget import PersistentWidget
from mimokit_widgets.modules import joined_modules, joined_styles
from mimokit_widgets.timeline_view import STYLES
from mimokit_widgets.view_models.schedules import compared

MOST_STAGES, MOST_MICROBATCHES, MOST_CHUNKS = 16, 64, 4

ENTRY = "schedule_view.js"


class ScheduleView(PersistentWidget):
    """GPipe, 1F1B, ZB-H1 and interleaved chunks side by side, with sliders.

    A forward of a whole stage takes 1 and its backward 2, of which gradients of weights take 1.

    Attributes:
        stages: sets of ranks of the language model.
        microbatches: of an optimizer step.
        encoder_stages: of an encoder in front of the language model; 0: there is none.
        chunks: of each set of ranks, where they are interleaved.
    """

    _esm = joined_modules(ENTRY)
    _css = joined_styles(*STYLES)
    _in_words = "schedules of a pipeline"

    stages = traitlets.Int(4, min=1, max=MOST_STAGES).tag(sync=True)
    microbatches = traitlets.Int(8, min=1, max=MOST_MICROBATCHES).tag(sync=True)
    encoder_stages = traitlets.Int(1, min=0, max=MOST_STAGES).tag(sync=True)
    chunks = traitlets.Int(2, min=1, max=MOST_CHUNKS).tag(sync=True)
    _schedules = traitlets.List().tag(sync=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observe(self._draw, ["stages", "microbatches", "encoder_stages", "chunks"])
        self.on_msg(self._on_message)
        self._draw()

    def _draw(self, _: object = None) -> None:
        self._schedules = compared(self.stages, self.microbatches, self.encoder_stages, self.chunks)
        self._saved.follow()

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        name = str(content.get("name"))
        if name in ("stages", "microbatches", "encoder_stages", "chunks"):
            setattr(self, name, int(content["value"]))

    def _in_html(self) -> str:
        rows = [(each["name"], each["said"]) for each in self._schedules]
        return alive(ENTRY, self, {}, html_table(("schedule", "of the step"), rows))
