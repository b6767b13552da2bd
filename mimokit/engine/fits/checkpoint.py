"""Checkpoints of a node: everything that its next step depends on.

Model and strategy are saved as they are, so that whatever a strategy remembers is saved too: outer
weights, residuals, exchanges under way. Classes and functions are saved as names, and reading runs
nothing that the fit itself does not hold. What an earlier version of mimokit has saved, or a
strategy that makes functions between steps, is a pickle: reading it runs what is in it, so the user
must say that the file is to be trusted.

A node keeps its last two checkpoints. All nodes have written a checkpoint before any replaces the
one before it, so after a killed node all have one of a common step.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mimokit.engine.fits import safe_pickle
from mimokit.engine.fits.agreement import gathered
from mimokit.engine.fits.job import FitError, FitJob
from mimokit.engine.fits.records import Record
from mimokit.engine.fits.safe_pickle import Known
from mimokit.engine.strategies.communicate import Message, UnderWay
from mimokit.engine.strategies.modules import Summed
from mimokit.engine.strategies.optim import OptimSpec
from mimokit.engine.strategies.strategy import Strategy
from mimokit.units import counted

LAST, BEFORE = "checkpoint.pt", "previous.pt"
_HEADER = "archive/header.json"
"""In the archive of a checkpoint, so that what it is of is known before its state is read."""


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


def _moved(module_name: str) -> str:
    """Return where a module of an earlier checkpoint lies now."""
    module = module_name.replace("mimokit.engine.strategies.fit.", "mimokit.engine.fits.")
    package, _, name = module.rpartition(".")
    if package == "mimokit.engine.strategies":
        return f"{package}.{_MOVED.get(name, name)}"
    return module


def known_of(model: nn.Module, strategy: Strategy, rank: int) -> Known:
    """Return what a checkpoint may hold of a strategy that has begun; raises `FitError`."""
    always = (Header, NodeState, *get_args(Record), Message, UnderWay, Summed)
    try:
        return safe_pickle.known_in(always, defaultdict, dict, model, strategy)
    except Exception as error:
        raise _unwritable(rank, error) from error


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


def save(folder: Path, state: NodeState, rank: int, nodes: int, known: Known) -> None:
    """Write the checkpoint of a node next to the one before, and rename it. Collective."""
    folder = folder / str(rank)
    part = folder / f".{LAST}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safe_pickle.save(state, part, known)
        with zipfile.ZipFile(part, "a") as archive:
            archive.writestr(_HEADER, json.dumps(asdict(state.header)))
    except Exception as error:
        raise _unwritable(rank, error) from error
    if nodes > 1:
        dist.barrier()
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / BEFORE)
    os.replace(part, folder / LAST)


def load(folder: Path, setting: Mapping[str, str], rank: int, nodes: int, read: Read) -> NodeState:
    """Return the last checkpoint that all nodes have. Collective.

    Raises:
        FitError: it is of another fit, cannot be read, or some nodes have none.
    """
    last, before = (folder / str(rank) / name for name in (LAST, BEFORE))
    path = last if last.exists() else before
    header = _header(path, read) if path.exists() else None
    gathered_headers = gathered(None if header is None else asdict(header), nodes)
    headers = [None if each is None else Header(**each) for each in gathered_headers]
    if not any(headers):
        raise FitError(none_in(folder))
    _check(headers, setting, nodes, folder)
    common = min(header.step for header in headers if header is not None)
    if header is None or header.step != common:
        path = before
    state = read(path) if path.exists() else None
    steps = gathered(None if state is None else state.header.step, nodes)
    if state is None or set(steps) != {common}:
        raise FitError(f"the checkpoints in {folder} are of different steps: {steps}")
    return state


def _header(path: Path, read: Read) -> Header:
    """Return what a checkpoint is of; of an earlier version the whole is read."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if _HEADER in archive.namelist():
                return Header(**json.loads(archive.read(_HEADER)))
    return read(path).header


def none_in(folder: Path) -> str:
    """Say that there is nothing to go on from."""
    return (
        f"fit: resume is True, but {folder} holds no checkpoint; give the save_dir and run_name of "
        "a fit with a checkpoint_interval, or leave resume out."
    )


def _unwritable(rank: int, error: Exception) -> FitError:
    reason: object = error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            reason = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return FitError(f"node {rank}: its checkpoint cannot be written: {reason}")


def _check(
    headers: Sequence[Header | None], setting: Mapping[str, str], nodes: int, folder: Path
) -> None:
    first = next(header for header in headers if header is not None)
    checkpoint = f"the checkpoint in {folder} is of"
    if first.nodes != nodes:
        raise FitError(f"{checkpoint} {counted(first.nodes, 'node')}, but num_nodes is {nodes}")
    for name in dict.fromkeys([*first.setting, *setting]):
        before, now = first.setting.get(name), setting.get(name)
        if before != now:
            raise FitError(f"{checkpoint} another fit: {name} was {before} and is {now}")
    missing = [node for node, header in enumerate(headers) if header is None]
    if missing:
        raise FitError(f"node {missing[0]}: has no checkpoint in {folder}, but others have")


Read: TypeAlias = Callable[[Path], NodeState]


def reader(rank: int, device: torch.device, known: Known, *, trusted: bool) -> Read:
    """Return what reads a checkpoint of a node; it raises `FitError` if it cannot be read."""

    def read(path: Path) -> NodeState:
        try:
            if trusted:
                state = safe_pickle.load_trusted(path, device, known, _moved)
            else:
                state = safe_pickle.load(path, device, known)
        except pickle.UnpicklingError as error:
            if trusted or not zipfile.is_zipfile(path):
                raise FitError(f"node {rank}: checkpoint {path} cannot be read: {error}") from error
            raise FitError(
                f"node {rank}: checkpoint {path} cannot be read without running what is in it, as "
                "it is of an earlier version or holds what this fit does not; if nobody else could "
                "write it, go on by trust_checkpoints=True"
            ) from error
        except Exception as error:
            raise FitError(f"node {rank}: checkpoint {path} cannot be read: {error}") from error
        if not isinstance(state, NodeState):
            raise FitError(f"node {rank}: {path} is no checkpoint of a fit")
        return state

    return read


def extend(strategy: Strategy, begun: Strategy) -> None:
    """Give a strategy that comes from a checkpoint the steps of the fit that goes on.

    Args:
        begun: the strategy of that fit before its first step.
    """
    if strategy.max_steps == begun.max_steps:
        return
    strategy.max_steps = begun.max_steps
    if isinstance(strategy.scheduler, LambdaLR) and isinstance(begun.scheduler, LambdaLR):
        strategy.scheduler.lr_lambdas = begun.scheduler.lr_lambdas


def generator_states() -> dict[str, Any]:
    """Return the states of all random generators of this process."""
    kind, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {"python": random.getstate()}
    states["numpy"] = (str(kind), [int(key) for key in keys], *rest)
    states["torch"] = torch.get_rng_state()
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Put the generators into states that `generator_states` returned."""
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
