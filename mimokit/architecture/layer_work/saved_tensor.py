"""An activation that a layer keeps for its backward pass."""

from dataclasses import dataclass
from typing import Literal

from mimokit.config.sizes import Numbers

Part = Literal["residual", "attention", "feed-forward"]


@dataclass(frozen=True)
class SavedTensor:
    """An activation that a layer keeps.

    Attributes:
        part: of the layer; dispatched tokens and router scores belong to the feed-forward part.
        bytes: of a number; None: as wide as activations.
        again: modules of Megatron's `recompute_modules` whose recomputation makes it again, so that
            it is not kept. What a module takes in is kept, and the output of the attention core,
            which the projection multiplies.
        only_product: only the gradient of a matrix needs it, so that it has the precision of
            products, and a frozen layer does not keep it. The output of the attention core is not
            among them, because the core keeps it.
    """

    part: Part
    numbers: Numbers
    bytes: int | None = None
    only_product: bool = False
    again: frozenset[str] = frozenset()
