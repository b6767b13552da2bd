"""Resumes with faults, on two ranks: what tests plant, one after another in one world."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

from mimokit.config import ExperimentConfig
from mimokit.config.runtime import CheckpointConfig
from mimokit.planning.checkpoints import folder_of_step
from mimokit.planning.types import LayoutPlan
from tests import seams
from tests.planted import find, replacing

STEPS = 2
Patch = tuple[str, Callable[[Any], Any]]
"""(full name of a function, original -> what takes its place)."""


@replacing
def _without(states: str, original: Any, checkpoint: Any, held: Any) -> None:
    original(checkpoint, [tensor for tensor in held if not tensor.name.startswith(states)])


@replacing
def _one_step_more(original: Any, checkpoint: Any, held: Any) -> None:
    """Adam counts the step in which torch makes its states."""
    tensors = list(held)
    original(checkpoint, tensors)
    for tensor in tensors:
        if tensor.name.startswith("step/"):
            tensor.blocks[0].tensor.add_(1)


@replacing
def _through_bf16(original: Any, checkpoint: Any, held: Any) -> None:
    tensors = list(held)
    original(checkpoint, tensors)
    for tensor in tensors:
        if tensor.name.startswith("weights/"):
            for block in tensor.blocks:
                block.tensor.copy_(block.tensor.bfloat16())


@replacing
def _exchanged(original: Any, checkpoint: Any, held: Any) -> None:
    """The states of two parameters of one shape are exchanged: of layers 0 and 1."""
    tensors = list(held)
    original(checkpoint, tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, tensor in by_name.items():
        other = by_name.get(name.replace(".layers.0.", ".layers.1."))
        if name.startswith("exp_") and other is not None and other is not tensor:
            pairs = zip(tensor.blocks, other.blocks, strict=False)
            for one, two in (p for p in pairs if p[0].tensor.shape == p[1].tensor.shape):
                kept = one.tensor.clone()
                one.tensor.copy_(two.tensor)
                two.tensor.copy_(kept)


@replacing
def _without_scale(original: Any, self: Any, progress: dict[str, Any]) -> None:
    kept = self.loss_scale.state_dict()
    original(self, progress)
    self.loss_scale.load_state_dict(kept)


@replacing
def _from_the_start(original: Any, *arguments: Any) -> Any:
    return original(*arguments[:-1], 0)


@replacing
def _one_key(original: Any, checkpoint: Any, config: Any, model: Any, rank: int) -> list[str]:
    """The random states of all ranks have one key."""
    return original(checkpoint, config, model, 0)


@replacing
def _uncut(original: Any, values: Any, shard: Any, entries: Any) -> Any:
    """Gate above up is saved as if it were one matrix."""
    return original(values, replace(shard, cut=replace(shard.cut, parts=1)), entries)


LOADING: dict[str, Patch] = {
    "nothing": (seams.READ_INTO, lambda original: original),
    "the step count of Adam is dropped": (seams.READ_INTO, partial(_without, "step/")),
    "the moments are dropped": (seams.READ_INTO, partial(_without, "exp_")),
    "the states began with a step": (seams.READ_INTO, _one_step_more),
    "main weights went through bf16": (seams.READ_INTO, _through_bf16),
    "states are those of another parameter": (seams.READ_INTO, _exchanged),
    "the scaler is dropped": (seams.GO_ON, _without_scale),
    "the data start again": (seams.ITERATE_BATCHES, _from_the_start),
}
SAVING: Patch = (seams.BLOCKS_OF, _uncut)
SAME_LAYOUT: Patch = (seams.RANDOM_NAMES, _one_key)


@contextmanager
def planted_here(patch: Patch) -> Iterator[None]:
    """Replace a function or method in this process."""
    target, make = patch
    owner, attribute = find(target)
    with mock.patch.object(owner, attribute, make(getattr(owner, attribute))):
        yield


Laid = tuple[LayoutPlan, ExperimentConfig]


def resumes_with_faults(saved: Laid, resumed: Laid, folder: str) -> dict[str, tuple[Any, Any]]:
    """Return by fault what this rank recorded when it was saved, and after it was loaded."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.verify.resume import record_resumed, record_saved

    def save(name: str) -> Any:
        return record_saved(RunOfRank(saved[0], _saving(saved[1], folder, name)), STEPS, 1)

    def load(laid: Laid, name: str) -> Any:
        return record_resumed(RunOfRank(laid[0], _resuming(laid[1], folder, name)), 1)

    right = save("right")
    found = {}
    for fault, patch in LOADING.items():
        with planted_here(patch):
            found[fault] = right, load(resumed, "right")
    with planted_here(SAME_LAYOUT):
        found["random states have one key"] = right, load(saved, "right")
    found["nothing, the same layout"] = right, load(saved, "right")
    with planted_here(SAVING):
        wrong = save("wrong")
    found["how a tensor is cut is lost"] = wrong, load(resumed, "wrong")
    return found


def _saving(config: ExperimentConfig, folder: str, name: str) -> ExperimentConfig:
    return _changed(config, checkpoint=CheckpointConfig(directory=f"{folder}/{name}"))


def _resuming(config: ExperimentConfig, folder: str, name: str) -> ExperimentConfig:
    return _changed(config, resume_from=f"{folder}/{name}/{folder_of_step(STEPS)}")


def _changed(config: ExperimentConfig, **values: object) -> ExperimentConfig:
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=values)})
