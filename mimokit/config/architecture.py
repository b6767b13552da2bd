"""The size of one module's network."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel

Positive = Annotated[int, Field(ge=1)]


class ModuleArchitecture(ConfigModel):
    """The network of one module.

    Attributes:
        num_layers: transformer layers, all pipeline stages together.
        hidden_size: width of an activation.
        num_attention_heads: heads of every attention layer.
        seq_length: longest sequence, in tokens (of an encoder: in patches).
        vocab_size: rows of the token embedding; 0 for a module that embeds no tokens.
        image_size: pixels per side of an image, or None for a module that reads no images.
        patch_size: pixels per side of a patch.
        num_channels: channels of an image.
        merge_size: merge_size x merge_size patches become one token before the projector.
        ffn_hidden_size: width inside the feed-forward layer, or None for 4 x hidden_size.
    """

    num_layers: Positive
    hidden_size: Positive
    num_attention_heads: Positive
    seq_length: Positive
    vocab_size: Annotated[int, Field(ge=0)]
    image_size: Positive | None = None
    patch_size: Positive | None = None
    num_channels: Positive = 1
    merge_size: Positive = 1
    ffn_hidden_size: Positive | None = None

    @property
    def feed_forward_size(self) -> int:
        """Width inside the feed-forward layer: ffn_hidden_size or 4 x hidden_size."""
        return self.ffn_hidden_size or 4 * self.hidden_size
