"""The training and test data of a run, including data of the user.

A source is a callable that takes the config and returns `TrainingData`. It is called on every
rank, so that the data itself is not sent.
"""

import functools
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from mimokit.architecture.tokens import AudioGeometry, ImageGeometry, image_geometry
from mimokit.config import ExperimentSections, ModuleArchitecture
from mimokit.config.user_code import named_source
from mimokit.engine.data import multimodal_digits
from mimokit.engine.data.digits import (
    IMAGE_SIZE,
    MAX_DIGITS,
    PADDING_TOKEN,
    VOCABULARY,
    DigitCollate,
    DigitStrips,
    Task,
    chance_of_exact_match,
)
from mimokit.engine.data.iterators import Collate
from mimokit.engine.data.multimodal import EncoderInputs, MultimodalCollate, encoder_inputs
from mimokit.engine.data.multimodal_digits import MAX_WRITTEN, MultimodalDigits, most_digits
from mimokit.engine.data.speech import longest_frames
from mimokit.engine.data.synthetic import SyntheticSamples
from mimokit.units import counted

IMAGES = "images"
"""The one encoder of models that read strips of digits."""


@dataclass(frozen=True)
class TrainingData:
    """Data of a run.

    Attributes:
        train: any map-style data set.
        collate_fn: list of its items -> batch (see `mimokit.engine.data.batch`).
        test: held-out data of the same form, or None.
        chance: exact-match rate of guessing on the test data, or None if unknown.
    """

    name: str
    train: Dataset[Any]
    collate_fn: Collate
    test: Dataset[Any] | None = None
    chance: float | None = None


DataSource = Callable[[Any], TrainingData]


def data_of(source: DataSource, config: ExperimentSections) -> TrainingData:
    """Call a source.

    Raises:
        TypeError: it did not return `TrainingData`.
        ValueError: its test set has no samples.
    """
    data = source(config)
    if not isinstance(data, TrainingData):
        raise TypeError(
            f"The data function gave a {type(data).__name__}; it must give a TrainingData "
            "(mimokit.engine.data.sources)."
        )
    if isinstance(data.test, Sized) and not len(data.test):
        raise ValueError("The test set has 0 samples; give it at least one, or give no test set.")
    return data


@dataclass(frozen=True)
class DigitData:
    """Strips of handwritten digits."""

    task: Task = "read"

    def __call__(self, config: ExperimentSections) -> TrainingData:
        """Return training and held-out strips for a config.

        Raises:
            ValueError: if its model cannot see 8x8 scans or spell the answers.
        """
        reason = why_no_digits(config)
        if reason is not None:
            raise ValueError(f"Strips of digits do not fit the config: {reason}.")
        (images,) = encoder_inputs(config)
        lengths, most = config.data.modality_frames.get(IMAGES), _longest_strip(config)
        at = None if lengths is None else functools.partial(config.data.frames_of, IMAGES)
        strips = functools.partial(DigitStrips, task=self.task, max_digits=most, frames=at)
        return TrainingData(
            name=f"digits ({self.task})",
            train=strips("train", size=config.data.dataset_size),
            collate_fn=DigitCollate(
                config.data.seq_length, images.placeholders, images.geometry.tokens
            ),
            test=strips("test", size=10_000),
            chance=chance_of_exact_match(self.task, most, lengths),
        )


def why_no_digits(config: ExperimentSections) -> str | None:
    """Return why a config's model cannot train on strips of digits, or None if it can."""
    names = config.model.input_module_names
    if len(names) != 1:
        return f"it has {len(names)} encoders, not one"
    name = names[0]
    if config.model.get_architecture(name).modality != "vision":
        return f"its encoder {name!r} hears and does not see"
    geometry = image_geometry(_encoder(config))
    if name != IMAGES:
        return f"its encoder is called {name!r}, not {IMAGES!r}"
    if (geometry.height, geometry.width, geometry.num_channels) != (IMAGE_SIZE, IMAGE_SIZE, 1):
        return (
            f"its images are {geometry.height}x{geometry.width} with {geometry.num_channels} "
            f"channels, the scans {IMAGE_SIZE}x{IMAGE_SIZE} with 1"
        )
    if geometry.any_size:
        return f"its encoder {name!r} takes images of any size, the scans have one"
    if _three_axes(config):
        return "its language model has positions of three axes, strips have places in a row"
    if config.data.vocab_size < len(VOCABULARY):
        return f"data.vocab_size is {config.data.vocab_size}, less than {len(VOCABULARY)}"
    if (reason := _placeholder_of_a_character(config)) is not None:
        return reason
    digits = _longest_strip(config)
    if digits < 1 and IMAGES not in config.data.modality_frames:
        return f"data.image_seq_length is {config.data.image_seq_length}, less than one image"
    paths = sum(config.model.ends_of(IMAGES).values())
    needed = digits * geometry.tokens * paths + digits + 1
    if config.data.seq_length < needed:
        return f"data.seq_length is {config.data.seq_length}, less than {needed}"
    return None


