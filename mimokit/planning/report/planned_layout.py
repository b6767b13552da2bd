"""A plan with its tables and JSON, and next to them what is predicted for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from mimokit.axes import Axis
from mimokit.config.errors import Problem
from mimokit.planning.replicas import strategies
from mimokit.planning.report.frames import frame_section
from mimokit.planning.report.rows import (
    STAGES_SHOWN,
    Cell,
    bridge_section,
    module_hues,
    module_section,
    pipeline_section,
    place_text,
    plan_title,
    rejection,
    stage_cells,
    stage_names,
    timeline_of,
)
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import StepKind
from mimokit.tables import Report, Section
from mimokit.units import samples_text

if TYPE_CHECKING:
    from mimokit.planning.frames.batch_frames import BatchFrames
    from mimokit.planning.pipeline import PipelinePlan


RANKS_SHOWN = 32
UNITS_SHOWN = 84
IDLE, BACKWARD, WEIGHT_GRADIENT = "·", "◂", "▾"


@dataclass(frozen=True)
class Estimates:
    """What is predicted for a plan. Reports show it next to the plan; no rank reads it.

    Attributes:
        frames: what sharing the frames of a micro-batch saves, for each vision encoder of which
            the config says something about frames.
        exchange_seconds: purpose -> time of an exchange of a whole replica; None: the links
            between replicas are not known.
        strategy_bytes: bytes that a strategy between replicas keeps per parameter that a rank
            trains, without buffers; None: they are not predicted.
        rejected: what runs reject of it; see `mimokit.config.check_runnable`.
    """

    frames: tuple[BatchFrames, ...] = ()
    exchange_seconds: Mapping[str, float] | None = None
    strategy_bytes: int | None = None
    rejected: tuple[Problem, ...] = ()


NOTHING = Estimates()


@dataclass(frozen=True, eq=False, repr=False)
class PlannedLayout(LayoutPlan, Report):
    """A plan that shows itself. It equals every plan with the same decisions.

    A notebook shows it as tables; `rich.print` and `print` show it as text.
    """

    estimates: Estimates = field(default=NOTHING, kw_only=True)

    @classmethod
    def of(cls, plan: LayoutPlan, estimates: Estimates = NOTHING) -> Self:
        """Return a plan, with what is predicted for it."""
        decisions = {part.name: getattr(plan, part.name) for part in fields(LayoutPlan)}
        return cls(**decisions, estimates=estimates)

    @property
    def frames(self) -> tuple[BatchFrames, ...]:
        """The frames of a micro-batch, and what sharing them saves."""
        return self.estimates.frames

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists and dicts that `json.dumps` takes."""
        from mimokit.planning.report.to_json import plan_to_json

        return plan_to_json(self, self.estimates)

    def sections(self) -> Sequence[Section]:
        """Return the plan as tables."""
        return tuple(_sections(self, self.estimates))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LayoutPlan):
            return NotImplemented
        names = [part.name for part in fields(LayoutPlan)]
        return all(getattr(self, name) == getattr(other, name) for name in names)


def _sections(plan: LayoutPlan, estimates: Estimates) -> Iterator[Section]:
    yield Section(plan_title(plan), sentences=list(filter(None, [rejection(estimates.rejected)])))
    yield module_section(plan)
    if plan.bridges:
        yield bridge_section(plan)
    if plan.pipeline is not None:
        hues = module_hues(plan.modules)
        yield pipeline_section(plan.pipeline, hues)
        yield _order_section(plan.pipeline, hues)
    yield from map(frame_section, estimates.frames)
    if plan.replicas is not None:
        yield strategies().strategy_section(plan.replicas, estimates)
    yield _rank_section(plan.of_replica(0))


def _order_section(pipeline: PipelinePlan, hues: dict[str, str]) -> Section:
    """Return a line per stage: a forward is the last digit of its micro-batch."""
    whole = int(timeline_of(pipeline).makespan)
    until = min(whole, UNITS_SHOWN)
    stages = pipeline.graph.stages[:STAGES_SHOWN]
    cells = stage_cells(pipeline, until)[:STAGES_SHOWN]
    orders = [_units(of_stage, until) + "…" * (until < whole) for of_stage in cells]
    apart = f", {WEIGHT_GRADIENT} gradients of weights" if pipeline.schedule.split else ""
    cut = f"; the first {until} of {whole:,} units" if until < whole else ""
    return Section(
        f"Order of micro-batches, {BACKWARD} backward{apart}{cut}",
        ("stage", "order"),
        list(zip(stage_names(pipeline), orders, strict=False)),
        colors=[[hues[stage.module]] * 2 for stage in stages],
        aligned=("order",),
    )


def _units(cells: list[Cell], shown: int) -> str:
    units = [IDLE] * (shown + 1)
    for cell in cells:
        of_kind = BACKWARD if cell.kind == StepKind.BACKWARD else WEIGHT_GRADIENT
        number = str(cell.microbatch % 10)
        begin, length = int(cell.start), round(cell.stop - cell.start)
        units[begin] = number if cell.kind == StepKind.FORWARD or length > 1 else of_kind
        if cell.kind == StepKind.BACKWARD and length > 1:
            units[begin + 1] = BACKWARD
    return "".join(units[:shown])


def _rank_section(plan: LayoutPlan) -> Section:
    rows, colors = [], []
    hues = module_hues(plan.modules)
    for rank in range(min(plan.world_size, RANKS_SHOWN)):
        cells, fills = [str(rank)], [""]
        for name, ranks in plan.modules.items():
            is_on = rank in ranks.ranks
            samples = plan.batch.modules[name].samples[rank] if is_on else (0, 0)
            cells.append(f"{place_text(ranks, rank)} · {samples_text(samples)}" if is_on else "")
            even = is_on and ranks.coordinates(rank)[Axis.DATA] % 2 == 0
            fills.append(hues[name] if even else "")
        rows.append(cells)
        colors.append(fills)
    hidden = plan.world_size - RANKS_SHOWN
    more = [f"… and {hidden:,} more ranks in the same pattern"] if hidden > 0 else []
    heading = "Ranks: place in the module, samples computed"
    return Section(heading, ("rank", *plan.modules), rows, more, colors)
