"""Search all layouts of a model for the best one."""

from mimokit.plan.search.constraints import DIMENSIONS, MODES, Constraints, Objective
from mimokit.plan.search.progress import SearchProgress
from mimokit.plan.search.result import SearchResult
from mimokit.plan.search.search import search
from mimokit.plan.search.show import result_to_rich
from mimokit.plan.search.source import ModelSource, resolve_source
from mimokit.plan.search.task import SearchTask
from mimokit.plan.search.why_not import WhyNot
from mimokit.plan.search.words import PART_WORDS, seconds_text

__all__ = [
    "DIMENSIONS",
    "MODES",
    "PART_WORDS",
    "Constraints",
    "ModelSource",
    "Objective",
    "SearchProgress",
    "SearchResult",
    "SearchTask",
    "WhyNot",
    "resolve_source",
    "result_to_rich",
    "search",
    "seconds_text",
]
