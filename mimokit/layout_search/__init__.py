"""Search all layouts of a model for the best one."""

from mimokit.layout_search.constraints import DIMENSIONS, MODES, Constraints, Objective
from mimokit.layout_search.explain import one_step_away
from mimokit.layout_search.result import SearchResult
from mimokit.layout_search.search import SearchProgress, search, task_of
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.why_not import WhyNot
from mimokit.prediction.model_source import ModelSource, resolve_source

__all__ = [
    "DIMENSIONS",
    "MODES",
    "Constraints",
    "ModelSource",
    "Objective",
    "SearchProgress",
    "SearchResult",
    "SearchTask",
    "WhyNot",
    "one_step_away",
    "resolve_source",
    "search",
    "task_of",
]
