"""What the samples of a micro-batch cost the modules of a layout, from sizes known beforehand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mimokit.architecture.flops import forward_flops, passes
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.tokens import geometry_of
from mimokit.config import ExperimentSections
from mimokit.config.runtime import FRAME_PARALLEL
from mimokit.planning.frames.samples import SampleWork
from mimokit.planning.types import LayoutPlan
from mimokit.units import listed, shown


@dataclass(frozen=True)
class SampleSizes:
    """What is known of a sample before it is read.

    Attributes:
        items: encoder -> number of its images, frames or recordings. An encoder that is left out
            has none. Encoders pad each to full size, so its patches do not matter.
        tokens: of the language model. None where sequences are padded to one length, which cost the
            same.
    """

    items: Mapping[str, int]
    tokens: int | None = None


class SampleCosts:
    """Time of every sample on the replicas of a layout, in operations of one rank.

    The encoders of mimokit pad an image or a recording to full size, so that each costs the same,
    and the sequence of the language model costs what its tokens do. With tensor, context or
    pipeline parallelism, the ranks of a replica share its operations.
    """

    def __init__(self, config: ExperimentSections, plan: LayoutPlan) -> None:
        described, frozen = model_of_config(config.model), config.model.frozen_modules
        self.language = config.model.llm_module_name
        self._seq_length = config.data.seq_length
        self._replicas = {name: plan.modules[name].data_parallel for name in _names(config)}
        self._share = {
            name: plan.modules[name].size // replicas for name, replicas in self._replicas.items()
        }
        self._item = {
            branch.name: passes(branch.name, frozen, ())
            * forward_flops(
                branch, geometry_of(config.model.get_architecture(branch.name)).positions, 1
            ).total
            for branch in described.branches
        }
        trained = passes(self.language, frozen, tuple(self._item))
        self._sequence: Callable[[int], float] = lambda tokens: (
            trained * forward_flops(described.language, tokens, 1).total
        )
        self._waiting = _waiting_together(config, self._replicas)

    def works(self, sizes: Sequence[SampleSizes]) -> list[SampleWork]:
        """Return the works of the samples of a micro-batch, for `order_samples`.

        Raises:
            ValueError: a number is negative, or of a module that is not an encoder of the model.
        """
        for number, sample in enumerate(sizes):
            self._check(number, sample)
        works = []
        for names in self._waiting:
            seconds = np.array([sum(self._time(name, of) for name in names) for of in sizes])
            works.append(SampleWork.of(seconds, self._replicas[names[0]]))
        return works

    def _time(self, name: str, sizes: SampleSizes) -> float:
        if name == self.language:
            tokens = self._seq_length if sizes.tokens is None else sizes.tokens
            return self._sequence(max(tokens, 1)) / self._share[name]
        return sizes.items.get(name, 0) * self._item[name] / self._share[name]

    def _check(self, sample: int, sizes: SampleSizes) -> None:
        if unknown := sorted(set(sizes.items) - set(self._item)):
            raise ValueError(
                f"Sample {sample} of the micro-batch states items of {unknown[0]!r}, which is not "
                f"an encoder of the model; the encoders are {listed(list(self._item)) or 'none'}."
            )
        tokens = 0 if sizes.tokens is None else sizes.tokens
        for name, size in {**sizes.items, "tokens": tokens}.items():
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
                raise ValueError(
                    f"Sample {sample} of the micro-batch states {shown(size)} for {name!r}; it is "
                    "a whole number of at least 0."
                )


def _names(config: ExperimentSections) -> tuple[str, ...]:
    return (*config.model.encoder_module_names, config.model.llm_module_name)


def _waiting_together(
    config: ExperimentSections, replicas: Mapping[str, int]
) -> tuple[tuple[str, ...], ...]:
    """Return the modules whose times add up before any replica waits for another one.

    Those of as many replicas on the same ranks, as long as frames are not dispatched between them.
    """
    names = _names(config)
    apart = config.model.deployment_mode == "heterogeneous"
    if apart or FRAME_PARALLEL in config.runtime.patch_type:
        return tuple((name,) for name in names)
    numbers = dict.fromkeys(replicas.values())
    return tuple(tuple(n for n in names if replicas[n] == number) for number in numbers)
