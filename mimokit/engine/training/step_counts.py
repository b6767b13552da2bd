"""What the ranks count of a step: losses and tokens, which add up over all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel
from mimokit.planning.types import LayoutPlan
from mimokit.samples import MTP_LOSS, RECONSTRUCTION_LOSS, module_column


class LossSum(NamedTuple):
    """A sum of losses, and of how many tokens or rows of pixels."""

    total: float = 0.0
    number: float = 0.0


@dataclass(frozen=True)
class StepCounts:
    """What a rank counts of a step and no other one does, or the sum over all ranks.

    Attributes:
        loss: over the unmasked tokens, including those of modules behind the language model.
        further: column -> over the unmasked tokens further on, where some are predicted, or over
            the rows of an image decoder.
        tokens: module -> those that it computed.
    """

    loss: LossSum
    further: Mapping[str, LossSum]
    tokens: Mapping[str, float]

    @classmethod
    def of_rank(cls, model: RankModel, losses: Sequence[MicrobatchLoss]) -> StepCounts:
        """Return what a rank counts of the micro-batches of a step."""
        plan, modules = model.plan, model.modules()
        counts = model.stages and modules[model.last_stage.name].ownership.counts_tokens()
        counted = losses if counts else []
        whole = [name for name, module in modules.items() if module.ownership.counts_samples()]
        further = {column: LossSum() for column in further_columns(plan).values()}
        if counted and (column := further_columns(plan).get(model.last_stage.name)):
            further[column] = LossSum(
                sum(loss.further_loss_sum for loss in counted),
                sum(loss.further_tokens for loss in counted),
            )
        of_step = LossSum(
            sum(loss.loss_sum for loss in counted), sum(loss.num_tokens for loss in counted)
        )
        tokens = {
            name: sum(loss.module_tokens.get(name, 0) for loss in losses if name in whole)
            for name in plan.modules
        }
        return cls(of_step, further, tokens)

    @property
    def further_losses(self) -> dict[str, float]:
        """Column -> mean of further losses; none where a module has none."""
        return {column: of.total / of.number for column, of in self.further.items() if of.number}

    @property
    def module_tokens(self) -> dict[str, int]:
        """Module -> tokens that it computed."""
        return {name: round(count) for name, count in self.tokens.items()}

    def numbers(self) -> dict[str, list[float]]:
        """Return the numbers of each part, which `of_numbers` puts together again."""
        parts = {"": self.loss, **self.further}
        losses = {f"loss {column}": [*loss] for column, loss in parts.items()}
        return {**losses, "tokens": [*self.tokens.values()]}

    def of_numbers(self, numbers: Mapping[str, Sequence[float]]) -> StepCounts:
        """Return counts of the same parts."""
        return StepCounts(
            LossSum(*numbers["loss "]),
            {column: LossSum(*numbers[f"loss {column}"]) for column in self.further},
            dict(zip(self.tokens, numbers["tokens"], strict=True)),
        )


def sum_numbers(numbers: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the sums over all ranks. Collective; gloo would send number by number in a ring.

    Args:
        numbers: all ranks have the same names, with as many numbers each.
    """
    values = [*itertools.chain.from_iterable(numbers.values())]
    own = torch.tensor(values, dtype=torch.float64, device=rank_device())
    pieces = [] if dist.get_rank() else [own.clone() for _ in range(dist.get_world_size())]
    dist.gather(own, pieces or None)
    total = torch.stack(pieces).sum(0) if pieces else own
    dist.broadcast(total, 0)
    summed = iter(total.tolist())
    return {name: [*itertools.islice(summed, len(of))] for name, of in numbers.items()}


def further_columns(plan: LayoutPlan) -> dict[str, str]:
    """Return module -> the column of its loss that is not in that of the step."""
    language = plan.llm_module_name
    images = {name: module_column(name, RECONSTRUCTION_LOSS) for name in plan.topology[language]}
    return {language: MTP_LOSS, **images}
