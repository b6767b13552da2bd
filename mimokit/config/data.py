"""What the data loader reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class DataConfig(ConfigModel):
    """Batches and samples.

    Attributes:
        base_batch_size: samples per micro-batch of one replica of the language module.
        num_microbatches: micro-batches per optimizer step.
        seq_length: tokens per sample, image tokens included.
        image_seq_length: image tokens per sample.
        vocab_size: ordinary token ids are [0, vocab_size).
        image_special_token_id: the id that holds the place of an image token.
        dataset_size: samples in the data set.
        num_workers: loader processes per loading rank; 0 loads in the rank itself.
        prefetch_factor: batches that a loader process keeps ready.
    """

    base_batch_size: Positive
    num_microbatches: Positive = 1
    seq_length: Positive
    image_seq_length: NotNegative
    vocab_size: Positive
    image_special_token_id: NotNegative
    dataset_size: Positive = 2048
    num_workers: NotNegative = 0
    prefetch_factor: Positive = 2
