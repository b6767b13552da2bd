"""Runs a layout and one process with the same hooks, and compares them seam by seam."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig, check_runnable, user_code
from mimokit.config.checked_code import checked_code
from mimokit.config.graph import topological_order
from mimokit.config.runtime import AS_DRAWN
from mimokit.experiment.culprit import on_rank
from mimokit.experiment.culprit.arrays import Array, OnRank, array_of, deviating, rank_parts
from mimokit.experiment.culprit.kinds import changes, kind_of, possible_factors
from mimokit.experiment.culprit.measures import (
    ROUNDED_STEPS,
    Measured,
    Order,
    measured,
    spread_of,
)
from mimokit.experiment.culprit.report import CulpritReport, Divergence
from mimokit.experiment.culprit.sketches import combined
from mimokit.experiment.patterns import CLOSE
from mimokit.experiment.prepare import Config, check_room, finalized_copy, with_hosts
from mimokit.experiment.proofs_on_rank import OneProcessRun
from mimokit.experiment.reference import (
    decoder_networks,
    for_verification,
    single_rank,
)
from mimokit.experiment.tolerances import ALLOWED, ALLOWED_WITH_EXPERTS, STEPS
from mimokit.planning import plan_layout
from mimokit.planning.expert_choices import ExpertChoices
from mimokit.planning.layout import plan_checked
from mimokit.planning.seams import PHASES, ByRank, Floats, Recording, Seam, SeamPhase, code_of
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource

NUDGES = (1, 2, 3)
"""Seeds of the changes of the weights by a rounding."""


@dataclass(frozen=True)
class Side:
    """One of the two runs that are compared."""

    name: str
    config: ExperimentConfig
    code: user_code.UserCode = user_code.NO_CODE

    @property
    def in_row(self) -> bool:
        """Whether a module puts samples in a row, without padding."""
        return any(
            execution.samples_in_row for execution in plan_layout(self.config).executions.values()
        )

    def plan(self, cluster: EngineCluster) -> LayoutPlan:
        """Return the plan of a layout."""
        return with_hosts(cluster, plan_layout(self.config))


@dataclass(frozen=True)
class Reference:
    """What one process computes: for all layouts of a model on the same samples.

    Attributes:
        side: any of the layouts.
        spread: seam -> its largest difference between roundings of the weights.
        is_deterministic: a second run gave the same numbers.
    """

    side: Side
    steps: int
    recording: Recording
    spread: Mapping[Seam, float]
    is_deterministic: bool = True

    def is_for(self, config: Config, steps: int, data: DataSource | None = None) -> bool:
        """Whether one process computes the same for a layout, and recorded what it computes."""
        return self._is_for(_side(config, data), steps)

    def _is_for(self, side: Side, steps: int) -> bool:
        if side.in_row and not self.side.in_row:
            return False
        own, other = self.side.config, side.config
        same = single_rank(own) == single_rank(other) and decoder_networks(own) == decoder_networks(
            other
        )
        return same and self.side.code == side.code and self.steps == steps


def compute_reference(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    steps: int = STEPS,
    nudges: Sequence[int] = NUDGES,
) -> Reference:
    """Record one process, and how much rounding its weights changes each tensor.

    Args:
        config: any layout of the model.
        nudges: seeds of the changes by a rounding; none: `TOLERANCE` is all that is allowed.

    Raises:
        ConfigError: the config is wrong or cannot run.
        RankError: it fails.
    """
    return _reference(cluster, _side(config, data), steps, nudges)


def _reference(
    cluster: EngineCluster, side: Side, steps: int, nudges: Sequence[int] = NUDGES
) -> Reference:
    recording, again = (_alone(cluster, side, steps) for _ in range(2))
    nudged = [
        _alone(cluster, side, steps, nudge=seed, choices=recording.choices) for seed in nudges
    ]
    spread = spread_of(combined({0: recording}), [combined({0: recorded}) for recorded in nudged])
    apart = max((recorded.scores_apart for recorded in nudged), default=0.0)
    recording.choices = [of_step.that_tie(apart) for of_step in recording.choices]
    return Reference(side, steps, recording, spread, _same(recording, again))


def explain(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    against: Config | None = None,
    steps: int = STEPS,
    reference: Reference | None = None,
    modules: Mapping[str, user_code.OwnModule] | None = None,
    loss_func: user_code.OwnLoss | None = None,
    forward_step: user_code.ForwardStep | None = None,
) -> CulpritReport:
    """Compare a layout with one process, or with another layout, tensor by tensor.

    Every operation of every layer is compared, forward and backward, then gradients before and
    after their reduction, their norm, and weights; see `mimokit.planning.seams`. Sketches travel;
    of the first seam that differs, both are run again and look at it whole.

    Args:
        data: makes the samples, as for `verify`.
        against: another layout of the same model; None: one process.
        reference: of the same model and data; computed if None.
        modules, loss_func, forward_step: as for `train`.

    Raises:
        ConfigError: a config is wrong or cannot run.
        ValueError: the layouts or the reference are of different models, data or settings; or a
            layout has a strategy between replicas, or reads samples in another order.
        RankError: a rank fails.
    """
    code = modules, loss_func, forward_step
    layout = _side(config, data, *code)
    other = None if against is None else _side(against, data, *code)
    for side in (layout, other):
        if side is not None:
            check_room(side.config, len(cluster))
    if other is not None:
        check_alike(layout.config, other.config)
    if reference is None:
        of = other if other is not None and other.in_row else layout
        reference = _reference(cluster, of, steps)
    if not reference._is_for(layout, steps):
        raise ValueError(
            f"The reference differs from {layout.name!r} in its model, global batches, runtime "
            "settings, data or steps; compute one with compute_reference."
        )
    return _Comparison(cluster, layout, other, reference).explanation()


def _side(
    config: Config,
    data: DataSource | None,
    modules: Mapping[str, user_code.OwnModule] | None = None,
    loss_func: user_code.OwnLoss | None = None,
    forward_step: user_code.ForwardStep | None = None,
) -> Side:
    layout = for_verification(finalized_copy(config))
    check_runnable(layout)
    _reject_other_samples(layout)
    return Side(layout.name, layout, checked_code(layout, modules, loss_func, forward_step, data))


def _reject_other_samples(layout: ExperimentConfig) -> None:
    if layout.strategy is not None:
        raise ValueError(
            f"{layout.name!r} has the strategy {layout.strategy.name!r} between replicas, whose "
            "exchanges are not recorded; remove the section strategy to compare one replica."
        )
    if layout.runtime.sample_order != AS_DRAWN:
        raise ValueError(
            f"{layout.name!r} has runtime.sample_order {layout.runtime.sample_order}, by which "
            "ranks read samples in another order than one process; leave it out to compare tensors."
        )


def check_alike(layout: ExperimentConfig, other: ExperimentConfig) -> None:
    """Reject two layouts of which one process would compute something else.

    Raises:
        ValueError: a sentence with the settings that differ.
    """
    alone, theirs = single_rank(layout), single_rank(other)
    if alone == theirs and decoder_networks(layout) == decoder_networks(other):
        return
    differing = [
        f"{section}.{key}"
        for section in ("model", "data", "runtime")
        for key, value in getattr(alone, section).model_dump().items()
        if value != getattr(theirs, section).model_dump()[key]
    ]
    raise ValueError(
        f"{layout.name!r} and {other.name!r} do not compute the same model on the same samples: "
        f"they differ in {', '.join(differing or ['the modules behind the language model'])}; "
        "give two layouts that differ in parallel sizes alone."
    )


def _alone(
    cluster: EngineCluster,
    side: Side,
    steps: int,
    wholes: Collection[Seam] = (),
    nudge: int | None = None,
    choices: Sequence[ExpertChoices] = (),
) -> Recording:
    alone, decoders = single_rank(side.config), decoder_networks(side.config)
    process = OneProcessRun(plan_checked(alone), alone, steps, decoders, side.code)
    seams = tuple(wholes), nudge, side.in_row, choices
    recording: Recording = cluster.run(on_rank.seams_of_one_rank, process, *seams, world_size=1)[0]
    return recording


@dataclass(frozen=True)
class _Comparison:
    cluster: EngineCluster
    layout: Side
    other: Side | None
    reference: Reference

    def explanation(self) -> CulpritReport:
        alone, plan = self.reference.recording, self.layout.plan(self.cluster)
        expected = combined(
            {0: alone} if self.other is None else self._ranks(self.other, self.reference.steps)
        )
        ranks = self._ranks(self.layout, self.reference.steps)
        actual = combined(ranks)
        order = Order(alone, _in_order(plan), plan.batch.samples_per_microbatch)
        times = _allowed_times(self.layout.config)
        differences = measured(expected, actual, self.reference.spread, times)
        compared = sorted(differences, key=order.key)
        index = next((index for index, measure in enumerate(compared) if measure.differs), None)
        divergence = None
        if index is not None:
            code: dict[tuple[str, str], str] = {}
            for recording in (alone, *ranks.values()):
                code |= recording.code
            divergence = self._looked_at(compared[index], order, plan, code)
            compared[index] = divergence.found
        unlike = (
            seam for seam in (*expected, *actual) if seam not in expected or seam not in actual
        )
        return CulpritReport(
            name=self.layout.name,
            against="one process" if self.other is None else self.other.name,
            steps=self.reference.steps,
            compared=tuple(compared),
            not_compared=tuple(sorted(dict.fromkeys(unlike), key=_by_name)),
            divergence=divergence,
            is_deterministic=self.reference.is_deterministic,
        )

    def _looked_at(
        self, first: Measured, order: Order, plan: LayoutPlan, code: Mapping[tuple[str, str], str]
    ) -> Divergence:
        seam = first.seam
        steps = seam.step + 1
        before_it = replace(seam, step=seam.step - 1)
        wholes = (seam, before_it) if seam.phase == SeamPhase.WEIGHT else (seam,)
        theirs: ByRank
        if self.other is None:
            theirs = {0: _alone(self.cluster, self.reference.side, steps, wholes)}
        else:
            theirs = self._ranks(self.other, steps, wholes)
        pieces = [piece for recorded in theirs.values() for piece in recorded.wholes.get(seam, [])]
        kind, arrays = "", None
        if pieces:
            ranks = self._ranks(self.layout, steps, wholes)
            whole = array_of(pieces)
            parts = rank_parts(
                whole, {r: recorded.wholes.get(seam, []) for r, recorded in ranks.items()}
            )
            before = [p for recorded in theirs.values() for p in recorded.wholes.get(before_it, [])]
            stale = array_of(before).values if before else None
            sizes = possible_factors(self.layout.config, plan, seam.module)
            of_samples = seam.phase.is_of_samples
            kind = kind_of(whole, parts, sizes, stale, max(CLOSE, first.allowed), of_samples)
            first = _narrowed(first, whole, parts, stale)
            arrays = whole, tuple(parts)
        microbatch = order.microbatch(first.samples[0]) if seam.phase.is_of_samples else None
        made_at = code_of(seam, code) if seam.step >= 0 else ""  # no step has made it
        return Divergence(first, microbatch, kind, made_at, arrays)

    def _ranks(self, side: Side, steps: int, wholes: Collection[Seam] = ()) -> ByRank:
        plan, alone = side.plan(self.cluster), self.reference.recording
        trained = Recording(
            epsilons=alone.epsilons[:steps],
            lengths=alone.lengths[:steps],
            choices=alone.choices[:steps],
        )
        recordings = self.cluster.run(
            on_rank.seams_rank,
            plan,
            side.config,
            trained,
            side.code,
            tuple(wholes),
            world_size=plan.world_size,
        )
        return dict(enumerate(recordings))


def _narrowed(
    first: Measured, whole: Array, parts: Sequence[OnRank], stale: Floats | None
) -> Measured:
    """Return a seam with the ranks whose part of it is wrong.

    Sketches tell of the whole tensor alone: of parts that make it up together, any may be wrong. A
    norm is compared on each rank already, and summands have no right value of their own.
    """
    if first.seam.phase == SeamPhase.NORM or any(part.share for part in parts):
        return first
    uncounted = 0.0
    if stale is not None:
        uncounted = ROUNDED_STEPS * float(np.linalg.norm(whole.values))
        whole, parts = changes(whole, parts, stale)
    samples = first.samples if first.seam.phase.is_of_samples else ()
    ranks = deviating(whole, parts, samples, first.allowed, uncounted)
    return replace(first, ranks=ranks or first.ranks)


def _allowed_times(config: ExperimentConfig) -> float:
    networks = config.model.module_architectures.values()
    routed = any(network.num_moe_experts is not None for network in networks)
    return ALLOWED_WITH_EXPERTS if routed else ALLOWED


def _by_name(seam: Seam) -> tuple[int, int, str, str]:
    return seam.step, PHASES.index(seam.phase), seam.module, seam.operation


def _in_order(plan: LayoutPlan) -> list[str]:
    return list(topological_order(plan.topology))


def _same(first: Recording, again: Recording) -> bool:
    return all(
        (values == other).all()
        for seam, record in again.sketches.items()
        for values, other in zip(record.values, first.sketches[seam].values, strict=True)
    )
