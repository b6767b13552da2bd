"""The whole model of the oracle, and its loss."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from mimokit.architecture.tensor_cut import TensorCut
from mimokit.architecture.tokens import AudioGeometry, ImageGeometry
from mimokit.config.user_code import UserCode
from mimokit.engine.data.batch import (
    ITEMS,
    Batch,
    encoder_tensors,
    in_dtype,
    item_tokens,
    sample_lengths,
    targets_of,
    tensors_by_encoder,
    without_padding,
)
from mimokit.engine.data.check import check_call
from mimokit.engine.data.reconstruction import PIXELS, Reconstruction
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import MimoModel
from mimokit.engine.models.adapter import ROWS
from mimokit.engine.models.language import hidden_states_of
from mimokit.engine.models.patches import GRID, ITEM_TOKENS, rows_alone
from mimokit.engine.models.rng import computing_lengths, mask_rows, random_state_of
from mimokit.engine.models.token_prediction import predicting_further
from mimokit.engine.models.transformer import causal_mask
from mimokit.engine.parallel.loss import sum_and_tokens
from mimokit.engine.parallel.marks import shard_of
from mimokit.engine.user_loop.models import ModulesByName
from mimokit.engine.user_loop.stages import OneBatch, call_forward_step, loss_of_output


class WholeModel(torch.nn.Module):
    """All modules in one process. A forward step of the user's calls it as it calls a layout's.

    Args:
        words: of the vocabulary, without padding; 0: what the language model returns stays whole.
        adapters: adapter -> the encoders that feed it; before it those adapters that do.
        columns: encoder that feeds several modules -> module -> the columns of its rows for it.
        images: decoder of images or sound -> which items it makes.

    Attributes:
        reached: modules that have computed something, until a caller clears it.
        step: optimizer steps before this one, and the samples of the micro-batch, as the plan
            numbers them: what masks of dropout depend on.
        further_loss: of tokens further on in the last micro-batch, as it is added to the sum of the
            losses for the backward pass.
    """

    step: int = 0
    samples: Sequence[int] = range(0)
    further_loss: torch.Tensor | float = 0.0

    def __init__(
        self,
        mimo: MimoModel,
        decoders: Mapping[str, torch.nn.Module],
        language: str,
        code: UserCode,
        words: int,
        adapters: Mapping[str, Sequence[str]] = MappingProxyType({}),
        columns: Mapping[str, Mapping[str, slice]] = MappingProxyType({}),
        images: Mapping[str, Reconstruction] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.modality_submodules = ModulesByName(dict(mimo.modality_submodules.items()))
        self.language_model = mimo.language_model
        self.language_module_name = language
        self.decoders = torch.nn.ModuleDict(dict(decoders))
        self.reached: set[str] = set()
        self._code, self._words, self._adapters, self._columns = code, words, adapters, columns
        self._images = images
        self._mimo = [mimo]  # not a module of this one: its parts are
        for name in (name for name, receivers in columns.items() if language in receivers):
            mimo.modality_submodules[name] = _GivenRows()
        self._items: dict[str, Sequence[int]] = {}
        self._lengths: Sequence[int] | None = None
        for name, module in self.parts():
            module.forward = self._with_rows(name, module.forward)

    def _with_rows(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*given: Any, **named: Any) -> Any:
            rows = mask_rows(self.step, self.samples, self._items.get(name))
            encodes = name in self.modality_submodules or name in self._images
            lengths = None if encodes else self._lengths
            with random_state_of("", rows), computing_lengths(lengths):
                return forward(*given, **named)

        return drawn

    def parts(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield every module of the layout by its name."""
        yield from self.modality_submodules.items()
        yield self.language_module_name, self.language_model
        yield from self.decoders.items()

    def items_of(self, name: str) -> Sequence[int]:
        """Return the items of every sample of the micro-batch that a module computes."""
        return self._items[name]

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that train."""
        return [p for _, module in self.parts() for p in module.parameters() if p.requires_grad]

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Return what trains, by module and name."""
        return {
            f"{name}.{path}": p
            for name, module in self.parts()
            for path, p in module.named_parameters()
            if p.requires_grad
        }

    def cuts(self) -> dict[str, TensorCut]:
        """Return how a layout cuts what trains."""
        return {name: shard_of(parameter).cut for name, parameter in self.named().items()}

    def loss_sum(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Return the sum of all losses of a micro-batch and their number of tokens."""
        self._lengths = sample_lengths(batch, self._mimo[0].special_token_ids.values())
        total, counted = self._language_loss(batch)
        for name, decoder in self.decoders.items():
            hidden = self.rows_of(name, self._hidden)
            if name in self._images:
                self._add_images(name, hidden, batch)
                continue
            labels, loss_mask = targets_of(batch, name)
            losses = _losses(decoder(hidden, _causal(labels)), labels)
            self.reached.add(name)
            total = total + (losses * loss_mask).sum()
            counted += float(loss_mask.sum())
        return total, counted

    def rows_of(self, decoder: str, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that a decoder takes, [tokens, samples, hidden]."""
        return hidden

    def _add_images(self, name: str, hidden: torch.Tensor, batch: Batch) -> None:
        made = self._images[name]
        inputs = (batch.get("modality_inputs") or {}).get(made.encoder)
        if inputs is None or not int(inputs[ITEMS].sum()):
            return
        self.reached.add(name)
        self._items[name] = inputs[ITEMS].tolist()
        placed = hidden.transpose(0, 1)
        taken = [
            own[ids == made.token] for own, ids in zip(placed, batch["input_ids"], strict=True)
        ]
        tokens, largest = item_tokens(inputs), made.geometry.tokens
        each = [largest] * sum(self._items[name]) if tokens is None else tokens.tolist()
        for sample in range(len(taken)):
            first = sum(self._rows_in(batch, sample, *other) for other in made.before.items())
            own = self._rows_in(batch, sample, made.encoder, largest)
            taken[sample] = taken[sample][first : first + own]
        rows = torch.split(torch.cat(taken), each)
        output = self.decoders[name](encoder_inputs={ROWS.name: _of_items(rows)})
        given = (batch.get("targets") or {}).get(name) or encoder_tensors(made.encoder, inputs)
        if isinstance(made.geometry, AudioGeometry):
            wanted = _frames(given["input_features"], each, made.geometry.frames_per_token)
        else:
            images = _images(given, encoder_tensors(made.encoder, inputs).get(GRID), made.any_size)
            size = made.geometry.patch_size
            unfolded = [torch.nn.functional.unfold(own, size, stride=size).T for own in images]
            wanted = torch.cat(unfolded)
        errors = torch.nn.functional.mse_loss(output.float(), wanted, reduction="none")
        self.further_loss = self.further_loss + made.weight * errors.mean(1).sum()

    def _rows_in(self, batch: Batch, sample: int, encoder: str, each: int) -> int:
        inputs = (batch.get("modality_inputs") or {}).get(encoder)
        if inputs is None:
            return 0
        items, tokens = inputs[ITEMS].tolist(), item_tokens(inputs)
        first = sum(items[:sample])
        own = [each] * items[sample] if tokens is None else tokens.tolist()[first:][: items[sample]]
        return sum(own)

    def _language_loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        step, loss_func = self._code.forward_step, self._code.loss_func
        if step is not None:
            output, loss_function = call_forward_step(step, OneBatch(batch), self)
            total, number = loss_of_output(step, output, loss_function)
            return total, number
        losses, loss_mask = self(**batch)
        if loss_func is not None:
            return sum_and_tokens(loss_func(loss_mask, losses))
        return (losses * loss_mask).sum(), float(loss_mask.sum())

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        modality_inputs: Mapping[str, Batch] | None = None,
        labels: torch.Tensor | None = None,
        loss_mask: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run encoders and language model on a whole micro-batch: [samples, tokens].

        Returns:
            Loss of every token [samples, tokens], or without labels the logits
            [samples, tokens, vocabulary]; and the loss mask.
        """
        check_call(others)
        (mimo,) = self._mimo
        there = self._with_items(modality_inputs or {})
        self.reached |= {self.language_module_name, *there}
        there = self._behind_adapters(there)
        with (
            hidden_states_of(self.language_model) as hidden,
            predicting_further(self.language_model, self._real(input_ids)) as further,
        ):
            logits, _mask = mimo(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=_causal(input_ids),
                modality_inputs=there,
            )
        self._hidden = hidden[-1]
        self.further_loss = 0.0
        if labels is not None and loss_mask is not None:
            self.further_loss = self._loss_further(further, labels, loss_mask)
        # Without padding: what a layout masks must not be masked by the same code here.
        logits = logits[..., : self._words or None]
        return (logits if labels is None else _losses(logits, labels)), loss_mask

    def _real(self, ids: torch.Tensor) -> torch.Tensor:
        return ids if self._lengths is None else without_padding(ids, self._lengths)

    def _loss_further(
        self, further: Sequence[torch.Tensor], labels: torch.Tensor, loss_mask: torch.Tensor
    ) -> torch.Tensor | float:
        total: torch.Tensor | float = 0.0
        for later, logits in enumerate(further, 1):
            losses = _losses(logits[:, :-later, : self._words or None], labels[:, later:])
            weight = self.language_model.mtp.mtp_loss_scaling_factor / len(further)
            total = total + weight * (losses * loss_mask[:, later:]).sum()
        return total

    def _with_items(self, modality_inputs: Mapping[str, Batch]) -> dict[str, Batch]:
        named: dict[str, Batch] = {}
        self._items = {name: inputs[ITEMS].tolist() for name, inputs in modality_inputs.items()}
        for module, inputs in modality_inputs.items():
            if int(inputs[ITEMS].sum()):
                modality: Any = self.modality_submodules[module]
                tensors = tensors_by_encoder(module, modality.encoders, inputs)
                named[module] = in_dtype(tensors, next(modality.parameters()).dtype)
        return named

    def _behind_adapters(self, inputs: Mapping[str, Batch]) -> dict[str, Batch]:
        ready, whole = dict(inputs), dict[str, tuple[torch.Tensor, list[int]]]()
        for adapter, feeders in self._adapters.items():
            parts: list[list[torch.Tensor]] = [[] for _ in self.samples]
            for name in feeders:
                if name in ready:
                    whole[name] = self._rows_of_items(name, ready.pop(name))
                if name not in whole:
                    continue
                rows, each = whole[name]
                of_items = iter(self._rows_for(adapter, name, rows).split(each))
                for part, count in zip(parts, self._items[name], strict=True):
                    part += itertools.islice(of_items, count)
            self._items[adapter] = [len(part) for part in parts]
            if sum(self._items[adapter]):
                self.reached.add(adapter)
                ready[adapter] = {ROWS.name: _of_items(itertools.chain(*parts))}
        language = self.language_module_name
        for name in (name for name in whole if language in self._columns.get(name, ())):
            ready[name] = self._rows_for(language, name, whole[name][0])
        return ready

    def _rows_of_items(self, encoder: str, tensors: Batch) -> tuple[torch.Tensor, list[int]]:
        modality: Any = self.modality_submodules[encoder]
        rows, items = modality(encoder_inputs=tensors), sum(self._items[encoder])
        tokens = item_tokens(tensors)
        return rows, [len(rows) // items] * items if tokens is None else tokens.tolist()

    def _rows_for(self, receiver: str, encoder: str, rows: torch.Tensor) -> Any:
        columns = self._columns.get(encoder)
        return rows if columns is None else rows[..., columns[receiver]]


class _GivenRows(torch.nn.Module):
    """Stands in Megatron's model for an encoder that has run already."""

    def forward(self, encoder_inputs: torch.Tensor) -> torch.Tensor:
        return encoder_inputs


def _of_items(items: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    rows = list(items)
    each = torch.tensor([len(own) for own in rows], device=rows[0].device)
    return {"rows": torch.cat(rows), GRID: rows_alone(each), ITEM_TOKENS: each}


def _frames(recordings: torch.Tensor, each: Sequence[int], frames: int) -> torch.Tensor:
    """Return the frames of every token of recordings: [tokens of all, mel bands * frames]."""
    tokens = [
        recording[:, frames * token :][:, :frames].flatten()
        for recording, number in zip(recordings, each, strict=True)
        for token in range(number)
    ]
    return torch.stack(tokens)


def _images(
    given: Mapping[str, torch.Tensor], grids: torch.Tensor | None, shape: ImageGeometry | None
) -> list[torch.Tensor]:
    """Return every image of a batch: [channels, height, width].

    Args:
        grids: rows and columns of each in patches, behind a 1, where they are given as patches.
    """
    if grids is None or shape is None:
        whole = given[PIXELS]
        return list(whole[:, None] if whole.dim() == 3 else whole)  # else of one channel
    patches, merge, side = iter(given["hidden_states"]), shape.merge_size, shape.patch_size
    images = []
    for _, rows, columns in grids.tolist():
        image = given["hidden_states"].new_empty(shape.num_channels, rows * side, columns * side)
        squares = itertools.product(range(0, rows, merge), range(0, columns, merge))
        for top, left in squares:
            for down, right in itertools.product(range(merge), repeat=2):
                row, column = (top + down) * side, (left + right) * side
                numbers = next(patches).reshape(shape.num_channels, -1, side, side)
                image[:, row : row + side, column : column + side] = numbers[:, 0]
        images.append(image)
    return images


def _causal(ids: torch.Tensor) -> torch.Tensor:
    return causal_mask(ids.shape[1], rank_device())


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of every token, [samples, tokens]."""
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), reduction="none"
    ).reshape(labels.shape)
