"""A layer, and what one micro-batch of it is on a rank."""

from dataclasses import dataclass

from mimokit.architecture.feed_forward import MixtureOfExperts
from mimokit.architecture.transformer import Transformer
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.step_time.system import System


@dataclass(frozen=True)
class LayerInput:
    """A layer with a micro-batch.

    Attributes:
        moe: its experts; None: it is dense.
        tokens: of one micro-batch on one rank, b s / c.
        visible: tokens that a token attends to on average.
    """

    net: Transformer
    moe: MixtureOfExperts | None
    sizes: ParallelSizes
    tokens: Numbers
    visible: Numbers
    system: System
