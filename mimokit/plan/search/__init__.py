"""Search all layouts of a model for the best one."""

from mimokit.plan.search.constraints import DIMENSIONS, Constraints, Objective
from mimokit.plan.search.progress import SearchProgress
from mimokit.plan.search.result import SearchResult
from mimokit.plan.search.search import search
from mimokit.plan.search.source import ModelSource, resolve_source
from mimokit.plan.search.task import SearchTask
from mimokit.plan.search.why_not import WhyNot

__all__ = [
    "DIMENSIONS",
    "Constraints",
    "ModelSource",
    "Objective",
    "SearchProgress",
    "SearchResult",
    "SearchTask",
    "WhyNot",
    "resolve_source",
    "search",
]