def _longest_strip(config: ExperimentSections) -> int:
    lengths = config.data.modality_frames.get(IMAGES)
    tokens = image_geometry(_encoder(config)).tokens
    return max(lengths) if lengths else min(MAX_DIGITS, config.tokens_of(IMAGES) // tokens)


def _placeholder_of_a_character(config: ExperimentSections) -> str | None:
    for name, token in config.model.special_token_ids.items():
        if token < len(VOCABULARY):
            return f"the placeholder {token} of {name!r} is a character of the answers"
    return None


@dataclass(frozen=True)
class MultimodalDigitData:
    """Digits that are seen, heard and read, for any number of encoders."""

    def __call__(self, config: ExperimentSections) -> TrainingData:
        """Return training and held-out samples for a config.

        Raises:
            ValueError: if its encoders cannot see or hear digits, or its model spell the answers.
        """
        reason = why_no_multimodal_digits(config)
        if reason is not None:
            raise ValueError(f"Digits seen and heard do not fit the config: {reason}.")
        encoders, data = _without_text_heads(config), config.data
        kinds = [config.model.get_architecture(e.module).modality for e in encoders]
        language = config.model.get_parallelism(config.model.llm_module_name)
        samples_per_microbatch = data.base_batch_size * (language.data_parallel or 1)
        views = {"vision": kinds.count("vision"), "audio": kinds.count("audio")}
        return TrainingData(
            name="digits (" + " + ".join([*_counted(views), "text"]) + ")",
            train=MultimodalDigits(encoders, data.is_present, "train", data.dataset_size),
            collate_fn=_collate(config, PADDING_TOKEN),
            test=MultimodalDigits(encoders, data.is_present, "test", 10_000),
            chance=multimodal_digits.chance_of_all_digits(
                encoders, data.is_present, data.num_microbatches, samples_per_microbatch
            ),
        )


def _counted(kinds: dict[str, int]) -> list[str]:
    return [f"{n} x {kind}" if n > 1 else kind for kind, n in kinds.items() if n]


def why_no_multimodal_digits(config: ExperimentSections) -> str | None:
    """Return why a config's model cannot train on digits seen and heard, or None if it can."""
    encoders, data = _without_text_heads(config), config.data
    if data.modality_frames:
        return "data.modality_frames says how many images there are, these digits are as many drawn"
    for encoder in encoders:
        shape, name = encoder.geometry, encoder.module
        if encoder.item_tokens < shape.tokens:
            return (
                f"a sample has room for {encoder.item_tokens} of the {shape.tokens} tokens of an "
                f"item of module {name!r}"
            )
        if isinstance(shape, ImageGeometry) and shape.num_channels != 1:
            return f"the images of module {name!r} have {shape.num_channels} channels, not 1"
        if isinstance(shape, AudioGeometry) and shape.frames < longest_frames():
            return (
                f"module {name!r} takes {counted(shape.frames, 'frame')}, less than "
                f"{longest_frames()}"
            )
    if data.vocab_size < len(VOCABULARY):
        return f"data.vocab_size is {data.vocab_size}, less than {len(VOCABULARY)}"
    if (reason := _placeholder_of_a_character(config)) is not None:
        return reason
    seen, heard = (most_digits(encoders, kind) for kind in (ImageGeometry, AudioGeometry))
    placeholders = sum(
        (heard if isinstance(e.geometry, AudioGeometry) else seen) * e.max_tokens for e in encoders
    )
    words = seen + heard + 2 * MAX_WRITTEN + 1
    needed = placeholders + words
    for head in _text_heads(config):
        most = head.item_tokens
        if most <= words:
            return f"module {head.module!r} reads {counted(most, 'word')}, less than {words + 1}"
    if data.seq_length < needed:
        return f"data.seq_length is {data.seq_length}, less than {needed}"
    return None


def synthetic_data(config: ExperimentSections) -> TrainingData:
    """Return noise of the sizes in a config.

    Raises:
        ValueError: if not even one item of an encoder fits, or no text next to them.
    """
    encoders, data = _without_text_heads(config), config.data
    placeholders = set(config.model.special_token_ids.values())
    samples = functools.partial(
        SyntheticSamples,
        encoders=encoders,
        presence=data.is_present,
        seq_length=data.seq_length,
        vocab_size=data.vocab_size,
        max_words=min([head.item_tokens for head in _text_heads(config)], default=data.seq_length),
        placeholders=placeholders,
        frames=data.frames_of,
    )
    seed, validation = config.runtime.seed, config.runtime.validation
    return TrainingData(
        name="synthetic",
        train=samples(data.dataset_size, seed=seed),
        # Noise cannot be learned: there is nothing to test, but a loss to compare.
        test=None if validation is None else samples(10_000, seed=seed + 1),
        collate_fn=_collate(config, padding=min({*range(len(placeholders) + 1)} - placeholders)),
    )


def _text_heads(config: ExperimentSections) -> list[EncoderInputs]:
    return [encoder for encoder in encoder_inputs(config) if encoder.reads_words]


def _without_text_heads(config: ExperimentSections) -> list[EncoderInputs]:
    return [encoder for encoder in encoder_inputs(config) if not encoder.reads_words]


def _collate(config: ExperimentSections, padding: int) -> MultimodalCollate:
    encoders, seq_length = encoder_inputs(config), config.data.seq_length
    return MultimodalCollate(encoders, seq_length, padding, three_axes=_three_axes(config))


def default_data(config: ExperimentSections) -> TrainingData:
    """Return the data that `data.source` names, or else digits where the model can read them.

    Models that can read no digits get synthetic samples.
    """
    named = named_source(config)
    if named is not None:
        return data_of(named, config)
    if _one_vision_encoder(config):
        return DigitData()(config) if why_no_digits(config) is None else synthetic_data(config)
    if why_no_multimodal_digits(config) is None:
        return MultimodalDigitData()(config)
    return synthetic_data(config)


def _one_vision_encoder(config: ExperimentSections) -> bool:
    networks = [config.model.get_architecture(name) for name in config.model.input_module_names]
    return (
        len(networks) == 1
        and networks[0].modality == "vision"
        and not networks[0].any_image_size
        and not _three_axes(config)
    )


def _three_axes(config: ExperimentSections) -> bool:
    language = config.model.get_architecture(config.model.llm_module_name)
    return language.mrope_section is not None


def _encoder(config: ExperimentSections) -> ModuleArchitecture:
    return config.model.get_architecture(config.model.input_module_names[0])
