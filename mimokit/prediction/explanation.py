"""What a predicted step consists of, module by module, in figures that a reader can check."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.deployment_modes import crossing_message
from mimokit.prediction.layout import Layout
from mimokit.prediction.module_costs import (
    EncoderCost,
    LanguageCost,
    ModuleLoad,
    bridge_message,
)
from mimokit.prediction.step_time import System
from mimokit.prediction.step_time.breakdown import PART_WORDS, StageTime
from mimokit.prediction.step_time.pipeline import ModuleStep
from mimokit.prediction.step_time.stage import (
    UpdateTerms,
    boundary_message,
    layer_works,
    update_terms,
    works_of_layers,
    works_outside_layers,
)
from mimokit.prediction.step_time.terms import FOLLOWS, Term, TimePiece, added
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.workload import Workload
from mimokit.units import bytes_text, seconds_text

PER_SECOND = 1e-8
"""Seconds of one from which on a text has them, and not how many there are in a second."""


@dataclass(frozen=True)
class WorkPiece:
    """A part of a row's seconds each time: what is counted, times the seconds of one.

    Attributes:
        basis: what stands behind `each`: fitted, measured, from a file.
    """

    amount: float
    each: float
    unit: str
    basis: str

    @property
    def seconds(self) -> float:
        """Seconds of all."""
        return self.amount * self.each

    def __str__(self) -> str:
        if self.each < PER_SECOND:
            return f"{self.amount:.4g} {self.unit} / {1 / self.each:.4g} per second"
        return f"{self.amount:.4g} {self.unit} x {exact_text(self.each)}"


@dataclass(frozen=True)
class WorkRow:
    """One line of an explanation.

    Attributes:
        way: forward, backward or step.
        count: times that it happens in a step on the busiest rank.
        operations: floating-point operations, each time; so are bytes, launches, hidden and pieces.
        ranks: of the group of a collective; 0: it is none.
        hidden: seconds that overlap other work.
        seconds: of all times together: count x (those of the pieces - hidden).
        assumed: what stands behind the seconds apart from counting.
    """

    module: str
    way: str
    what: str
    part: str
    count: float
    operations: float
    bytes: float
    launches: float
    ranks: float
    hidden: float
    seconds: float
    assumed: str
    pieces: tuple[WorkPiece, ...] = ()

    @property
    def sum_text(self) -> str:
        """The seconds of one time as a sum that a reader can compute."""
        hidden = f" - {exact_text(self.hidden)} overlaps other work" if self.hidden > 1e-9 else ""
        return " + ".join(str(piece) for piece in self.pieces if piece.seconds) + hidden


@dataclass(frozen=True)
class StepExplanation:
    """The seconds of every module by what it does.

    Attributes:
        rows: their seconds add up to those of each module.
        supposed: sentences about what nobody stated.
    """

    rows: tuple[WorkRow, ...]
    supposed: tuple[str, ...] = ()

    def of(self, module: str) -> tuple[WorkRow, ...]:
        """Return the rows of a module."""
        return tuple(row for row in self.rows if row.module == module)

    def seconds(self, module: str) -> float:
        """Return the seconds of a module's busiest rank in a step."""
        return sum(row.seconds for row in self.of(module))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"rows": [asdict(row) for row in self.rows], "supposed": list(self.supposed)}

    def __str__(self) -> str:
        lines = list(self.supposed)
        for module in dict.fromkeys(row.module for row in self.rows):
            lines.append(f"{module}: {seconds_text(self.seconds(module))} on its busiest rank")
            lines += [f"  {_text(row)}" for row in self.of(module) if row.seconds or row.hidden]
        return "\n".join(lines)


def _text(row: WorkRow) -> str:
    return (
        f"{row.way} {row.what}{group_text(row)}: {exact_text(row.seconds)} = "
        f"{row.count:.6g} x ({row.sum_text}) [{row.assumed}]"
    )


def exact_text(seconds: float) -> str:
    """Return seconds in four digits, to be computed with."""
    for unit, least in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def group_text(row: WorkRow) -> str:
    """Return how many ranks a collective has, and the size of one; empty for other rows."""
    if row.ranks <= 1 or not row.launches:
        return ""
    return f" ({row.ranks:g} ranks, {bytes_text(round(row.bytes / row.launches))} each)"


def explain_task(
    task: PredictionTask, language: LanguageCost, encoders: list[EncoderCost]
) -> StepExplanation:
    """Return the explanation of a prediction, from its task and its costs."""
    layout, system = task.layout, task.system
    rows: list[WorkRow] = []
    costs: tuple[EncoderCost | LanguageCost, ...] = (*encoders, language, *language.decoders)
    for cost in costs:
        rows += module_rows(cost.load)
        rows += _bridge_rows(layout, cost, task.workload, system)
    return StepExplanation(tuple(rows), tuple(supposed(system)))


def _bridge_rows(
    layout: Layout,
    sender: EncoderCost | LanguageCost,
    workload: Workload,
    system: System,
) -> Iterator[WorkRow]:
    for receiver in layout.topology[sender.name]:
        sizes = layout.modules[receiver]
        bridge, count = bridge_term(layout, sender, sizes, workload, system)
        if float(bridge.seconds):
            yield _row(sender.name, "step", bridge, count)


