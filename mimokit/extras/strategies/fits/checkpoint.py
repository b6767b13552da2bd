"""Checkpoints of a node: everything that its next step depends on.

They hold tensors and plain values (`torch.load(weights_only=True)`), so that reading one runs
nothing. A node keeps its last two checkpoints. All nodes have written a checkpoint before any
replaces the one before it, so after a killed node all have one of a common step.
"""

import json
import os
import pickle
import random
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError

from mimokit.config.text_file import open_regular, reason_of
from mimokit.extras.strategies.fits.agreement import gathered_values
from mimokit.extras.strategies.fits.job import FitError, FitJob
from mimokit.extras.strategies.fits.records import Record
from mimokit.extras.strategies.nodes.communicate import Message
from mimokit.extras.strategies.nodes.optim import OptimSpec
from mimokit.units import counted, shown

LAST, BEFORE = "checkpoint.pt", "previous.pt"
_HEADER = "archive/header.json"
"""In the archive of a checkpoint, so that what it is of is known before its state is read."""
MOST_OF_HEADER = 2**20
"""Bytes; arguments of a strategy have a thousand."""


@dataclass(frozen=True)
class Header:
    """What a checkpoint is of.

    Attributes:
        setting: argument -> its value as text; a fit that goes on must have the same.
        save: its id, which all nodes have; "" before there were ids.
    """

    step: int
    nodes: int
    minibatch_size: int
    setting: Mapping[str, str]
    save: str = ""


@dataclass
class NodeState:
    """A checkpoint; its records are what the node has reported since the one before."""

    header: Header
    model: dict[str, Any]
    strategy: dict[str, Any]
    generators: dict[str, Any]
    records: list[Record]


_HEADERS = TypeAdapter(Header)


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
    content = {name: value for name, value in vars(state).items() if name != "header"}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # By a path torch would not say why the system has refused to write.
        with part.open("wb") as stream:
            torch.save(content, stream)
        with zipfile.ZipFile(part, "a") as archive:
            archive.writestr(_HEADER, json.dumps(asdict(state.header)))
    except Exception as error:
        raise _unwritable(rank, error) from error
    if nodes > 1:
        dist.barrier()
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / BEFORE)
    os.replace(part, folder / LAST)


def load_node(
    folder: Path, setting: Mapping[str, str], rank: int, nodes: int, device: torch.device
) -> NodeState:
    """Return the last checkpoint that all nodes have. Collective.

    Raises:
        FitError: it is of another fit, cannot be read, or some nodes have none.
    """
    last, before = (folder / str(rank) / name for name in (LAST, BEFORE))
    path = last if last.exists() else before
    header = _header(path, rank) if path.exists() else None
    gathered_headers = gathered_values(None if header is None else asdict(header), nodes)
    headers = [None if each is None else Header(**each) for each in gathered_headers]
    if not any(headers):
        raise FitError(none_in(folder))
    _check(headers, setting, nodes, folder)
    common = min(header.step for header in headers if header is not None)
    if header is None or header.step != common:
        path = before
        header = _header(path, rank) if path.exists() else None
    steps, saves = zip(*gathered_values(_place(header), nodes), strict=True)
    if header is None or set(steps) != {common}:
        raise FitError(f"the checkpoints in {folder} are of different steps: {list(steps)}")
    if len(set(saves)) > 1:
        odd = next(node for node, save in enumerate(saves) if save != saves[0])
        raise FitError(
            f"the checkpoints in {folder} are of different saves: that of node {odd} is of another "
            "fit than that of node 0; go on from one copy of them, or begin again"
        )
    return _read(path, header, rank, device)


def _place(header: Header | None) -> tuple[int | None, str]:
    return (None, "") if header is None else (header.step, header.save)


def _header(path: Path, rank: int) -> Header:
    try:
        with open_regular(path, "rb") as file, zipfile.ZipFile(file) as archive:
            # A few bytes of what is compressed would become gigabytes; torch compresses nothing.
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise zipfile.BadZipFile("it is compressed, which no fit writes")
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is not as it was written")
            if archive.getinfo(_HEADER).file_size > MOST_OF_HEADER:
                raise zipfile.BadZipFile(f"its header has more than {MOST_OF_HEADER:,} bytes")
            header = _HEADERS.validate_json(archive.read(_HEADER), strict=True)
    except (KeyError, ValidationError):
        raise _of_another(path, rank) from None
    except Exception as error:
        raise _unreadable(path, rank, error) from error
    return header


def _unreadable(path: Path, rank: int, error: Exception) -> FitError:
    why = reason_of(error) if isinstance(error, OSError) else shown(str(error), 200)
    return FitError(f"node {rank}: checkpoint {path} cannot be read: {why}")


def _read(path: Path, header: Header, rank: int, device: torch.device) -> NodeState:
    try:
        with torch.serialization.safe_globals([*get_args(Record), Message]):
            content = torch.load(path, map_location=device, weights_only=True)
        return NodeState(header, **content)
    except (pickle.UnpicklingError, TypeError):
        raise _of_another(path, rank) from None
    except Exception as error:  # torch reads another part of the archive than `zipfile` does
        raise _unreadable(path, rank, error) from error


def _of_another(path: Path, rank: int) -> FitError:
    return FitError(
        f"node {rank}: checkpoint {path} is of an earlier version of mimokit, or was not written "
        "by a fit; go on with that version, or begin again under another run_name"
    )


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
