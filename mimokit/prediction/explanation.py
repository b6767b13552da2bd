"""What a predicted step consists of, module by module, in figures that a reader can check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mimokit.architecture.layer_work.products import visible_tokens
from mimokit.architecture.parallel_sizes import RECOMPUTE_FULL, ParallelSizes
from mimokit.architecture.parameters_on_rank import Module, layers_of, net_of
from mimokit.prediction.module_costs import (
    EncoderCost,
    LanguageCost,
    encoder_input,
    language_input,
)
from mimokit.prediction.step_time import ModuleInput, System, module_step
from mimokit.prediction.step_time.breakdown import PART_WORDS, StageTime
from mimokit.prediction.step_time.layer import LayerTerms, layer_terms
from mimokit.prediction.step_time.pipeline import ModuleStep
from mimokit.prediction.step_time.terms import Term, breakdown
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.workload import branches_of, language_of
from mimokit.units import seconds_text

ASSUMED: Mapping[str, str] = {
    "matrix": "rate: a share of the peak, fitted to published steps",
    "attention": "rate: a share of the peak, from tables of measured cores",
    "memory": "rate: a share of the memory bandwidth, fitted to published steps",
    "tensor": "rate: a share of the links, from measured collectives",
    "context": "rate: a share of the links, from measured collectives",
    "expert": "rate: a share of the links, from measured dispatch",
    "host": "seconds of the host, from measured launches",
    "update": "bytes over bandwidth; what runs beside passes is hidden",
    "pipeline": "bytes over bandwidth",
    "bubble": "stages that wait for each other",
}
"""Part -> what stands behind its seconds apart from counting."""


@dataclass(frozen=True)
class WorkRow:
    """One line of an explanation.

    Attributes:
        way: forward, backward or step.
        count: times that it happens in a step on the busiest rank.
        operations: floating-point operations, each time; so are bytes, launches and hidden.
        rate: operations or bytes per second that are supposed; 0: none.
        seconds: of all times together.
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
    rate: float
    hidden: float
    seconds: float
    assumed: str


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
    work = [
        f"{value:.3g} {word}"
        for value, word in (
            (row.operations, "operations"), (row.bytes, "bytes"), (row.launches, "launches"),
        )
        if value
    ]  # fmt: skip
    rate = f" at {row.rate:.3g} per second" if row.rate else ""
    hidden = f", {seconds_text(row.hidden)} hidden each time" if row.hidden > 1e-9 else ""
    counted = f"{row.count:g} x ({', '.join(work)}){rate}" if work else f"{row.count:g} x"
    return f"{row.way} {row.what}: {seconds_text(row.seconds)} = {counted}{hidden}"


def explain_task(
    task: PredictionTask, language: LanguageCost, encoders: list[EncoderCost]
) -> StepExplanation:
    """Return the explanation of a prediction, from its task and its costs."""
    workload, system, layout = task.workload, task.system, task.layout
    rows: list[WorkRow] = []
    for branch, cost in zip(branches_of(task.model), encoders, strict=True):
        inside = (cost.repeated or cost) if layout.mode == "homogeneous" else cost
        inputs = encoder_input(branch, inside.sizes, workload)
        rows += module_rows(branch, inside.sizes, inputs, system, float(inside.micro_batches))
    model = language_of(task.model)
    trained = any(branch.name not in workload.frozen for branch in branches_of(task.model))
    inputs = language_input(model, language.sizes, workload, encoders_trained=trained)
    rows += module_rows(model, language.sizes, inputs, system, float(language.micro_batches))
    return StepExplanation(tuple(rows), tuple(supposed(system)))


def supposed(system: System) -> Iterator[str]:
    """Yield what nobody stated of how the training stack runs."""
    recipe = system.recipe
    if recipe.unknown:
        yield (
            f"Not stated in runtime.recipe: {', '.join(sorted(recipe.unknown))}; supposed are the "
            f"defaults '{recipe.default}'."
        )


