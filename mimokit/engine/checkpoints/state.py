"""The training state of a rank as blocks of whole tensors: weights, optimizer, random states."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import Shape, TensorShard
from mimokit.engine.checkpoints.blocks import TensorBlock, blocks_of
from mimokit.engine.device import rank_device
from mimokit.engine.models.rng import random_states, set_random_states
from mimokit.engine.models.weights import named_parameters
from mimokit.engine.parallel.main_weights import main_weight, state_shard
from mimokit.engine.parallel.marks import is_tied_copy, shard_of
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.pipeline.model import RankModel
from mimokit.planning.checkpoints import BUFFERS, RANDOM, WEIGHTS, tensor_name


@dataclass(frozen=True)
class HeldTensor:
    """What a rank holds of a tensor of the state.

    Attributes:
        is_written: whether this rank writes it, of all that hold the same.
    """

    name: str
    whole: Shape
    blocks: tuple[TensorBlock, ...]
    is_written: bool


@dataclass(frozen=True)
class _Held:
    module: str
    name: str
    parameter: torch.nn.Parameter

    @property
    def main(self) -> torch.nn.Parameter:
        return main_weight(self.parameter)

    @property
    def shard(self) -> TensorShard:
        return shard_of(self.parameter)

    def part(self, part: str, values: torch.Tensor) -> HeldTensor:
        pieces, shard = state_shard(self.parameter), self.shard
        if pieces is None or not self.parameter.requires_grad:
            entries, first = None, shard.is_written
        else:
            # Every rank of a shard group has entries of its own; of several such groups with the
            # same entries, that of the first replica writes.
            entries = pieces.start, pieces.stop
            place = replace(shard.place, replica=0, expert_replica=0)
            first = replace(shard, place=place).is_written and _is_first(self.parameter)
        blocks = blocks_of(values.detach(), shard, entries)
        written = first and not is_tied_copy(self.parameter)
        name = tensor_name(part, self.module, self.name)
        return HeldTensor(name, shard.cut.whole or (1,), blocks, written)

    def count(self, part: str, value: torch.Tensor) -> HeldTensor:
        name = tensor_name(part, self.module, self.name)
        place = self.shard.place
        tensor_rank = (
            place.tensor_rank if self.shard.cut.expert is None else place.expert_tensor_rank
        )
        written = self.shard.is_written and not tensor_rank and not is_tied_copy(self.parameter)
        return HeldTensor(name, (1,), (TensorBlock((0,), value.view(1)),), written)


def _is_first(parameter: torch.nn.Parameter) -> bool:
    pieces = state_shard(parameter)
    assert pieces is not None
    module = pieces.module()
    assert module is not None
    replicas = dist.get_process_group_ranks(module.ownership.reduce_group(parameter))
    return min(replicas) in dist.get_process_group_ranks(pieces.group)


def _parameters(model: RankModel) -> Iterator[_Held]:
    for module, wrapped in model.modules().items():
        for name, parameter in named_parameters(wrapped.module).items():
            yield _Held(module, name, parameter)


def weights_of(model: RankModel) -> list[HeldTensor]:
    """Return the weights in the most bits that there are of each: what is stepped."""
    return [held.part(WEIGHTS, held.main) for held in _parameters(model)]


def optimizer_states_of(model: RankModel, update: MainGradUpdate) -> list[HeldTensor]:
    """Return what the optimizer keeps of every parameter; nothing before its first step."""
    states = update.optimizer.state
    return [
        held.part(key, value) if value.shape == held.main.shape else held.count(key, value)
        for held in _parameters(model)
        for key, value in states.get(held.main, {}).items()
    ]


def begin_optimizer_states(model: RankModel, update: MainGradUpdate, saved: set[str]) -> None:
    """Make room for the states that a checkpoint has; torch makes them in the first step."""
    parts = {name.split("/", 1)[0] for name in saved} - {WEIGHTS, BUFFERS, RANDOM}
    # Only fused kernels count steps on the device.
    counts_on = rank_device() if update.optimizer.defaults.get("fused") else torch.device("cpu")
    for held in _parameters(model):
        keys = [key for key in sorted(parts) if tensor_name(key, held.module, held.name) in saved]
        if keys:
            update.optimizer.state[held.main] = {
                key: torch.zeros((), device=counts_on)
                if key in update.counters
                else torch.zeros_like(held.main)
                for key in keys
            }


def buffers_of(model: RankModel) -> list[HeldTensor]:
    """Return the buffers of modules; they belong to a place in the layout of their module."""
    held = []
    for module, wrapped in model.modules().items():
        groups, whole = wrapped.ownership.groups, wrapped.module
        place = f"tensor {groups.tp.rank()} of {groups.tp.size()}"
        stage = f"stage {groups.pp.rank()} of {groups.pp.size()}"
        saved = whole.state_dict(keep_vars=True)
        for name, buffer in whole.named_buffers():
            if name in saved:
                title = tensor_name(BUFFERS, module, f"{place}, {stage}, {name}")
                values = buffer.view(buffer.shape or (1,))
                block = TensorBlock((0,) * values.dim(), values)
                first = groups.dp_cp.rank() == 0
                held.append(HeldTensor(title, tuple(values.shape), (block,), first))
    return held


_TENSOR_RANK = ", tensor rank "


def random_of(model: RankModel, rank: int) -> dict[str, torch.Tensor]:
    """Return the random states of a rank by the names under which they are saved.

    Those of a module are equal on the ranks with the same tensor parallel rank, which the name has.
    """
    places = {f"{name}/": m.ownership.groups.tp.rank() for name, m in model.modules().items()}
    states = {**random_states(), "python": _python_state(), "numpy": _numpy_state()}
    named = {}
    for name, state in states.items():
        own = [place for prefix, place in places.items() if prefix in name]
        title = f"{name}{_TENSOR_RANK}{own[0]}" if own else name
        named[tensor_name(RANDOM, str(rank), title)] = state
    return named


def set_random(states: Mapping[str, torch.Tensor]) -> None:
    """Go on from saved states; those of modules that are missing stay."""
    titles = {name.split("/", 2)[2]: state for name, state in states.items()}
    named = {title.split(_TENSOR_RANK)[0]: state for title, state in titles.items()}
    python, numbers = named.pop("python", None), named.pop("numpy", None)
    set_random_states(named)
    if python is not None:
        *words, gauss = python.tolist()
        random.setstate((3, tuple(map(int, words)), None if np.isnan(gauss) else gauss))
    if numbers is not None:
        *words, place, has_gauss, gauss = numbers.tolist()
        key = np.array(words, dtype=np.uint32)
        np.random.set_state(("MT19937", key, int(place), int(has_gauss), gauss))


def _python_state() -> torch.Tensor:
    """Return the state of `random`; its words are exact in fp64."""
    _, words, gauss = random.getstate()
    return torch.tensor([*words, float("nan") if gauss is None else gauss], dtype=torch.float64)


def _numpy_state() -> torch.Tensor:
    state = np.random.get_state(legacy=False)
    inner = state["state"]
    words = [*inner["key"].tolist(), inner["pos"], state["has_gauss"], state["gauss"]]
    return torch.tensor(words, dtype=torch.float64)


def held_by(model: RankModel, update: MainGradUpdate) -> list[HeldTensor]:
    """Return what a rank holds of the state, random states aside."""
    return [*weights_of(model), *optimizer_states_of(model, update), *buffers_of(model)]
