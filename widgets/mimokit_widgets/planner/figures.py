"""The numbers that a plan comes down to, with their formulas, and those of two plans compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from mimokit.axes import CONFIG_FIELDS, GRID_AXES, SHOWN_AXES, Axis
from mimokit.config import ExperimentConfig
from mimokit.config.rules.runtime_rules import unrunnable
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.report.rows import rejection
from mimokit.planning.types import Bridge, ColocatedBridge, LayoutPlan
from mimokit.units import bytes_text, counted, span_text
from mimokit_widgets.planner.paths import sizes_beyond_inputs

if TYPE_CHECKING:
    from mimokit.prediction.verdict import Verdict, VerdictLine

ABSENT = "–"


@dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
        key: unique key, such as "ranks.images".
        value: the number with its unit.
        formula: how it comes about, with the numbers put in.
    """

    key: str
    label: str
    value: str
    formula: str

    def to_json(self) -> dict[str, object]:
        """Return what the browser draws; `main` says whether it stands in the first line."""
        return {
            **asdict(self),
            "main": self.key in ("world", "step") or self.key.endswith("forward"),
        }


def figures_of(config: ExperimentConfig, plan: LayoutPlan) -> list[Figure]:
    """Return the numbers of a plan in the order in which they are read."""
    return [
        _world(plan),
        *_batch(config, plan),
        *(_module_ranks(ranks) for ranks in plan.modules.values()),
        *(_samples_each(plan, name) for name in plan.modules),
        *(figure for bridge in plan.bridges for figure in _bridge(config, plan, bridge)),
        *_rejection(config),
    ]


def _rejection(config: ExperimentConfig) -> Iterator[Figure]:
    problems = unrunnable(config)
    if problems:
        yield Figure(
            "rejected", "fields that `mimokit run` rejects", f"{len(problems)}", rejection(problems)
        )


def _world(plan: LayoutPlan) -> Figure:
    ends = {name: ranks.ranks.stop for name, ranks in plan.modules.items()}
    if plan.deployment_mode == "heterogeneous":
        each = ", ".join(f"{name} {end:,}" for name, end in ends.items())
        formula = (
            f"the largest of offset + ranks over the modules ({each}) = {max(ends.values()):,}"
        )
    else:
        formula = f"all modules share the ranks 0 to {max(ends.values()) - 1:,}"
    if plan.replicas is not None:
        formula += f", in each of {counted(plan.replicas.replicas, 'replica')} of strategy.replicas"
    elif plan.world_size != max(ends.values()):
        formula += f"; the world was given as {plan.world_size:,}"
    return Figure("world", "ranks in the world", f"{plan.world_size:,}", formula)


def _batch(config: ExperimentConfig, plan: LayoutPlan) -> Iterator[Figure]:
    base, batch = config.data.base_batch_size, plan.batch
    replicas = plan.modules[plan.llm_module_name].data_parallel
    whole, count = batch.samples_per_microbatch, batch.num_microbatches
    step = batch.global_batch_size
    yield Figure(
        "samples_per_microbatch",
        "samples per micro-batch",
        f"{whole:,}",
        f"base_batch_size {base:,} × DP {replicas:,} of {plan.llm_module_name} = {whole:,}",
    )
    yield Figure(
        "step",
        "samples per step",
        f"{step:,}",
        f"{whole:,} per micro-batch × {counted(count, 'micro-batch')} = {step:,}",
    )
    length = config.data.seq_length
    yield Figure(
        "tokens",
        "tokens per step",
        f"{step * length:,}",
        f"{counted(step, 'sample')} × seq_length {length:,} = {step * length:,}",
    )


def _module_ranks(ranks: ModuleRanks) -> Figure:
    shown = [axis for axis in SHOWN_AXES if axis in GRID_AXES]
    sizes = " × ".join(f"{axis.label} {ranks.size_of(axis):,}" for axis in shown)
    return Figure(
        f"ranks.{ranks.module}", f"ranks of {ranks.module}", f"{ranks.size:,}",
        f"{sizes} = {ranks.size:,}",
    )  # fmt: skip


def _samples_each(plan: LayoutPlan, name: str) -> Figure:
    each = plan.batch.modules[name].micro_batch_size
    replicas, whole = plan.modules[name].data_parallel, plan.batch.samples_per_microbatch
    return Figure(
        f"samples.{name}", f"samples per replica of {name}", f"{each:,}",
        f"{counted(whole, 'sample')} / DP {replicas:,} = {each:,} per micro-batch",
    )  # fmt: skip


