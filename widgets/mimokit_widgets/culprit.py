"""`show_culprit`: the first wrong tensor of a layout, in pictures, and its step in the stepper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.display import display

from mimokit import charts
from mimokit.cluster import EngineCluster
from mimokit.experiment import CulpritReport
from mimokit.experiment.prepare import Config

if TYPE_CHECKING:
    from mimokit_widgets import StepperView


def show_culprit(
    cluster: EngineCluster, config: Config, report: CulpritReport
) -> StepperView | None:
    """Show what was compared, the first tensor that differs, and the step that made it.

    Returns:
        The stepper at that step, to show as the last line of a cell; None: no tensor differs.
    """
    from mimokit.experiment import stepper_at
    from mimokit_widgets import StepperView

    display(report)
    display(charts.seams(report.rows()))
    if report.divergence is None:
        return None
    if report.divergence.arrays is not None:
        cells, borders = report.divergence.cells(), report.divergence.borders()
        display(charts.tensor_difference(cells, borders))
    view = StepperView(stepper_at(cluster, config, report))
    if report.divergence.found.ranks:
        view.selected = report.divergence.found.ranks[0]
    return view
