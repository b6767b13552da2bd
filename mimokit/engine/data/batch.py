"""Batches of several modules, and slicing their samples.

A batch is a dictionary:

    input_ids, labels, loss_mask, position_ids    [samples, tokens]; position_ids may be
                                                  [3, samples, tokens] (multimodal rotary)
    modality_inputs: {module: {
        "items_per_sample": [samples]             images, recordings, … of every sample
        any name: {                           the one entry with the tensors of the encoder; of
                                              a modality with several encoders one entry each, by
                                              their names
            "pixel_values", "grid_thw", …         [items, …]: one row per item
            "input_features"                      [items, mel bands, frames], padded with silence
        "words"                               [items, words], of a text head: one item per sample
            "tokens_per_item": [items]            number of embeddings per item; left out
                                                  where all items have equally many
            "hidden_states"                       [tokens, samples, features], or with grid_thw
                                                  [sum of t*h*w, features], patches in order (see
                                                  `mimokit.engine.models.patches`)
        }}}
    cu_seqlens                                    [samples + 1]: where every sample begins in a row
                                                  without padding, and where the last one ends; read
                                                  with data.pack_sequences_in_batch alone
    targets: {module: {                           of modules behind the language model
        "labels", "loss_mask"                     [samples, tokens], of a text decoder; without an
                                                  entry it is the token after the next
        "pixel_values"                            [items, channels, height, width], of an image
                                                  decoder; without an entry it is what the encoder
                                                  reads
        "hidden_states"                       [patches, features], of one of images of any size, as
                                              the encoder takes them
        "input_features"                      [items, mel bands, frames], of one of sound, likewise
        }}

Every tensor is sliced along its sample dimension. Items are in the order of their samples, and
their rows are in the order of the items.

A sample without inputs of an encoder has 0 items. Where no sample of the batch has any, the entry
may contain tensors of 0 items or be missing: the modality is absent and its encoder does not run.
The batch does not show whether another replica of the same micro-batch has items;
`DataConfig.is_present` says so for all replicas.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mimokit.engine.models.patches import ITEM_TOKENS
from mimokit.units import counted, listed

Batch = dict[str, Any]
ITEMS = "items_per_sample"
BOUNDS = "cu_seqlens"


def check_tokens(
    batch: Batch, special_token_ids: Mapping[str, Sequence[int]], tokens_per_item: Mapping[str, int]
) -> None:
    """Compare placeholders with the rows of every encoder, sample by sample.

    Args:
        special_token_ids: module -> placeholder ids, one for every path of its rows; modules may
            share one.
        tokens_per_item: module -> number of embeddings per item, unless the batch contains it.

    Raises:
        ValueError: they differ (the message names the first sample and module), a module of the
            batch has no placeholder, or a placeholder is a label that counts.
    """
    inputs = batch.get("modality_inputs") or {}
    for module in inputs:
        if module not in special_token_ids:
            known = ", ".join(map(repr, special_token_ids)) or "none"
            raise ValueError(
                f"The batch has inputs of {module!r}, which is not an encoder of the model; the "
                f"encoders are {known}."
            )
    sharing: dict[int, list[str]] = {}
    for module, tokens in special_token_ids.items():
        for token in tokens:
            sharing.setdefault(token, []).append(module)
    for token, modules in sharing.items():
        placeholders = (batch["input_ids"] == token).sum(dim=1)
        count, names = len(placeholders), listed([*map(repr, dict.fromkeys(modules))])
        rows = torch.stack(
            [rows_per_sample(inputs.get(n), count, tokens_per_item[n]) for n in modules]
        ).sum(dim=0)
        differs = (placeholders != rows).nonzero()
        if len(differs):
            sample = int(differs[0])
            items = sum(int(inputs[n][ITEMS][sample]) for n in {*modules} if n in inputs)
            raise ValueError(
                f"Sample {sample} of the batch has {int(placeholders[sample])} {names} "
                f"placeholder tokens but {counted(int(rows[sample]), 'row')} of "
                f"{counted(items, 'item')}; they must be equal."
            )
        if "labels" in batch:
            _check_predicted(batch, names, token)


def _check_predicted(batch: Batch, modules: str, token: int) -> None:
    """Reject a placeholder as a label that counts, also one within the vocabulary (Qwen2-VL's)."""
    predicted = (batch["labels"] == token) & (batch["loss_mask"] != 0)
    if bool(predicted.any()):
        sample, place = predicted.nonzero()[0].tolist()
        raise ValueError(
            f"Sample {sample} of the batch has the placeholder {token} of {modules} as the label "
            f"of token {place}; set loss_mask to 0 there."
        )


def encoder_entries(
    module: str, inputs: Mapping[str, Any], most: int | None = None
) -> dict[str, Mapping[str, Any]]:
    """Return the entries with the tensors for the encoders of a module.

    Args:
        most: encoders that it has; None if that is not known.

    Raises:
        ValueError: there is none, there are more, or one is not a dictionary.
    """
    entries = {name: tensors for name, tensors in inputs.items() if name != ITEMS}
    count = len(entries)
    alike = all(isinstance(tensors, Mapping) for tensors in entries.values())
    if not alike or not 0 < count <= (most or count):
        raise ValueError(
            f"The inputs of module {module!r} in the batch have {listed(sorted(entries)) or 'no'} "
            f"entries next to {ITEMS}; give one dictionary with the tensors of its encoder, such "
            "as {'vit_encoder': {'pixel_values': …}}."
        )
    return entries


def encoder_tensors(module: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors for the only encoder of a module, whatever its entry is called."""
    (tensors,) = encoder_entries(module, inputs, most=1).values()
    return tensors


def tensors_by_encoder(
    module: str, encoders: Iterable[str], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return encoder -> its tensors; the entry of a module's only encoder may have any name."""
    names = list(encoders)
    if len(names) == 1:
        return {names[0]: encoder_tensors(module, inputs)}
    return {name: inputs[name] for name in names if name in inputs}


def rows_per_sample(
    inputs: Mapping[str, Any] | None, samples: int, tokens_per_item: int
) -> torch.Tensor:
    """Return the number of embeddings of every sample: [samples], int64, on the host.

    Args:
        inputs: inputs of one module, None where it is absent.
        tokens_per_item: number of embeddings per item, unless the inputs contain it.

    Raises:
        ValueError: if the inputs have tokens for another number of items.
    """
    if inputs is None:
        return torch.zeros(samples, dtype=torch.int64)
    items = torch.as_tensor(inputs[ITEMS]).cpu()
    tokens = item_tokens(inputs)
    if tokens is None:
        return items * tokens_per_item
    if len(tokens) != int(items.sum()):
        raise ValueError(
            f"{ITEM_TOKENS} has {counted(len(tokens), 'entry')} but the samples have "
            f"{int(items.sum())} items; give one for every item."
        )
    sample_of_item = torch.repeat_interleave(torch.arange(samples), items)
    return torch.zeros_like(items).index_add_(0, sample_of_item, tokens.to("cpu", items.dtype))


def item_tokens(inputs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the tokens of every item [items] if the inputs of a module contain them."""
    for encoder, tensors in inputs.items():
        if encoder != ITEMS and ITEM_TOKENS in tensors:
            tokens: torch.Tensor = tensors[ITEM_TOKENS]
            return tokens
    return None


def slice_text(batch: Batch, start: int, stop: int) -> Batch:
    """Return samples [start, stop) of all tensors except the modality inputs."""
    return {
        key: _slice_text_tensor(key, value, start, stop)
        for key, value in batch.items()
        if key != "modality_inputs"
    }


def _slice_text_tensor(key: str, value: Any, start: int, stop: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if key == BOUNDS:
        return value[start : stop + 1] - value[start]
    multimodal_rotary = key == "position_ids" and value.dim() == 3
    return _Span(start, stop).of(value, dimension=1 if multimodal_rotary else 0)


def slice_modality(inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Return samples [start, stop) of the inputs of one modality.

    Raises:
        ValueError: if the number of rows does not match the items.
    """
    items = inputs[ITEMS]
    samples = _Span(start, stop)
    of_items = _Span(int(items[:start].sum()), int(items[:stop].sum()))
    result: dict[str, Any] = {ITEMS: items[start:stop]}
    for encoder, tensors in inputs.items():
        if encoder == ITEMS:
            continue
        first_patches = _first_patches(tensors, int(items.sum()))
        result[encoder] = {
            key: _slice_encoder_tensor(key, value, samples, of_items, first_patches)
            for key, value in tensors.items()
        }
    return result


class _Span(NamedTuple):
    start: int
    stop: int

    def of(self, tensor: torch.Tensor, dimension: int = 0) -> torch.Tensor:
        return tensor.narrow(dimension, self.start, self.stop - self.start).contiguous()


def _first_patches(tensors: Mapping[str, Any], items: int) -> list[int] | None:
    """Return the first patch of each item and of none, if patches of all are concatenated."""
    grid = tensors.get("grid_thw")
    if grid is None:
        return None
    if len(grid) != items:
        raise ValueError(
            f"grid_thw has {counted(len(grid), 'row')} but the samples have "
            f"{counted(items, 'item')}."
        )
    bounds = [0, *torch.as_tensor(grid).prod(dim=1).cumsum(0).tolist()]
    patches = tensors["hidden_states"].shape[0]
    if bounds[-1] != patches:
        raise ValueError(
            f"hidden_states has {counted(patches, 'patch row')} but grid_thw describes "
            f"{bounds[-1]}."
        )
    return bounds


def _slice_encoder_tensor(
    key: str,
    value: Any,
    samples: _Span,
    items: _Span,
    first_patches: Sequence[int] | None,
) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if key != "hidden_states":
        return items.of(value)
    if first_patches is None:
        return samples.of(value, dimension=1)
    return _Span(first_patches[items.start], first_patches[items.stop]).of(value)


def sample_lengths(batch: Batch, placeholders: Iterable[int]) -> list[int]:
    """Return how many tokens of every sample are needed: those of the batch, else by its labels.

    Behind its last label that counts, and its last placeholder, a sample is padding: attention is
    causal.
    """
    if batch.get(BOUNDS) is not None:
        lengths: list[int] = batch[BOUNDS].diff().tolist()
        return lengths
    ids = batch["input_ids"]
    needed = torch.isin(ids, torch.tensor(list(placeholders), dtype=ids.dtype, device=ids.device))
    targets = (batch.get("targets") or {}).values()
    of_text = [named["loss_mask"] for named in targets if "loss_mask" in named]
    for loss_mask in (batch["loss_mask"], *of_text):
        needed = needed | (loss_mask != 0)
    ends = needed * torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ends.amax(1).clamp(min=1).tolist()


def without_padding(ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Return the ids [samples, tokens] of samples of these lengths, 0 behind their ends."""
    places = torch.arange(ids.shape[1], device=ids.device)
    return ids.masked_fill(places >= torch.tensor(lengths, device=ids.device)[:, None], 0)


def to_device(data: Any, device: torch.device) -> Any:
    """Move all tensors of a batch but the items of its samples, which the host counts."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {
            key: value if key == ITEMS else to_device(value, device) for key, value in data.items()
        }
    return data


def in_dtype(data: Any, dtype: torch.dtype) -> Any:
    """Round the tensors of a module's inputs that are not integers to the type of its weights."""
    if isinstance(data, torch.Tensor):
        return data.to(dtype) if data.is_floating_point() else data
    if isinstance(data, Mapping):
        return {key: in_dtype(value, dtype) for key, value in data.items()}
    return data


def targets_of(batch: Batch, module: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets of a module: those in the batch, else the token after the next.

    Returns:
        Labels and loss mask, both [samples, tokens].

    Raises:
        ValueError: the shape of the targets in the batch differs from that of its tokens.
    """
    named = (batch.get("targets") or {}).get(module)
    if named is None:
        return one_further(batch["labels"]), one_further(batch["loss_mask"])
    labels, loss_mask = named["labels"], named["loss_mask"]
    wanted = batch["input_ids"].shape
    for name, tensor in (("labels", labels), ("loss_mask", loss_mask)):
        if tensor.shape != wanted:
            raise ValueError(
                f"The {name} of module {module!r} in the batch have shape {tuple(tensor.shape)}, "
                f"but its tokens {tuple(wanted)}; both must be [samples, tokens]."
            )
    return labels, loss_mask


def one_further(values: torch.Tensor) -> torch.Tensor:
    """Shift values forward by one token in every sample and pad with 0."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1))
