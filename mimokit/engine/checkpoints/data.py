"""What of the training data a checkpoint has, so that a run goes on with the next samples."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch

from mimokit.config import ExperimentSections
from mimokit.engine.collectives import gather_json
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.models.rng import random_states, set_random_states
from mimokit.planning.checkpoints import DataPosition
from mimokit.planning.types import LayoutPlan


def data_position(
    config: ExperimentSections, plan: LayoutPlan, data: TrainingData, rank: int
) -> DataPosition:
    """Return which samples the steps of a run take, the same on every rank. Collective."""
    assert isinstance(data.train, Sized)
    size = min(len(data.train), config.data.dataset_size)
    digest = _digest(data.train, size) if rank == 0 else None
    batch = plan.batch
    return DataPosition(
        name=data.name,
        samples=size,
        seed=config.runtime.seed,
        per_step=batch.samples_per_microbatch * batch.num_microbatches,
        per_microbatch=batch.samples_per_microbatch,
        digest=gather_json(digest)[0],
    )


def _digest(dataset: Any, size: int) -> str | None:
    """Return a digest of the first and the last sample; None if they are drawn anew each time."""
    with _randomness_kept():
        first, again = ([_words(dataset[number]) for number in (0, size - 1)] for _ in range(2))
    return hashlib.sha256("\n".join(first).encode()).hexdigest()[:16] if first == again else None


@contextmanager
def _randomness_kept() -> Iterator[None]:
    states = random_states(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        set_random_states(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().view(-1)
        return f"{value.dtype} {list(value.shape)} {_bytes(array)}"
    if isinstance(value, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype} {value.shape} {content}"
    if is_dataclass(value) and not isinstance(value, type):
        return _words({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_words(value[key])}' for key in value)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_words, value))}]"
    if isinstance(value, str | bytes | int | float | bool | None):
        return repr(value)
    return type(value).__qualname__


def _bytes(flat: torch.Tensor) -> str:
    content = flat.view(torch.uint8) if flat.numel() else flat
    return hashlib.sha256(content.numpy().tobytes()).hexdigest()
