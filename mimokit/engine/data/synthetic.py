"""Noise as images and sounds, and random words, for models whose sizes fit no real data.

The samples have different numbers of items and of unmasked tokens. They are for timing and for
checking arithmetic; a model cannot learn from them.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from mimokit.architecture.tokens import AudioGeometry
from mimokit.engine.data.iterators import place_of
from mimokit.engine.data.multimodal import EncoderInputs, MultimodalSample, Presence, drawn_grids
from mimokit.planning.frames.work import SampleSizes
from mimokit.units import counted


class SyntheticSamples(Dataset[MultimodalSample]):
    """Samples of 1 to `max_items` items of every encoder and 1 to as many words as fit.

    Args:
        vocab_size: words are ids in [0, vocab_size).
        placeholders: ids that are not drawn as words.
        max_words: largest number of words in a sample; by default as many as fit.
        frames: (module, micro-batch, sample of the global micro-batch) -> items of a sample, or
            None where their number is drawn.

    Raises:
        ValueError: if the encoders leave no room for words.
    """

    def __init__(
        self,
        size: int,
        encoders: Sequence[EncoderInputs],
        presence: Presence,
        seq_length: int,
        vocab_size: int,
        seed: int,
        max_words: int | None = None,
        placeholders: Collection[int] = (),
        frames: Callable[[str, int, int], int | None] | None = None,
    ) -> None:
        most = sum(encoder.max_items * encoder.max_tokens for encoder in encoders)
        if most >= seq_length:
            raise ValueError(
                f"data.seq_length {seq_length} leaves no room for text after "
                f"{counted(most, 'token')} of encoders; raise it."
            )
        self.size = size
        self.encoders = tuple(encoders)
        self.presence = presence
        self.frames = frames
        self.seq_length = seq_length
        self.placeholders = sorted(token for token in placeholders if token < vocab_size)
        self.vocab_size = vocab_size
        self.seed = seed
        self.max_words = seq_length + 1 if max_words is None else max_words

    def __len__(self) -> int:
        return self.size

    def sample_sizes(self, index: int) -> SampleSizes:
        """Return the number of items of a sample."""
        return SampleSizes({name: len(values) for name, values in self[index]["items"].items()})

    def __getitem__(self, index: int) -> MultimodalSample:
        generator = np.random.default_rng((self.seed, index))
        place = place_of(index)
        items: dict[str, torch.Tensor] = {}
        tokens: dict[str, torch.Tensor] = {}
        grids: dict[str, torch.Tensor] = {}
        for encoder in self.encoders:
            given = self.frames(encoder.module, *place) if self.frames is not None else None
            values, counts = _noise(encoder, generator, given)
            if encoder.any_size:
                grids[encoder.module] = drawn_grids(encoder, len(values), generator)
                counts = encoder.token_grids(grids[encoder.module]).prod(1)
            if not self.presence(encoder.module, *place):
                values, counts = values[:0], counts[:0]
                grids[encoder.module] = torch.zeros(0, 3, dtype=torch.int64)
            items[encoder.module], tokens[encoder.module] = values, counts
        taken = sum(len(e.placeholders) * int(tokens[e.module].sum()) for e in self.encoders)
        room = self.seq_length + 1 - taken
        most = min(room, self.max_words)
        number = int(generator.integers(2, most + 1))
        words = generator.integers(0, self.vocab_size - len(self.placeholders), size=number)
        for placeholder in self.placeholders:  # ascending, so that no word becomes an earlier one
            words += words >= placeholder
        learned = torch.ones(len(words))
        learned[0] = 0.0
        return MultimodalSample(
            items=items, tokens=tokens, grids=grids, words=torch.tensor(words), learned=learned
        )


def _noise(
    encoder: EncoderInputs, generator: np.random.Generator, given: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return items [items, …], their number given or drawn, and the tokens of each [items]."""
    shape = encoder.geometry
    number = int(generator.integers(1, encoder.max_items + 1)) if given is None else given
    values = generator.random((number, *encoder.no_items().shape[1:]))
    tokens = [shape.tokens] * number
    if isinstance(shape, AudioGeometry):
        tokens = [
            min(shape.tokens_of(int(frames)), encoder.item_tokens)
            for frames in generator.integers(1, shape.frames + 1, size=number)
        ]
    return torch.tensor(values, dtype=torch.float32), torch.tensor(tokens)
