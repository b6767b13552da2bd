"""Rejects wrong batches of a data set or collate function before a model runs on them.

Many such errors would not raise later: a label beyond the vocabulary still has a loss, and one
pixel that is NaN makes every weight NaN.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from mimokit.config import DataConfig
from mimokit.engine.data.batch import BOUNDS, ITEMS, Batch, encoder_entries
from mimokit.units import counted, listed

TEXT = ("input_ids", "labels", "loss_mask", "position_ids")
_READ = (*TEXT, BOUNDS, "modality_inputs", "targets")


def checked(batches: Iterator[Any], samples: int, data: DataConfig) -> Iterator[Batch]:
    """Yield batches, each checked by `check_batch`."""
    for batch in batches:
        check_batch(batch, samples, data)
        yield batch


def check_batch(batch: Any, samples: int, data: DataConfig) -> None:
    """Reject a batch that does not have the form described in `mimokit.engine.data.batch`.

    Args:
        data: labels that count are below its vocab_size; rows have at most seq_length tokens.

    Raises:
        ValueError: with the part that is wrong.
    """
    if not isinstance(batch, dict):
        raise ValueError(
            f"The collate function gave a {type(batch).__name__}; a batch is a dictionary with "
            f"{listed(TEXT)}."
        )
    for key in TEXT:
        if not isinstance(batch.get(key), torch.Tensor):
            what = f"as a {type(batch[key]).__name__}" if key in batch else "not at all"
            raise ValueError(
                f"The batch has {key} {what}; a collate function gives {listed(TEXT)} as tensors."
            )
    _check_shapes(batch, samples, data.seq_length)
    _check_labels(batch, data.vocab_size)
    if BOUNDS in batch:
        _check_bounds(batch, samples, data)
    for module, inputs in (batch.get("modality_inputs") or {}).items():
        _check_inputs(module, inputs, samples)


def check_words(input_ids: torch.Tensor, special: Sequence[int], vocab_size: int) -> None:
    """Reject token ids for which the language model has no embedding.

    Args:
        special: the placeholders, which are never embedded.

    Raises:
        ValueError: with the first such id and its sample.
    """
    strange = (input_ids < 0) | (input_ids >= vocab_size)
    for token in special:
        strange &= input_ids != token
    if not bool(strange.any()):
        return
    sample, place = strange.nonzero()[0].tolist()
    raise ValueError(
        f"Sample {sample} of the batch has the token id {int(input_ids[sample, place])}, but the "
        f"language model has {vocab_size} (vocab_size), and the placeholders are "
        f"{listed(list(map(str, special)))}."
    )


def check_keys(batch: Batch) -> None:
    """Reject entries of a batch that mimokit's own forward step does not read.

    Raises:
        ValueError: with the first of them.
    """
    for key in _not_read(batch):
        raise ValueError(
            f"The batch has {key}, which mimokit does not read{_because(key)}; leave it out, or "
            "read it in a forward_step of your own."
        )


def check_call(names: Iterable[str]) -> None:
    """Reject arguments of a model that no stage reads: of `model(**batch)` in a user's loop.

    Raises:
        ValueError: with the first of them.
    """
    for name in _not_read(names):
        raise ValueError(
            f"The model was called with {name}, which no stage reads{_because(name)}; leave it "
            "out of the call."
        )


def check_cut(
    name: str, samples: int, computed: int, data_parallel: int, *, is_language: bool
) -> None:
    """Reject samples of a module in a call of a model that are not those of its replica.

    Args:
        computed: samples of a micro-batch that a replica of the module computes.

    Raises:
        ValueError: with what cuts them.
    """
    if samples == computed:
        return
    if samples < computed:
        remedy = f"give it {computed}"
    elif is_language:
        remedy = "cut the batch with slice_text (slice_modality cuts the inputs of encoders)"
    else:
        remedy = "cut its inputs with slice_modality (slice_text cuts the rest of a batch)"
    raise ValueError(
        f"The model was called with {counted(samples, 'sample')} of {name!r}, but a replica "
        f"computes {computed} of a micro-batch (data_parallel {data_parallel}); {remedy}."
    )


def _not_read(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name not in _READ)


def _because(name: str) -> str:
    return "; attention is causal over whole rows" if name == "attention_mask" else ""


def _check_shapes(batch: Batch, samples: int, seq_length: int) -> None:
    shape = tuple(batch["input_ids"].shape)
    if len(shape) != 2 or shape[0] != samples:
        raise ValueError(
            f"The batch has input_ids of shape {shape}, but it was made of "
            f"{counted(samples, 'sample')}; they must be [samples, tokens]."
        )
    if shape[1] > seq_length:
        raise ValueError(
            f"The batch has rows of {counted(shape[1], 'token')}, but data.seq_length is "
            f"{seq_length}; cut them, or raise that."
        )
    for key in TEXT[1:]:
        own = tuple(batch[key].shape)
        if own != shape and not (key == "position_ids" and own == (3, *shape)):
            raise ValueError(
                f"The batch has {key} of shape {own}, but input_ids of {shape}; both must be "
                "[samples, tokens]."
            )


def _check_labels(batch: Batch, vocab_size: int) -> None:
    labels, loss_mask = batch["labels"], batch["loss_mask"]
    if not bool(((loss_mask == 0) | (loss_mask == 1)).all()):
        raise ValueError(
            "The batch has a loss_mask with values other than 0 and 1; a label counts or does not."
        )
    strange = ((labels < 0) | (labels >= vocab_size)) & (loss_mask != 0)
    if bool(strange.any()):
        sample, place = strange.nonzero()[0].tolist()
        raise ValueError(
            f"Sample {sample} of the batch has the label {int(labels[sample, place])}, but "
            f"data.vocab_size is {vocab_size}; set loss_mask to 0 where a label does not count."
        )


def _check_bounds(batch: Batch, samples: int, data: DataConfig) -> None:
    bounds = torch.as_tensor(batch[BOUNDS])
    if not data.pack_sequences_in_batch:
        raise ValueError(
            f"The batch has {BOUNDS}, but data.pack_sequences_in_batch is false and samples are "
            "computed with their padding; set it to true, or leave them out."
        )
    if tuple(bounds.shape) != (samples + 1,) or bounds.is_floating_point() or int(bounds[0]):
        raise ValueError(
            f"The batch has {BOUNDS} of {bounds.tolist()}, but {samples} samples; give "
            f"{samples + 1} integers: 0, and the end of every sample in a row."
        )
    tokens, needed = batch["input_ids"].shape[1], batch["loss_mask"] != 0
    for sample, length in enumerate(bounds.diff().tolist()):
        if not 0 < length <= tokens:
            raise ValueError(
                f"Sample {sample} of the batch has {length} tokens by {BOUNDS}, but its row in "
                f"input_ids has {tokens}; the lengths must add up to the end of each sample."
            )
        if bool(needed[sample, length:].any()):
            place = length + int(needed[sample, length:].nonzero()[0])
            raise ValueError(
                f"Sample {sample} of the batch has {length} tokens by {BOUNDS}, but the label of "
                f"its token {place} counts; make it longer, or set loss_mask to 0 there."
            )


def _check_inputs(module: str, inputs: Any, samples: int) -> None:
    items = inputs.get(ITEMS) if isinstance(inputs, Mapping) else None
    if items is None or len(items) != samples:
        has = "none" if items is None else str(len(items))
        raise ValueError(
            f"The inputs of module {module!r} in the batch need {ITEMS} with "
            f"{counted(samples, 'entry')}, one for every sample; there are {has}."
        )
    if not int(torch.as_tensor(items).sum()):
        return
    entries = encoder_entries(module, inputs).values()
    for name, tensor in (named for tensors in entries for named in tensors.items()):
        floating = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        if floating and not bool(tensor.isfinite().all()):
            raise ValueError(
                f"The {name} of module {module!r} in the batch hold values that are not finite; "
                "look at how they are read and scaled."
            )
