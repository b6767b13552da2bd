"""A text head: embeds the words of a sample and runs causal layers over them, on separate ranks.

Its output for a word takes the place of the word in the language model, as the rows of an image
take the places of its placeholders. Texts are padded to the longest. As the layers are causal, no
word attends to the padding, and no tokens are made of it.
"""

import torch

from mimokit.architecture.tokens import TextGeometry
from mimokit.engine.megatron import (
    AttnMaskType,
    AudioModalitySubmodules,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerConfig,
)
from mimokit.engine.megatron.sums import embedding
from mimokit.engine.models.encoder import Encoder, EncoderKind, OuterNorms, places_in_row
from mimokit.engine.models.patches import ITEM_TOKENS
from mimokit.engine.models.transformer import StagePart, causal_mask
from mimokit.engine.rotary import RotaryPositions
from mimokit.units import counted


class TextTransformer(Encoder):
    """Causal layers over the words of every sample.

    Args:
        vocab_size: rows of the embedding, which is replicated over tensor-parallel ranks.
        table: rows of the table of learned positions, of which the first are used; 0: positions are
            rotary.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_spec: ModuleSpec,
        geometry: TextGeometry,
        vocab_size: int,
        table: int,
        rotary: RotaryPositions,
        outer_norms: OuterNorms,
        part: StagePart,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__(config, part)
        self.geometry = geometry
        self._turning = None if table else rotary
        if part.first:
            self.word_embedding = self._vectors(vocab_size)
            if table:
                self.position_embedding = self._vectors(table)
        self._build_layers(layer_spec, outer_norms, pg_collection)

    def embed(self, words: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Words to [positions, texts, hidden]; on the first stage.

        Args:
            words: [texts, positions], token ids, padded to the longest text.

        Raises:
            ValueError: texts are padded to a different length.
        """
        if words.shape[1] != self.geometry.positions:
            raise ValueError(
                f"The text head takes {counted(self.geometry.positions, 'word')}, not "
                f"{words.shape[1]}."
            )
        embedded = embedding(words, self.word_embedding)
        if self._turning is None:
            embedded = embedded + self.position_embedding[: words.shape[1]]
        return embedded.transpose(0, 1).contiguous()

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 texts."""
        return no_texts(self.geometry, self.word_embedding.device)

    def finish(self, hidden: torch.Tensor, sizes: torch.Tensor | None = None) -> torch.Tensor:
        """[positions, texts, hidden] to [words, hidden], without padding."""
        assert sizes is not None
        counted = torch.arange(self.geometry.positions, device=hidden.device)
        return hidden.transpose(0, 1)[counted < sizes[:, None]]

    def _lengths(self, sizes: torch.Tensor | None, items: int) -> list[int]:
        return super()._lengths(sizes, items) if sizes is None else sizes.tolist()

    def _rotary(self, sizes: torch.Tensor | None) -> torch.Tensor | None:
        return None if self._turning is None else self._rotary_in_row(self._turning)

    def _mask(self, sizes: torch.Tensor) -> torch.Tensor:
        return causal_mask(self.geometry.positions, sizes.device)


def no_texts(geometry: TextGeometry, device: torch.device) -> dict[str, torch.Tensor]:
    """Return 0 texts, as encoders take them."""
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return {"words": none.new_zeros(0, geometry.positions), ITEM_TOKENS: none}


TEXT = EncoderKind(
    name="text_encoder",
    encoder=TextTransformer,
    submodules=AudioModalitySubmodules,  # Megatron has none for words; this one adds nothing
    mask_type=AttnMaskType.causal,
    parameters=lambda architecture: {
        "geometry": TextGeometry(architecture.seq_length),
        "vocab_size": architecture.vocab_size,
        **places_in_row(architecture, architecture.seq_length),
    },
    merged=lambda architecture: 1,
    sizes="tokens_per_item",
)
