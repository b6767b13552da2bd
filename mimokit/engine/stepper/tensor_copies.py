"""Copies of a paused step's tensors, as they were after each tick."""

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mimokit.engine.data.batch import ITEMS
from mimokit.engine.models.patches import GRID, ITEM_TOKENS
from mimokit.engine.stepper.rows import print_of
from mimokit.planning.stepper.crossings import TensorFacts
from mimokit.planning.stepper.pictures import (
    MOST_CELLS,
    SMALL,
    TensorPicture,
    TensorSamples,
    Window,
    from_bfloat16_bits,
    picture_of,
    single,
)


@dataclass(frozen=True)
class KeptTensor:
    """A copy of a tensor, and a reference to the original."""

    copy: torch.Tensor
    original: weakref.ref[torch.Tensor]
    version: int


class KeptTensors:
    """The tensors of the last ticks."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._ticks: OrderedDict[int, dict[str, KeptTensor]] = OrderedDict()
        self._computed: dict[int, dict[str, KeptTensor]] = {}

    def remember(self, number: int, tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorFacts]:
        """Copy the tensors, except those that have not changed since the last tick."""
        before = next(reversed(self._ticks.values()), {})
        now = {name: _copy(tensor, before.get(name)) for name, tensor in tensors.items()}
        self._ticks[number] = now
        while len(self._ticks) > self._keep:
            gone, _ = self._ticks.popitem(last=False)
            self._computed.pop(gone, None)
        return {
            name: TensorFacts(tuple(kept.copy.shape), _dtype(kept.copy))
            for name, kept in now.items()
        }

    def get(self, number: int, name: str) -> torch.Tensor | None:
        """Return a tensor as it was after a tick; None where it is not kept."""
        kept = self._ticks.get(number, {}).get(name)
        return None if kept is None else kept.copy

    def edited(self, number: int, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor again that a user has changed after a tick."""
        self._computed.setdefault(number, dict(self._ticks[number]))
        self._ticks[number][name] = _copy(tensor, None)

    def prints(self, number: int) -> dict[str, str] | None:
        """Return fingerprints of all tensors as they were computed in a tick, before any edit."""
        kept = self._computed.get(number, self._ticks.get(number))
        if kept is None:
            return None
        return {name: print_of(tensor.copy) for name, tensor in kept.items()}

    def pictures(
        self, number: int, samples: Mapping[str, TensorSamples]
    ) -> dict[str, TensorPicture] | None:
        """Return a small picture of every tensor of a tick; None where they are not kept."""
        names = self._ticks.get(number)
        if names is None:
            return None
        return {name: self.drawn(number, name, samples.get(name), most=SMALL) for name in names}

    def drawn(
        self,
        number: int,
        name: str,
        samples: TensorSamples | None = None,
        window: Window | None = None,
        most: tuple[int, int] = MOST_CELLS,
    ) -> TensorPicture:
        """Return a picture; inputs of encoders with more than two dimensions are images."""
        tensor = self._ticks[number][name].copy
        bfloat16 = tensor.dtype == torch.bfloat16
        array = np.asarray((tensor.view(torch.int16) if bfloat16 else tensor).numpy())
        return picture_of(
            array,
            _dtype(tensor),
            samples=None if samples is None else samples.count,
            rows_per_sample=self._rows_per_sample(number, array, samples),
            window=window,
            most=most,
            images="modality_inputs" in name and tensor.dim() > 2,
            decoded=from_bfloat16_bits if bfloat16 else single,
        )

    def _rows_per_sample(
        self, number: int, array: NDArray[Any], samples: TensorSamples | None
    ) -> list[int] | None:
        if samples is None or not array.ndim:
            return None
        inputs = f"modality_inputs.{samples.module}."
        own = {name: kept.copy for name, kept in self._ticks[number].items() if inputs in name}
        if any(name.endswith((ITEM_TOKENS, GRID)) for name in own):
            return None
        items = next((each for name, each in own.items() if name.endswith(ITEMS)), None)
        if items is None:
            return None
        counts = items[samples.first : samples.first + samples.count].tolist()
        each, rest = divmod(len(array), sum(counts) or 1)
        return None if rest else [count * each for count in counts]

    def clear(self) -> None:
        """Forget all."""
        self._ticks.clear()
        self._computed.clear()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _copy(tensor: torch.Tensor, before: KeptTensor | None) -> KeptTensor:
    version = tensor._version
    if before is not None and before.original() is tensor and before.version == version:
        return before
    return KeptTensor(tensor.detach().to("cpu", copy=True), weakref.ref(tensor), version)