def module_rows(
    module: Module, sizes: ParallelSizes, inputs: ModuleInput, system: System, micro_batches: float
) -> Iterator[WorkRow]:
    """Yield the work of a module's busiest rank in a step; it runs alone."""
    step = module_step(module, sizes, inputs, system, micro_batches)
    stage, busiest = _busiest(step, int(sizes.pipeline))
    net, layers = net_of(module), layers_of(module, sizes, stage)
    tokens = inputs.sequences * inputs.seq / sizes.context
    visible = visible_tokens(net, inputs.seq)
    left = {"forward": busiest.forward, "backward": busiest.backward}
    whole = layers.first(system.recipe.recompute_layers)
    full = int(sizes.recompute) == RECOMPUTE_FULL
    for moe, count, some in (
        (None, layers.dense, whole.dense), (net.moe, layers.expert, whole.expert),
    ):  # fmt: skip
        if float(count) == 0:
            continue
        terms = layer_terms(net, moe, sizes, tokens, visible, system)
        recomputed = float(count if full else some)
        for way, again, done in _passes(terms, inputs, system, float(count), recomputed):
            for term in done:
                yield _row(module.name, way, term, again * micro_batches)
            left[way] = left[way] + breakdown(done).times(-again)
    for way, rest in left.items():
        for part, seconds in vars(rest).items():
            if abs(float(seconds)) > 1e-12:
                what = "ends of the stage: patches, projector, logits, loss, further tokens"
                yield _row(module.name, way, Term(part, what, seconds), micro_batches)
    for part, what, seconds in (
        ("pipeline", "sends between stages", step.pipeline),
        ("bubble", "waits for other stages", step.bubble),
        ("update", "gradients and weights between replicas, not hidden", step.data),
        ("update", "optimizer", step.optimizer),
    ):
        if float(seconds) > 0:
            yield _row(module.name, "step", Term(part, what, seconds), 1.0)


def _passes(
    terms: LayerTerms, inputs: ModuleInput, system: System, count: float, recomputed: float
) -> Iterator[tuple[str, float, tuple[Term, ...]]]:
    """Yield the passes of layers: forward or backward, how many layers, and their terms."""
    forward = (*terms.forward, _host(terms.forward, terms, system))
    yield "forward", count, forward
    if not inputs.trained and not inputs.passes_gradient:
        return
    behind = terms.backward + (terms.weights if inputs.trained else ())
    yield "backward", count, (*behind, _host(behind, terms, system))
    if recomputed:
        yield "backward", recomputed, tuple(_named(term, "computed again: ") for term in forward)


def _named(term: Term, prefix: str) -> Term:
    return Term(**{**vars(term), "name": prefix + term.name})


def _host(own: tuple[Term, ...], terms: LayerTerms, system: System) -> Term:
    """Return what the host's launches take longer than the GPU."""
    parts = breakdown(own)
    busy = parts.total if system.software.launches_ahead else parts.total - parts.tensor
    longer = np.maximum(0.0, terms.launch - busy)
    name = f"host launches for {float(np.asarray(terms.launch)):.3g} s, the GPU waits for the rest"
    return Term("host", name, longer)


def _busiest(step: ModuleStep, pipeline: int) -> tuple[int, StageTime]:
    """Return the stage that takes longest, and its time for one micro-batch."""
    numbered = ((pipeline - 1, 2), (0, 0), (min(1, pipeline - 1), 1))
    stage, place = max(numbered, key=lambda pair: float(step.stages[pair[1]].total))
    return stage, step.stages[place]


def _row(module: str, way: str, term: Term, count: float) -> WorkRow:
    figures = {
        name: float(np.asarray(getattr(term, name)))
        for name in ("operations", "bytes", "launches", "rate", "hidden")
    }
    return WorkRow(
        module,
        way,
        term.name,
        PART_WORDS[term.part],
        count,
        seconds=float(np.asarray(term.seconds)) * count,
        assumed=ASSUMED[term.part],
        **figures,
    )
