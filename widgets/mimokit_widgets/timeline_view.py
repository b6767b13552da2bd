"""`TimelineView`: what was measured, planned and predicted, on one timeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import traitlets

from mimokit.analysis import read_trace
from mimokit.charts.timeline.groups import drawn_timeline
from mimokit.charts.timeline.spans import NodesTimeline, spans_in_words
from mimokit.planning.types import LayoutPlan
from mimokit.prediction import PredictedTimeline
from mimokit.tables import Section
from mimokit_widgets._widget import PersistentWidget

STYLES = ("shared.css", "timeline.css")


class TimelineView(PersistentWidget, entry="timeline_view.js", styles=STYLES):
    """What was measured, planned and predicted on one timeline, to zoom and to pan.

        TimelineView(plan=plan)
        TimelineView(trace="runs/first", plan=plan, prediction=predict_timeline(config))

    The pointer tells what a rank does, of which module and micro-batch, and with a plan how many
    bytes travel from where to where. All of it opens in Perfetto.

    Attributes:
        groups: what is drawn.
    """

    _timeline = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        *,
        trace: pd.DataFrame | str | Path | None = None,
        plan: LayoutPlan | None = None,
        prediction: PredictedTimeline | None = None,
        iteration: int | None = None,
        inside: pd.DataFrame | None = None,
        nodes: Mapping[str, NodesTimeline] | None = None,
        **options: Any,
    ) -> None:
        """Show what is given.

        Args:
            trace: of `mimokit.analysis.read_trace`, or the folder of a run.
            prediction: of `mimokit.prediction.predict_timeline`.
            iteration: of the trace; None for the one of median duration.
            inside: of the steps of a trace, of `read_trace(..., inside=True)`; of the folder of a
                run it is read.
            nodes: of strategies, by name, of `mimokit.prediction.strategy_timeline`.

        Raises:
            ValueError: nothing is given, or the iteration was not traced.
            TraceFileError: the trace cannot be read.
        """
        if trace is None and plan is None and prediction is None and not nodes:
            raise ValueError(
                "TimelineView has nothing to draw; give a trace, a plan, a prediction or nodes."
            )
        if isinstance(trace, str | Path):
            inside = read_trace(trace, inside=True)
            trace = read_trace(trace)
        groups, drawn = drawn_timeline(trace, plan, prediction, iteration, inside, nodes)
        self.groups = tuple(groups)
        super().__init__(_timeline=drawn, **options)

    def _still(self) -> str:
        rows = list(spans_in_words(self.groups, self._timeline["unit"]))
        return Section("", ("of", "lane", "work"), rows).to_html()
