"""Faults of attention and of the positions that ranks share."""

from functools import partial
from typing import Any

from tests import seams
from tests.experiment.culprit.faults.fault import (
    BACKWARD,
    FORWARD,
    IMAGES,
    LANGUAGE,
    Fault,
    on_rank,
    scaled,
)
from tests.experiment.culprit.faults.layouts import parts
from tests.planted import replacing
from tests.whole_runs import (
    latent_config,
    learned_positions_in_slices,
    learned_positions_on_contexts,
)


def _transposed_heads(original: Any) -> Any:
    """Bring the columns of a rank's heads into reverse order."""
    return lambda self, *args, **named: original(self, *args, **named).flip(-1)


@replacing
def _gradients_of_queries_halved(
    original: Any, self: Any, query: Any, *args: Any, **named: Any
) -> Any:
    """Halve the gradients that latent attention gives to its queries."""
    if self.config.multi_latent_attention and query.requires_grad:
        query = query.view_as(query)
        query.register_hook(lambda gradient: gradient / 2)
    return original(self, query, *args, **named)


@replacing
def _slice_of_next_rank(original: Any, hidden: Any, config: Any, group: Any) -> Any:
    """Share positions in the order of another group.

    Finding 7 of Megatron-LM 7452, and in part 5.
    """
    return original(hidden.roll(len(hidden) // group.size(), 0), config, group)


FAULTS = (
    Fault("attention of a wrong scale", parts, seams.MEGATRON_ATTENTION, partial(scaled, 0.5),
          IMAGES, "core_attention", FORWARD, "1 / tensor_parallel"),
    Fault("attention of a wrong scale on one rank", parts, seams.MEGATRON_ATTENTION,
          partial(on_rank, 1, partial(scaled, 0.5)),
          IMAGES, "core_attention", FORWARD, ranks=(1,), code=r"transformer/attention\.py:\d+$"),
    Fault("heads in reverse order", parts, seams.MEGATRON_ATTENTION, _transposed_heads,
          IMAGES, "core_attention", FORWARD),
    Fault("attention over contexts of a wrong scale", learned_positions_on_contexts,
          seams.ATTENTION, partial(scaled, 0.5),
          IMAGES, "core_attention", FORWARD, "0.5 times"),
    Fault("gradients of the queries of latent attention on one rank", latent_config,
          seams.ATTENTION, partial(on_rank, 1, _gradients_of_queries_halved),
          LANGUAGE, "core_attention", BACKWARD, ranks=(1,)),
    Fault("positions shared in the order of another group", learned_positions_in_slices,
          seams.SLICE_OF_RANK, _slice_of_next_rank,
          IMAGES, "layers.0.input", FORWARD, "holds the part of"),
    Fault("rows that all contexts compute alike counted by each", learned_positions_on_contexts,
          seams.ALIKE_ON_CONTEXTS, lambda original: lambda rows, group: rows,
          IMAGES, "projector.linear_fc2", BACKWARD, "context_parallel"),
    Fault("an encoder learns from the tokens of one context", learned_positions_on_contexts,
          seams.FOR_ALL_RANKS, lambda original: lambda rows, group: rows,
          IMAGES, "rows", BACKWARD),
)  # fmt: skip
