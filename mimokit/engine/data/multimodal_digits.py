"""Digits that are seen, heard and read: one task for encoders of several kinds.

A sample has scans of digits, spoken digits, and one or two digits as text. Every vision encoder
receives the scans in its image size (or, if it accepts any size, each in a different size), and
every audio encoder the spoken digits. The answer is all digits in this order, except those that are
absent according to the presence pattern of the data config.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from mimokit.architecture.tokens import AudioGeometry, ImageGeometry
from mimokit.engine.data.digits import END_TOKEN, MAX_DIGITS, READ_TOKEN, Split, load_scans
from mimokit.engine.data.iterators import place_of
from mimokit.engine.data.multimodal import EncoderInputs, MultimodalSample, Presence, drawn_grids
from mimokit.engine.data.speech import log_mel, padded, speak
from mimokit.engine.models.patches import tokens_of_grid
from mimokit.planning.frames import SampleSizes

MAX_WRITTEN = 2


class MultimodalDigits(Dataset[MultimodalSample]):
    """Digits for every encoder, drawn at random but always the same for one index.

    Args:
        split: "train" or "test"; their scans are disjoint, and so are the distortions of speech.
    """

    def __init__(
        self,
        encoders: Sequence[EncoderInputs],
        presence: Presence,
        split: Split = "train",
        size: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.encoders = tuple(encoders)
        self.presence = presence
        self.split = split
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> MultimodalSample:
        if not 0 <= index < self.size:
            raise IndexError(f"Sample {index} asked for, but there are {self.size}.")
        generator = np.random.default_rng((self.seed, self.split == "test", index))
        scans, shown = self._seen(generator)
        spoken, said = self._heard(generator)
        written = generator.integers(0, 10, size=int(generator.integers(1, MAX_WRITTEN + 1)))
        items: dict[str, torch.Tensor] = {}
        tokens: dict[str, torch.Tensor] = {}
        grids: dict[str, torch.Tensor] = {}
        answered: dict[str, list[int]] = {"seen": [], "heard": []}
        for encoder in self.encoders:
            audio = isinstance(encoder.geometry, AudioGeometry)
            digits = said if audio else shown
            if not self.presence(encoder.module, *place_of(index)):
                items[encoder.module] = encoder.no_items()
                tokens[encoder.module] = torch.zeros(0, dtype=torch.int64)
                grids[encoder.module] = torch.zeros(0, 3, dtype=torch.int64)
                continue
            answered["heard" if audio else "seen"] = digits
            if encoder.any_size:
                grids[encoder.module] = drawn_grids(encoder, len(scans), generator)
            items[encoder.module], tokens[encoder.module] = (
                _recordings(encoder, spoken)
                if audio
                else _images(encoder, scans, grids.get(encoder.module))
            )
        question = [*written.tolist(), READ_TOKEN]
        answer = [*answered["seen"], *answered["heard"], *written.tolist(), END_TOKEN]
        learned = torch.zeros(len(question) + len(answer))
        learned[len(question) :] = 1.0
        words = torch.tensor(question + answer)
        return MultimodalSample(
            items=items, tokens=tokens, grids=grids, words=words, learned=learned
        )

    def sample_sizes(self, index: int) -> SampleSizes:
        """Return the numbers of scans and spoken digits of a sample, without reading it."""
        generator = np.random.default_rng((self.seed, self.split == "test", index))
        _, shown = self._seen(generator)
        said = _count(generator, most_digits(self.encoders, AudioGeometry))
        place = place_of(index)
        return SampleSizes(
            {
                encoder.module: said if isinstance(encoder.geometry, AudioGeometry) else len(shown)
                for encoder in self.encoders
                if self.presence(encoder.module, *place)
            }
        )

    def _seen(self, generator: np.random.Generator) -> tuple[torch.Tensor, list[int]]:
        """Return scans [n, 8, 8] and their digits."""
        images, digits = load_scans(self.split)
        most = most_digits(self.encoders, ImageGeometry)
        chosen = generator.integers(0, len(digits), size=_count(generator, most))
        return images[chosen], [int(digits[place]) for place in chosen]

    def _heard(self, generator: np.random.Generator) -> tuple[list[np.ndarray], list[int]]:
        most = most_digits(self.encoders, AudioGeometry)
        digits = generator.integers(0, 10, size=_count(generator, most)).tolist()
        return [speak(digit, generator) for digit in digits], digits


def most_digits(
    encoders: Sequence[EncoderInputs], kind: type[ImageGeometry] | type[AudioGeometry]
) -> int:
    """Return the most digits of a sample that all encoders of a kind have room for."""
    room = [encoder.max_items for encoder in encoders if isinstance(encoder.geometry, kind)]
    return min(MAX_DIGITS, *room) if room else 0


def chance_of_all_digits(
    encoders: Sequence[EncoderInputs],
    presence: Presence,
    num_microbatches: int,
    samples_per_microbatch: int,
) -> float:
    """Return the exact-match rate of a guess that knows all lengths and what is written.

    n digits: 10^-n, averaged over the lengths and over the places of a step.
    """
    rates = []
    for place in itertools.product(range(num_microbatches), range(samples_per_microbatch)):
        here = [encoder for encoder in encoders if presence(encoder.module, *place)]
        seen = any(isinstance(encoder.geometry, ImageGeometry) for encoder in here)
        heard = any(isinstance(encoder.geometry, AudioGeometry) for encoder in here)
        most = most_digits(encoders, ImageGeometry), most_digits(encoders, AudioGeometry)
        rates.append(_guess(most[0] if seen else 0) * _guess(most[1] if heard else 0))
    return float(np.mean(rates))


def _guess(most: int) -> float:
    """Return the chance to guess 1 to `most` digits, 1 for none."""
    return float(np.mean([10.0**-length for length in range(1, most + 1)])) if most else 1.0


def _count(generator: np.random.Generator, most: int) -> int:
    return int(generator.integers(1, most + 1)) if most else 0


def _images(
    encoder: EncoderInputs, scans: torch.Tensor, grids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = encoder.geometry
    assert isinstance(shape, ImageGeometry)
    if grids is None:
        images = _scaled(scans, shape.height, shape.width)
        return images, torch.full((len(scans),), shape.tokens)
    images = torch.zeros(len(scans), 1, shape.height, shape.width)
    for place, (_, rows, columns) in enumerate(grids.tolist()):
        height, width = rows * shape.patch_size, columns * shape.patch_size
        images[place, :, :height, :width] = _scaled(scans[place : place + 1], height, width)[0]
    return images, tokens_of_grid(grids, shape)


def _scaled(scans: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return torch.nn.functional.interpolate(
        scans[:, None], size=(height, width), mode="bilinear", align_corners=False
    )


def _recordings(
    encoder: EncoderInputs, spoken: Sequence[np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = encoder.geometry
    assert isinstance(shape, AudioGeometry)
    frames = [log_mel(recording, shape.mel_bins) for recording in spoken]
    tokens = [shape.tokens_of(recording.shape[1]) for recording in frames]
    recordings = torch.stack([padded(recording, shape.frames) for recording in frames])
    return recordings, torch.tensor(tokens)
