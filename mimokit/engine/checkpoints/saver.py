"""Saves checkpoints while a run goes on: copied within a step, written by a thread of each rank.

A checkpoint is written into a folder that no reader takes for one. Once every rank has said that
its files are on the disk, rank 0 adds the marker and renames the folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import threading
import time
import uuid
from collections import defaultdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import Shape
from mimokit.config import ExperimentConfig
from mimokit.engine.checkpoints.files import BlocksByFile, sync, write_files
from mimokit.engine.checkpoints.state import (
    HeldTensor,
    buffers_of,
    optimizer_states_of,
    random_of,
    weights_of,
)
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import rank_device
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.pipeline.model import RankModel
from mimokit.planning.checkpoints import (
    MARKER,
    Checkpoint,
    DataPosition,
    folder_of_step,
    layout_json,
    refused,
    steps_in,
)
from mimokit.result_files import write_json

_PARTIAL = ".partial"
"""How the folder of an unfinished checkpoint ends; it begins with a dot."""


def held_by(model: RankModel, update: MainGradUpdate) -> list[HeldTensor]:
    """Return what a rank holds of the state, random states aside."""
    return [*weights_of(model), *optimizer_states_of(model, update), *buffers_of(model)]


class Saver:
    """Saves checkpoints of a run, on all ranks alike. Every method is collective.

    Args:
        config: has `runtime.checkpoint`, whose directory is on a file system that all ranks share.
        begun: steps that were done before this run.

    Raises:
        ConfigError: the ranks do not share it, it cannot be written, or it has checkpoints of
            later steps, of another run.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        model: RankModel,
        update: MainGradUpdate,
        data: DataPosition,
        begun: int,
    ) -> None:
        settings = config.runtime.checkpoint
        assert settings is not None
        assert settings.directory is not None
        self._settings, self._directory = settings, Path(settings.directory)
        self._config, self._model, self._update, self._data = config, model, update, data
        self._rank = dist.get_rank()
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        self._own: dict[str, Shape] = {}
        self._shapes: dict[str, Shape] = {}
        self._pending: Path | None = None
        self._content: Checkpoint | None = None
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._saved: int | None = None
        self._token = self._agreed_token(begun)

    def after_step(self, step: int) -> None:
        """Complete what all ranks have written, and save if that is due after so many steps."""
        self.poll()
        if step % self._settings.interval == 0:
            self.save(step)

    def save(self, step: int) -> None:
        """Copy the state and begin to write it; waits while the one before is being written."""
        if step == self._saved:
            return
        self.finish()
        folder = self._directory / f".{folder_of_step(step)}.{self._token}{_PARTIAL}"
        files, shapes = self._copied()
        self._pending, self._saved = folder, step
        self._content = Checkpoint(
            folder,
            step,
            layout_json(self._config),
            self._everywhere(shapes),
            {},
            self._data,
            self._update.progress(),
            datetime.now().astimezone().isoformat(timespec="seconds"),
            {"mimokit": version("mimokit"), "torch": torch.__version__, "python": _python()},
        )
        self._thread = threading.Thread(
            target=self._write, args=(folder, files), name="mimokit-checkpoint", daemon=True
        )
        self._thread.start()

    def poll(self) -> None:
        """Complete a checkpoint that every rank has written. Collective while one is unfinished."""
        if self._pending is None:
            return
        assert self._thread is not None
        alive = self._thread.is_alive()
        state = torch.tensor([float(alive), float(self._error is not None)], device=rank_device())
        dist.all_reduce(state)
        writing, failed = state.tolist()
        if writing:
            return
        self._thread.join()
        folder, self._pending = self._pending, None
        if self._rank == 0:
            if failed:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._complete(folder)
        if failed:
            self._report()

    def finish(self) -> None:
        """Wait until what has been begun is whole. Collective."""
        while self._pending is not None:
            assert self._thread is not None
            self._thread.join()
            self.poll()

    def _report(self) -> None:
        """Say why a checkpoint is missing: the run goes on, and those before it are whole."""
        error, self._error = self._error, None
        if error is not None:
            why = error.strerror or str(error)
            print(f"A checkpoint in {self._directory} could not be written ({why}).", flush=True)

    def _agreed_token(self, begun: int) -> str:
        """Make the folder, remove what earlier runs left unfinished, and see that all share it."""
        token = uuid.uuid4().hex[:8] if self._rank == 0 else ""
        probe, problem = f".{token}.probe", ""
        if self._rank == 0:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for left in self._directory.glob(f".*{_PARTIAL}"):
                    shutil.rmtree(left, ignore_errors=True)
                (self._directory / probe).write_bytes(b"0" * 4096)
            except OSError as error:
                problem = f"it cannot be written ({error.strerror or error}); choose another folder"
            if later := [step for step in steps_in(self._directory) if step > begun]:
                problem = (
                    f"it has a checkpoint of step {max(later)}, which a run that begins with step "
                    f"{begun} has not made; choose another folder (runtime.checkpoint.directory)"
                )
        token, problem = gather_json([token, problem])[0]
        if problem:
            raise refused(self._directory, problem)
        seen = gather_json((self._directory / f".{token}.probe").is_file())
        if self._rank == 0:
            (self._directory / probe).unlink(missing_ok=True)
        if not all(seen):
            raise refused(
                self._directory,
                f"rank {seen.index(False)} does not see what rank 0 writes there; choose a folder "
                "on a file system that the hosts of all ranks share (runtime.checkpoint.directory)",
            )
        return str(token)

    def _copied(self) -> tuple[BlocksByFile, dict[str, Shape]]:
        """Copy what this rank writes into memory that is kept from one checkpoint to the next."""
        held = held_by(self._model, self._update)
        shapes = {tensor.name: tensor.whole for tensor in held}
        files: dict[int, dict[str, tuple[Shape, torch.Tensor]]] = defaultdict(dict)
        for tensor in held:
            for number, block in enumerate(tensor.blocks if tensor.is_written else ()):
                copied = self._copy(number, tensor.name, block.tensor)
                files[number][tensor.name] = block.offsets, copied
        for name, state in random_of(self._model, self._rank).items():
            shapes[name] = tuple(state.shape)
            files[0][name] = (0,), state.clone()
        return [files[number] for number in sorted(files)], shapes

    def _everywhere(self, own: dict[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the tensors of all ranks; they travel when those of a rank change.

        Stages and experts of other ranks have others, and an optimizer none before its first step.
        """
        changed = torch.tensor([float(own != self._own)], device=rank_device())
        dist.all_reduce(changed)
        if changed.item():
            ranks = gather_json({name: list(shape) for name, shape in own.items()})
            self._shapes = {name: tuple(shape) for rank in ranks for name, shape in rank.items()}
            self._own = own
        return self._shapes

    def _copy(self, number: int, name: str, block: torch.Tensor) -> torch.Tensor:
        kept = self._buffers.get((number, name))
        if kept is None or kept.shape != block.shape:
            kept = torch.empty(block.shape, dtype=block.dtype, device="cpu")
            self._buffers[number, name] = kept
        return kept.copy_(block)

    def _write(self, folder: Path, files: BlocksByFile) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_files(folder, self._rank, files)
        except Exception as error:  # else its files would be missing from a whole checkpoint
            self._error = error if isinstance(error, OSError) else OSError(repr(error))

    def _complete(self, folder: Path) -> None:
        """Write the marker, give the folder its name, and remove checkpoints that are not kept."""
        assert self._content is not None
        content = self._content.to_json()
        content["files"] = {
            path.name: path.stat().st_size for path in sorted(folder.glob("rank_*"))
        }
        target = self._directory / folder_of_step(self._content.step)
        try:
            write_json(folder / MARKER, content)
            sync(folder / MARKER)
            sync(folder)
            _set_aside(target)
            os.rename(folder, target)
            sync(self._directory)
        except OSError as error:
            self._error = error
            self._report()
            return
        steps = sorted(steps_in(self._directory).items())
        for _, old in steps[: -self._settings.keep]:
            _set_aside(old)


def _set_aside(folder: Path) -> None:
    """Remove a checkpoint; killed meanwhile, it leaves a folder that no reader takes for one."""
    if not folder.exists():
        return
    gone = folder.with_name(f".{folder.name}.{time.monotonic_ns()}{_PARTIAL}")
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _python() -> str:
    return platform.python_version()
