"""Two layouts side by side, line by line, with what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from mimokit.axes import CONFIG_FIELDS, SHOWN_AXES, Axis
from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from mimokit.units import span_text
from mimokit_widgets.planner.figures import figures_of
from mimokit_widgets.planner.paths import sizes_beyond_inputs

ABSENT = "–"


@dataclass(frozen=True)
class Line:
    """One line: what it is about, and how it stands in each layout."""

    label: str
    left: str
    right: str
    differs: bool

    def to_json(self) -> dict[str, object]:
        """Return what the browser draws."""
        return asdict(self)


def compare(
    left: tuple[ExperimentConfig, LayoutPlan], right: tuple[ExperimentConfig, LayoutPlan]
) -> list[Line]:
    """Return every line that either layout has, in the order of reading."""
    ours, theirs = dict(_facts(*left)), dict(_facts(*right))
    labels = _merged(list(ours), list(theirs))
    return [_line(label, ours.get(label, ABSENT), theirs.get(label, ABSENT)) for label in labels]


def _line(label: str, left: str, right: str) -> Line:
    return Line(label, left, right, left != right)


def _merged(ours: list[str], theirs: list[str]) -> list[str]:
    """Return all labels; one that only the right has stands behind its neighbour there."""
    merged = list(ours)
    for index, label in enumerate(theirs):
        if label not in merged:
            before = theirs[index - 1] if index else None
            merged.insert(merged.index(before) + 1 if before in merged else 0, label)
    return merged


def _facts(config: ExperimentConfig, plan: LayoutPlan) -> Iterator[tuple[str, str]]:
    yield "deployment mode", plan.deployment_mode
    for name, ranks in plan.modules.items():
        sizes = {axis: getattr(ranks, CONFIG_FIELDS[axis]) for axis in SHOWN_AXES}
        shown = [
            f"{axis.label} {size}"
            for axis, size in sizes.items()
            if size > 1 or axis in (Axis.TENSOR, Axis.DATA)
        ]
        beyond = sizes_beyond_inputs(config.model.module_parallelisms[name].model_dump())
        yield f"{name}: sizes", " · ".join([*shown, *([beyond] if beyond else [])])
        yield f"{name}: on ranks", span_text(ranks.ranks)
    for figure in figures_of(config, plan):
        yield figure.label, figure.value
