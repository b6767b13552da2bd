"""Images of noise and random words, for layouts whose sizes fit no real data.

Good for timing and for proving arithmetic: samples have different numbers of images and of
unmasked tokens. Nothing can be learned from them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from mimokit.plan.tokens import ImageGeometry


class SyntheticSamples(Dataset[dict[str, torch.Tensor]]):
    """Samples of 1 to `max_images` images and 1 to as many words as fit.

    Args:
        size: samples.
        geometry: of an image.
        max_images: most images of a sample.
        seq_length: tokens of a sample.
        vocab_size: words are ids in [0, vocab_size).
        seed: which samples.
    """

    def __init__(
        self,
        size: int,
        geometry: ImageGeometry,
        max_images: int,
        seq_length: int,
        vocab_size: int,
        seed: int,
    ) -> None:
        if max_images * geometry.tokens >= seq_length:
            raise ValueError(
                f"data.seq_length {seq_length} leaves no room for text after "
                f"{max_images * geometry.tokens} image tokens; raise it."
            )
        self.size = size
        self.geometry = geometry
        self.max_images = max_images
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = np.random.default_rng((self.seed, index))
        shape = self.geometry
        images = int(generator.integers(1, self.max_images + 1))
        pixels = generator.random((images, shape.num_channels, shape.height, shape.width))
        room = self.seq_length + 1 - images * shape.tokens
        words = generator.integers(0, self.vocab_size, size=int(generator.integers(2, room + 1)))
        return {
            "pixel_values": torch.tensor(pixels, dtype=torch.float32),
            "words": torch.tensor(words),
        }


class SyntheticCollate:
    """Lays samples out as image tokens, words, padding; all words but the first are learned.

    Args:
        modality: name of the encoder's module.
        encoder: name of the encoder within it.
        image_token_id: the placeholder of one image token.
        tokens_per_image: placeholders per image.
        seq_length: tokens per sequence.
    """

    def __init__(
        self,
        modality: str,
        encoder: str,
        image_token_id: int,
        tokens_per_image: int,
        seq_length: int,
    ) -> None:
        self.modality = modality
        self.encoder = encoder
        self.image_token_id = image_token_id
        self.tokens_per_image = tokens_per_image
        self.seq_length = seq_length

    def __call__(self, samples: list[dict[str, torch.Tensor]]) -> dict[str, object]:
        """Return a batch in the form that `mimokit.engine.data.batch` describes."""
        tokens = torch.zeros(len(samples), self.seq_length + 1, dtype=torch.int64)
        learned = torch.zeros(len(samples), self.seq_length + 1)
        for row, sample in enumerate(samples):
            begin = len(sample["pixel_values"]) * self.tokens_per_image
            end = begin + len(sample["words"])
            tokens[row, :begin] = self.image_token_id
            tokens[row, begin:end] = sample["words"]
            learned[row, begin + 1 : end] = 1.0
        labels = tokens[:, 1:].clone()
        labels[labels == self.image_token_id] = 0
        positions = torch.arange(self.seq_length).expand(len(samples), -1)
        return {
            "input_ids": tokens[:, :-1].contiguous(),
            "labels": labels,
            "loss_mask": learned[:, 1:].contiguous(),
            "position_ids": positions.contiguous(),
            "modality_inputs": {
                self.modality: {
                    "items_per_sample": torch.tensor([len(s["pixel_values"]) for s in samples]),
                    self.encoder: {"pixel_values": torch.cat([s["pixel_values"] for s in samples])},
                }
            },
        }