def bridge_term(
    layout: Layout,
    sender: EncoderCost | LanguageCost,
    receiver: ParallelSizes,
    workload: Workload,
    system: System,
) -> tuple[Term, float]:
    """Return one move of a module's outputs, and how often it happens or is waited for in a step.

    Between separate ranks only the first one and the last gradient are waited for.
    """
    if layout.mode == "homogeneous":
        return Term("bridge", "none", 0.0), 0.0
    if layout.mode == "colocated":
        message = bridge_message(sender, receiver, workload, system)
    else:
        message = crossing_message(sender, receiver, system)
    name = "moves outputs or their gradients between modules"
    return added("bridge", name, message.pieces(), bytes=message.bytes, launches=1.0), 2.0


def supposed(system: System) -> Iterator[str]:
    """Yield what nobody stated of how the training stack runs, and that cores are shared."""
    recipe = system.recipe
    if system.hardware.cores is not None:
        yield "Seconds are those of ranks with a core each; in the step they share cores."
        return
    if recipe.unknown:
        yield (
            f"Not stated in runtime.recipe: {', '.join(sorted(recipe.unknown))}; supposed are the "
            f"defaults '{recipe.default}'."
        )


def module_rows(load: ModuleLoad) -> Iterator[WorkRow]:
    """Yield the work of a module's busiest rank in a step; it runs alone."""
    module, sizes, inputs, system = load.module, load.sizes, load.inputs, load.system
    step, micro_batches = load.step(), float(load.micro_batches)
    stage, busiest = _busiest(step, int(sizes.pipeline))
    known = module, sizes, inputs, system
    outside = works_outside_layers(*known, stage)
    for each in chain(outside, works_of_layers(*known, stage, layer_works(*known))):
        count = float(each.count) * micro_batches
        for term in each.work.terms if count else ():
            named = replace(term, name=f"computed again: {term.name}") if each.again else term
            yield _row(module.name, each.way, named, count)
    yield from _once(load, step, busiest)


def _once(load: ModuleLoad, step: ModuleStep, busiest: StageTime) -> Iterator[WorkRow]:
    module, sizes, system = load.module, load.sizes, load.system
    message = boundary_message(module, sizes, load.inputs, system)
    if float(step.pipeline) > 0:
        hop = added(
            "pipeline", "sends between stages", message.pieces(), bytes=message.bytes, launches=1.0
        )
        yield _row(module.name, "step", hop, float(step.pipeline) / float(hop.seconds))
    if float(step.bubble) > 0:
        waits = TimePiece(1.0, step.bubble, "time in which other stages work", FOLLOWS)
        bubble = added("bubble", "waits for other stages", (waits,))
        yield _row(module.name, "step", bubble, 1.0)
    update = update_terms(module, sizes, system, trained=load.inputs.trained)
    yield from _between_replicas(load, update, step, busiest)
    if float(update.optimizer.seconds) > 0:
        yield _row(module.name, "step", update.optimizer, 1.0)


def _between_replicas(
    load: ModuleLoad, update: UpdateTerms, step: ModuleStep, busiest: StageTime
) -> Iterator[WorkRow]:
    """Yield the reduction of gradients and the gathering of weights, less what passes hide.

    Weights that are sharded in full are gathered by each pass.
    """
    sharded = bool(np.any(load.sizes.fully_sharded))
    times = float(load.micro_batches) if sharded else 1.0
    behind = 1.0 if float(np.asarray(busiest.backward.total)) > 0 else 0.0
    gather = update.gather.times(1.0 + behind if sharded else 1.0)
    both = (update.reduce, gather)
    seconds = sum(float(np.asarray(term.seconds)) for term in both)
    if not seconds:
        return
    exposed = float(np.asarray(step.data)) / times
    for term in both:  # each hides as large a share of it
        share = float(np.asarray(term.seconds)) * (exposed / seconds)
        hidden = float(np.asarray(term.seconds)) - share
        yield _row(load.module.name, "step", replace(term, seconds=share, hidden=hidden), times)


def _busiest(step: ModuleStep, pipeline: int) -> tuple[int, StageTime]:
    numbered = ((pipeline - 1, 2), (0, 0), (min(1, pipeline - 1), 1))
    stage, place = max(numbered, key=lambda pair: float(step.stages[pair[1]].total))
    return stage, step.stages[place]


def _row(module: str, way: str, term: Term, count: float) -> WorkRow:
    figures = {
        name: float(np.asarray(getattr(term, name)))
        for name in ("operations", "bytes", "launches", "ranks", "hidden")
    }
    pieces = tuple(_merged(term.pieces))
    bases = dict.fromkeys(piece.basis for piece in pieces if piece.seconds)
    return WorkRow(
        module,
        way,
        term.name,
        PART_WORDS[term.part],
        count,
        seconds=float(np.asarray(term.seconds)) * count,
        assumed=", ".join(bases),
        pieces=pieces,
        **figures,
    )


def _merged(pieces: Iterable[TimePiece]) -> Iterator[WorkPiece]:
    amounts: dict[tuple[float, str, str], float] = {}
    for piece in pieces:
        key = (float(np.asarray(piece.each)), piece.unit, piece.basis)
        amounts[key] = amounts.get(key, 0.0) + float(np.asarray(piece.amount))
    for (each, unit, basis), amount in amounts.items():
        yield WorkPiece(amount, each, unit, basis)
