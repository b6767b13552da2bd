"""The text, HTML and JSON of a plan."""

from mimokit.planning.report.planned_layout import Estimates, PlannedLayout

__all__ = ["Estimates", "PlannedLayout"]
