"""What a run trains and is tested on: the door through which a user's own data goes, too.

A source is a callable that takes the config and returns `TrainingData`. It is called on every
rank, so the data itself never travels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from mimokit.config import ExperimentConfig, ModuleArchitecture
from mimokit.engine.data.digits import (
    IMAGE_SIZE,
    MAX_DIGITS,
    VOCABULARY,
    DigitCollate,
    DigitStrips,
    Task,
    chance_of_exact_match,
)
from mimokit.engine.data.iterators import Collate
from mimokit.engine.data.synthetic import SyntheticCollate, SyntheticSamples
from mimokit.engine.models.vision import ENCODER_NAME
from mimokit.plan.tokens import image_geometry


@dataclass(frozen=True)
class TrainingData:
    """Data of a run.

    Attributes:
        name: shown with the results.
        train: any map-style data set.
        collate_fn: makes a batch (see `mimokit.engine.data.batch`) of a list of its items.
        test: held-out data of the same form, or None.
        chance: exact-match rate of guessing on the test data, or None if unknown.
    """

    name: str
    train: Dataset[Any]
    collate_fn: Collate
    test: Dataset[Any] | None = None
    chance: float | None = None


DataSource = Callable[[ExperimentConfig], TrainingData]


@dataclass(frozen=True)
class DigitData:
    """Strips of handwritten digits.

    Attributes:
        task: "read" or "sum".
    """

    task: Task = "read"

    def __call__(self, config: ExperimentConfig) -> TrainingData:
        """Return training and held-out strips for a config.

        Raises:
            ValueError: if its model cannot see 8x8 scans or spell the answers.
        """
        architecture = _encoder(config)
        reason = why_no_digits(config)
        if reason is not None:
            raise ValueError(f"Strips of digits do not fit the config: {reason}.")
        tokens = image_geometry(architecture).tokens
        longest = min(MAX_DIGITS, config.data.image_seq_length // tokens)
        return TrainingData(
            name=f"digits ({self.task})",
            train=DigitStrips("train", self.task, config.data.dataset_size, max_digits=longest),
            collate_fn=DigitCollate(
                config.data.seq_length, config.data.image_special_token_id, tokens
            ),
            test=DigitStrips("test", self.task, 10_000, max_digits=longest),
            chance=chance_of_exact_match(self.task, longest),
        )


def why_no_digits(config: ExperimentConfig) -> str | None:
    """Say why a config's model cannot train on strips of digits, None if it can."""
    name = config.model.encoder_module_names[0]
    geometry = image_geometry(_encoder(config))
    if name != "images":
        return f"its encoder is called {name!r}, not 'images'"
    if (geometry.height, geometry.width, geometry.num_channels) != (IMAGE_SIZE, IMAGE_SIZE, 1):
        return (
            f"its images are {geometry.height}x{geometry.width} with {geometry.num_channels} "
            f"channels, the scans {IMAGE_SIZE}x{IMAGE_SIZE} with 1"
        )
    if config.data.vocab_size < len(VOCABULARY):
        return f"data.vocab_size is {config.data.vocab_size}, less than {len(VOCABULARY)}"
    digits = min(MAX_DIGITS, config.data.image_seq_length // geometry.tokens)
    if digits < 1:
        return f"data.image_seq_length is {config.data.image_seq_length}, less than one image"
    needed = digits * geometry.tokens + digits + 1
    if config.data.seq_length < needed:
        return f"data.seq_length is {config.data.seq_length}, less than {needed}"
    return None


def synthetic_data(config: ExperimentConfig) -> TrainingData:
    """Return noise of the sizes that a config names.

    Raises:
        ValueError: if not even one image fits.
    """
    geometry = image_geometry(_encoder(config))
    images = config.data.image_seq_length // geometry.tokens
    if images < 1:
        raise ValueError(
            f"data.image_seq_length {config.data.image_seq_length} is less than the "
            f"{geometry.tokens} tokens of one image; raise it."
        )
    return TrainingData(
        name="synthetic",
        train=SyntheticSamples(
            config.data.dataset_size,
            geometry,
            images,
            config.data.seq_length,
            config.data.vocab_size,
            config.runtime.seed,
        ),
        collate_fn=SyntheticCollate(
            config.model.encoder_module_names[0],
            ENCODER_NAME,
            config.data.image_special_token_id,
            geometry.tokens,
            config.data.seq_length,
        ),
    )


def default_data(config: ExperimentConfig) -> TrainingData:
    """Return strips of digits where the model can see them, synthetic samples otherwise."""
    return DigitData()(config) if why_no_digits(config) is None else synthetic_data(config)


def _encoder(config: ExperimentConfig) -> ModuleArchitecture:
    return config.model.get_architecture(config.model.encoder_module_names[0])