def _bridge(config: ExperimentConfig, plan: LayoutPlan, bridge: Bridge) -> Iterator[Figure]:
    name = f"{bridge.source} → {bridge.destination}"
    for way in ("forward", "backward"):
        if isinstance(bridge, ColocatedBridge):
            moved = bridge.bytes_forward if way == "forward" else bridge.bytes_backward
            formula = _colocated_formula(config, plan, bridge, moved)
        else:
            route = bridge.forward if way == "forward" else bridge.backward
            moved, formula = route.bytes_between, route.reason
        yield Figure(
            f"bridge.{bridge.source}.{bridge.destination}.{way}",
            f"{name}, {way}",
            bytes_text(moved),
            f"{formula} Per micro-batch.",
        )


def _colocated_formula(
    config: ExperimentConfig, plan: LayoutPlan, bridge: ColocatedBridge, moved: int
) -> str:
    if bridge.direction == "equal":
        return "Both modules have as many replicas: nothing moves."
    if not moved:
        return "Each rank keeps its own slice of what it holds already: nothing moves."
    piece = plan.batch.samples_per_microbatch // max(
        plan.modules[bridge.source].data_parallel, plan.modules[bridge.destination].data_parallel
    )
    ranks = plan.modules[bridge.source].size
    per_sample = moved // (ranks * (bridge.ratio - 1) * piece)
    hidden = config.model.get_architecture(bridge.destination).hidden_size
    number_bytes = plan.executions[bridge.source].activation_bytes
    rows = per_sample // number_bytes // hidden
    return (
        f"{counted(ranks, 'rank')} × ({bridge.ratio} − 1) pieces from the others × "
        f"{counted(piece, 'sample')} × {counted(rows, 'token')} × {counted(hidden, 'number')} × "
        f"{number_bytes} B = {moved:,} B."
    )


@dataclass(frozen=True)
class Line:
    """One line: what it is about, and how it stands in each layout.

    Attributes:
        notes: of each value, such as the band of a time; empty where no value has one.
        bars: shares of a GPU's memory by module, of the line that has them.
        bad: whether a layout does not fit, of the line that says so.
    """

    label: str
    values: tuple[str, ...]
    differs: bool
    notes: tuple[str, ...] = ()
    bars: tuple[tuple[tuple[str, float], ...], ...] = ()
    bad: tuple[bool, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return what the browser draws."""
        return asdict(self)


def compare(layouts: Sequence[tuple[ExperimentConfig, LayoutPlan] | None]) -> list[Line]:
    """Return every line that a layout has, in the order of reading; a rejected one has none."""
    columns = [{} if layout is None else dict(_facts(*layout)) for layout in layouts]
    labels: list[str] = []
    for column in columns:
        labels = _merged(labels, list(column))
    return [_line(label, [column.get(label, ABSENT) for column in columns]) for label in labels]


def compared_verdicts(verdicts: Sequence[Verdict | str], alike: Sequence[bool]) -> list[Line]:
    """Return what layouts come down to; each with its difference to the first.

    Args:
        alike: whether each does the work of the first; else it has no difference.
    """
    from mimokit.prediction.verdict import verdict_lines

    first = verdicts[0] if not isinstance(verdicts[0], str) else None
    known = [None if isinstance(verdict, str) else verdict for verdict in verdicts]
    columns = [
        {}
        if verdict is None
        else {line.label: line for line in verdict_lines(verdict, first if same else None)}
        for verdict, same in zip(known, alike, strict=True)
    ]
    labels = dict.fromkeys((line.label, line.key) for column in columns for line in column.values())
    return [
        _verdict_line(label, key == "memory", [column.get(label) for column in columns], known)
        for label, key in labels
    ]


def _verdict_line(
    label: str,
    is_memory: bool,
    lines: Sequence[VerdictLine | None],
    verdicts: Sequence[Verdict | None],
) -> Line:
    told = _line(label, [ABSENT if line is None else _with_change(line) for line in lines])
    told = replace(told, notes=tuple("" if line is None else line.note for line in lines))
    if not is_memory:
        return told
    return replace(
        told,
        bars=tuple(() if verdict is None else shares_of(verdict) for verdict in verdicts),
        bad=tuple(verdict is not None and not verdict.fits for verdict in verdicts),
    )


def shares_of(verdict: Verdict) -> tuple[tuple[str, float], ...]:
    """Return the modules on the fullest GPU, each with its share of the GPU's memory."""
    return tuple((name, held / verdict.capacity) for name, held in verdict.memory.items())


def _with_change(line: VerdictLine) -> str:
    if not line.change.endswith(")"):
        return line.value
    return f"{line.value} ({line.change.rpartition('(')[2]}"


def _line(label: str, values: Sequence[str]) -> Line:
    return Line(label, tuple(values), len(set(values)) > 1)


def _merged(ours: list[str], theirs: list[str]) -> list[str]:
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
        yield f"{name}: sizes", " · ".join(shown)
        beyond = sizes_beyond_inputs(config.model.module_parallelisms[name].model_dump())
        yield f"{name}: executed with", beyond or "no further choices"
        yield f"{name}: on ranks", span_text(ranks.ranks)
    for figure in figures_of(config, plan):
        yield figure.label, figure.value
