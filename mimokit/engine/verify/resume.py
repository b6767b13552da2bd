"""Records the training state of a rank before it is saved and after it is loaded.

What is recorded does not come from what saves and loads: whole shards of the model and of the
optimizer, random states, and the samples that the data set was asked for.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from mimokit.architecture.tensor_cut import TensorShard
from mimokit.config import ExperimentSections
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.device import without_tf32
from mimokit.engine.models.rng import random_states
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.main_weights import (
    is_main_weight,
    main_value,
    main_weight,
    state_shard,
)
from mimokit.engine.parallel.marks import is_tied_copy, shard_of
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.steps import exhaust
from mimokit.engine.training.loop import saver_of
from mimokit.engine.training.optimizer_step import TrainingState, prepared, training_step
from mimokit.engine.training.resuming import go_on

WEIGHT = "weight"
"""In place of the name of a state of the optimizer."""


@dataclass(frozen=True)
class RecordedShard:
    """A shard of a weight or of a state of the optimizer; `is_first` of all that hold the same."""

    shard: TensorShard
    values: np.ndarray
    is_first: bool


@dataclass(frozen=True)
class StateRecord:
    """The training state of a rank at one moment.

    Attributes:
        shards: (part, module, parameter) -> what the rank holds; part is a state or `WEIGHT`.
        counts: (state, module, parameter) -> a number, such as the steps that Adam has counted.
        rounded: parameters that are not their main weights, rounded.
        random: random state -> digest; of a module with its tensor parallel rank.
    """

    shards: dict[tuple[str, str, str], RecordedShard]
    counts: dict[tuple[str, str, str], float]
    rounded: list[str]
    progress: dict[str, Any]
    random: dict[str, str]


@dataclass(frozen=True)
class RankRecord:
    """What a rank did in a run that was saved, or in one that goes on.

    Attributes:
        saved: the state when it was saved, or after it was loaded.
        ended: the state after the last step.
        samples: by step, the indices that the data set was asked for; of the run that was saved
            also those of the steps before.
    """

    saved: StateRecord
    ended: StateRecord
    losses: list[float]
    samples: list[list[int]]


@without_tf32()
def record_saved(run: RunOfRank, before: int, after: int) -> RankRecord:
    """Train, save after so many steps, and train on without a stop. Collective."""
    asked: list[int] = []
    with prepared(_watched(run, asked)) as state:
        _, first = _train(state, before, asked)
        saver = saver_of(state)
        asked.clear()
        saver.save(before)
        saver.finish()
        saved = recorded_states(state)
        losses, rest = _train(state, after, asked)
        return RankRecord(saved, recorded_states(state), losses, first + rest)


@without_tf32()
def record_resumed(run: RunOfRank, after: int) -> RankRecord:
    """Go on from the checkpoint of `runtime.resume_from`. Collective."""
    asked: list[int] = []
    with prepared(_watched(run, asked), go_on) as state:
        loaded = recorded_states(state)
        losses, samples = _train(state, after, asked)
        return RankRecord(loaded, recorded_states(state), losses, samples)


def _train(
    state: TrainingState, steps: int, asked: list[int]
) -> tuple[list[float], list[list[int]]]:
    losses, samples = [], []
    for _ in range(steps):
        asked.clear()
        losses.append(exhaust(training_step(state)).loss)
        samples.append(sorted(asked))
    return losses, samples


class _AskedFor(Dataset[Any]):
    def __init__(self, dataset: Any, asked: list[int]) -> None:
        self._dataset, self._asked = dataset, asked

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        self._asked.append(int(index))
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def _watched(run: RunOfRank, asked: list[int]) -> RunOfRank:
    def watched(config: ExperimentSections) -> TrainingData:
        data = run.source(config)
        return replace(data, train=_AskedFor(data.train, asked))

    return replace(run, source=watched)


def recorded_states(state: TrainingState) -> StateRecord:
    """Record the state of a rank. Collective over ranks that share states of the optimizer."""
    shards, counts, rounded = {}, {}, []
    states = state.update.optimizer.state
    for module, wrapped in state.model.modules().items():
        for name, parameter in named_parameters(wrapped.module).items():
            weight = main_value(parameter)
            parts = {WEIGHT: weight}
            if not is_main_weight(parameter, weight):
                rounded.append(f"{module}/{name}")
            for key, value in states.get(main_weight(parameter), {}).items():
                if value.dim() or value.shape == main_weight(parameter).shape:
                    parts[key] = _gathered(parameter, value)
                else:
                    counts[key, module, name] = float(value)
            shard = shard_of(parameter)
            first = shard.is_written and not is_tied_copy(parameter)
            for part, values in parts.items():
                array = values.detach().float().cpu().numpy().copy()
                shards[part, module, name] = RecordedShard(shard, array, first)
    return StateRecord(shards, counts, rounded, state.update.progress(), _digests(state))


def _gathered(parameter: torch.nn.Parameter, values: torch.Tensor) -> torch.Tensor:
    pieces = state_shard(parameter)
    return values if pieces is None else pieces.gathered(values, parameter.shape)


def _digests(state: TrainingState) -> dict[str, str]:
    places = {n: m.ownership.groups.tp.rank() for n, m in state.model.modules().items()}
    digests = {}
    for name, value in random_states().items():
        own = [f" of {n} on tensor rank {place}" for n, place in places.items() if n in name]
        title = f"that{own[0]}" if own else f"{name.strip()} on rank {dist.get_rank()}"
        digests[title] = hashlib.sha256(value.cpu().numpy().tobytes()).hexdigest()
    return digests
