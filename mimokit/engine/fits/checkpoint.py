"""Checkpoints of a node: everything that its next step depends on.

Model and strategy are saved as they are, so that whatever a strategy remembers is saved too: outer
weights, residuals, exchanges under way. Reading a pickle runs what is in it: read only files of
your own fits.

A node keeps its last two checkpoints. All nodes have written a checkpoint before any replaces the
one before it, so after a killed node all have one of a common step.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mimokit.engine.fits.agreement import gathered
from mimokit.engine.fits.job import FitError, FitJob
from mimokit.engine.fits.records import Record
from mimokit.engine.strategies.optim import LAMBDA_COSINE, OptimSpec, lambda_cosine
from mimokit.engine.strategies.strategy import Strategy

LAST, BEFORE = "checkpoint.pt", "previous.pt"


@dataclass(frozen=True)
class Header:
    """What a checkpoint is of.

    Attributes:
        setting: argument -> its value as text; a fit that goes on must have the same.
    """

    step: int
    nodes: int
    minibatch_size: int
    setting: Mapping[str, str]


@dataclass
class NodeState:
    """A checkpoint; its records are what the node has reported since the one before.

    The strategy has the optimizers, and refers to the model.
    """

    header: Header
    model: nn.Module
    strategy: Strategy
    generators: dict[str, Any]
    records: list[Record]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Saves optimizers with all their attributes; torch's own way leaves those of subclasses."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.optim.Optimizer):
            # A scheduler puts a function in place of `step` that cannot be saved.
            state = {key: value for key, value in vars(obj).items() if key != "step"}
            return copyreg.__newobj__, (type(obj),), state  # type: ignore[attr-defined]
        return super().reducer_override(obj)


_MOVED = {
    "streaming_diloco": "diloco",
    "sparta_diloco": "diloco",
    "index_selectors": "sparta",
    "federated_averaging": "averaging",
    "noloco": "averaging",
    "schedule": "optim",
    "communicate_optimize_strategy": "modules",
}
"""Earlier -> present module of `mimokit.engine.strategies`."""


class _Unpickler(pickle.Unpickler):
    """Finds the classes of checkpoints that were written when modules lay elsewhere."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        module = module_name.replace("mimokit.engine.strategies.fit.", "mimokit.engine.fits.")
        package, _, name = module.rpartition(".")
        if package == "mimokit.engine.strategies":
            module = f"{package}.{_MOVED.get(name, name)}"
        return super().find_class(module, global_name)


_pickle = SimpleNamespace(
    Pickler=_Pickler,
    Unpickler=_Unpickler,
    dump=cloudpickle.dump,
    dumps=cloudpickle.dumps,
    __name__="cloudpickle",
)


def setting_of(job: FitJob) -> dict[str, str]:
    """Return what must be alike in a fit that goes on; called before the strategy begins."""
    strategy = job.strategy
    setting = {"strategy": type(strategy).__name__}
    if strategy.config is not None:
        arguments = strategy.config.model_dump(exclude={"name", "replicas"})
        setting |= {f"strategy.{key}": repr(value) for key, value in arguments.items()}
    simple = (int, float, str, OptimSpec, type(None))
    setting |= {
        f"strategy.{key}": repr(value)
        for key, value in vars(strategy).items()
        if isinstance(value, simple) and key not in ("seed", "max_steps", "local_step", "config")
    }
    for name in ("batch_size", "shuffle", "seed", "autocast"):
        setting[name] = repr(getattr(job, name))
    return setting


def save(folder: Path, state: NodeState, rank: int, nodes: int) -> None:
    """Write the checkpoint of a node next to the one before, and rename it. Collective."""
    folder = folder / str(rank)
    part = folder / f".{LAST}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(state, part, pickle_module=_pickle)
    except Exception as error:
        raise FitError(f"node {rank}: its checkpoint cannot be written: {error}") from error
    if nodes > 1:
        dist.barrier()
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / BEFORE)
    os.replace(part, folder / LAST)


def load(
    folder: Path, setting: Mapping[str, str], rank: int, nodes: int, device: torch.device
) -> NodeState | None:
    """Return the last checkpoint that all nodes have; None if no node has one. Collective.

    Raises:
        FitError: it is of another fit, cannot be read, or some nodes have none.
    """
    state = _read(folder / str(rank) / LAST, rank, device)
    if state is None:
        state = _read(folder / str(rank) / BEFORE, rank, device)
    found = gathered(None if state is None else asdict(state.header), nodes)
    headers = [None if one is None else Header(**one) for one in found]
    if not any(headers):
        return None
    _check(headers, setting, nodes, folder)
    assert state is not None
    common = min(header.step for header in headers if header is not None)
    if state.header.step != common:
        state = _read(folder / str(rank) / BEFORE, rank, device)
    steps = gathered(None if state is None else state.header.step, nodes)
    if set(steps) != {common}:
        raise FitError(f"the checkpoints in {folder} are of different steps: {steps}")
    return state


def _check(
    headers: Sequence[Header | None], setting: Mapping[str, str], nodes: int, folder: Path
) -> None:
    first = next(header for header in headers if header is not None)
    checkpoint = f"the checkpoint in {folder} is of"
    if first.nodes != nodes:
        raise FitError(f"{checkpoint} {first.nodes} nodes, but num_nodes is {nodes}")
    for name in dict.fromkeys([*first.setting, *setting]):
        before, now = first.setting.get(name), setting.get(name)
        if before != now:
            raise FitError(f"{checkpoint} another fit: {name} was {before} and is {now}")
    missing = [node for node, header in enumerate(headers) if header is None]
    if missing:
        raise FitError(f"node {missing[0]}: has no checkpoint in {folder}, but others have")


def _read(path: Path, rank: int, device: torch.device) -> NodeState | None:
    if not path.exists():
        return None
    try:
        state: NodeState = torch.load(
            path, map_location=device, weights_only=False, pickle_module=_pickle
        )
    except Exception as error:
        raise FitError(f"node {rank}: checkpoint {path} cannot be read: {error}") from error
    return state


def extend(strategy: Strategy, max_steps: int) -> None:
    """Give a strategy that comes from a checkpoint the steps of the fit that goes on."""
    if strategy.max_steps == max_steps:
        return
    strategy.max_steps = max_steps
    if strategy.lr_scheduler == LAMBDA_COSINE and isinstance(strategy.scheduler, LambdaLR):
        factor = lambda_cosine(max_steps, strategy.lr_scheduler_kwargs)
        strategy.scheduler.lr_lambdas = [factor] * len(strategy.scheduler.lr_lambdas)


def generator_states() -> dict[str, Any]:
    """Return the states of all random generators of this process."""
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    states["torch"] = torch.get_rng_state()
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Put the generators into states that `generator_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
