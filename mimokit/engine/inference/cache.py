"""Keys and values of earlier tokens, sharded over the ranks as the heads are."""

from __future__ import annotations

import torch

from mimokit.architecture.tensor_cut import Span


class KeyValueCache:
    """Keys and values of the layers of a rank.

    Bytes: 2 x layers x groups x width x tokens x batch x bytes of an entry.

    Args:
        layers: of the stage.
        shape: batch, groups of this rank, tokens at most, width of a head.
        like: a tensor of the dtype and on the device.

    Attributes:
        length: tokens that are held.
    """

    def __init__(self, layers: Span, shape: tuple[int, int, int, int], like: torch.Tensor) -> None:
        self.length = 0
        self._first = layers[0]
        self._held = like.new_zeros(2, layers[1] - layers[0], *shape)

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return self._held.numel() * self._held.element_size()

    def extended(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the new tokens of a layer and return all: [batch, groups, tokens, width].

        Args:
            layer: numbered as in the whole model.
            keys: [batch, groups, new tokens, width].
            values: likewise.
        """
        stop = self.length + keys.shape[2]
        both = self._held[:, layer - self._first]
        both[0, :, :, self.length : stop] = keys
        both[1, :, :, self.length : stop] = values
        return both[0, :, :, :stop], both[1, :, :, :stop]

    def advance(self, tokens: int) -> None:
        """Count the new tokens, once all layers have them."""
        self.length += tokens
