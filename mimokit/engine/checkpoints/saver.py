"""Saves checkpoints while a run goes on: copied within a step, written by a thread of each rank.

A checkpoint is written into a folder that no reader takes for one. Once every rank has said that
its files are on the disk, rank 0 adds the marker and renames the folder.
"""

import contextlib
import json
import os
import platform
import random
import shutil
import threading
import time
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import Shape
from mimokit.cluster.rank import flush, waiting
from mimokit.config import ExperimentSections
from mimokit.engine.checkpoints.files import BlocksByFile, sync, write_files
from mimokit.engine.checkpoints.state import held_by, random_of
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import rank_device
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.pipeline.model import RankModel
from mimokit.planning import checkpoints
from mimokit.planning.checkpoint_files import save_id
from mimokit.planning.digests import sealed
from mimokit.result_files import without_secrets_in, write_json
from mimokit.versions import version_of

_ALIVE_SECONDS = 1.0


class Saver:
    """Saves checkpoints of a run, on all ranks alike. Every method is collective.

    Args:
        config: has `runtime.checkpoint`, whose directory is on a file system that all ranks share.
        begun: steps that were done before this run.
        update: if it has peers in other replicas of the layout, these save into the same
            checkpoints, and every method is collective over all of them.

    Raises:
        ConfigError: the ranks do not share it, it cannot be written, or it has checkpoints of
            later steps, of another run.
    """

    def __init__(
        self,
        config: ExperimentSections,
        model: RankModel,
        update: MainGradUpdate,
        data: checkpoints.DataPosition,
        begun: int,
    ) -> None:
        settings = config.runtime.checkpoint
        assert settings is not None
        assert settings.directory is not None
        self._settings, self._directory = settings, Path(settings.directory)
        self._config, self._model, self._update, self._data = config, model, update, data
        self._rank = dist.get_rank()
        self._peers = update.peers
        self._replica = 0 if self._peers is None else self._peers.replica
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        self._own: dict[str, Shape] = {}
        self._shapes: dict[str, Shape] = {}
        self._pending: Path | None = None
        self._content: checkpoints.Checkpoint | None = None
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._told = False
        self._saved: int | None = None
        self._digests: dict[str, str] = {}
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
        folder = (
            self._directory
            / f".{checkpoints.folder_of_step(step)}.{self._token}{checkpoints.PARTIAL}"
        )
        files, shapes = self._copied()
        self._pending, self._saved = folder, step
        self._content = checkpoints.Checkpoint(
            folder,
            step,
            checkpoints.layout_json(self._config),
            self._everywhere(shapes),
            {},
            self._data,
            self._update.progress(),
            datetime.now().astimezone().isoformat(timespec="seconds"),
            {
                "mimokit": version_of("mimokit") or "not installed",
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            save_id(self._token, step),
        )
        self._thread = threading.Thread(
            target=self._write,
            args=(self._within(folder), files, self._content.save),
            name="mimokit-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def poll(self) -> None:
        """Complete a checkpoint that every rank has written. Collective while one is unfinished."""
        if self._pending is None:
            return
        assert self._thread is not None
        alive = self._thread.is_alive()
        if not alive:
            flush()  # a run that goes on from this checkpoint does not compute these rows again
        writing, failed = self._sums(alive, self._error is not None)
        if writing:
            return
        self._thread.join()
        folder, self._pending = self._pending, None
        if not failed:
            self._gather_digests()
        if not failed and self._peers is not None:
            self._write_own_marker(folder)
            (failed,) = self._sums(self._error is not None)
        whole, first = not failed, self._rank == self._replica == 0
        with waiting():
            if first:
                whole = whole and self._complete(folder)
            if first and not whole:
                shutil.rmtree(folder, ignore_errors=True)
        if failed:
            self._report()
        if whole:
            self._told = False

    def _sums(self, *values: float) -> list[float]:
        total = torch.tensor([float(value) for value in values], device=rank_device())
        dist.all_reduce(total)
        if self._peers is not None:
            self._peers.sum(total)
        sums: list[float] = total.tolist()
        return sums

    def _within(self, folder: Path) -> Path:
        return folder / checkpoints.folder_of_replica(self._replica)

    def finish(self) -> None:
        """Wait until what has been begun is whole. Collective."""
        while self._pending is not None:
            assert self._thread is not None
            with waiting():
                while self._thread.is_alive():
                    self._thread.join(_ALIVE_SECONDS)  # an abort reaches a thread that runs
            self.poll()

    def _report(self) -> None:
        """Say why a checkpoint is missing, on the first rank that knows. Collective.

        The run goes on, and the checkpoints before are whole.
        """
        error, self._error = self._error, None
        reasons = gather_json("" if error is None else error.strerror or str(error))
        wrong = [rank for rank, reason in enumerate(reasons) if reason]
        count = 1 if self._peers is None else self._peers.plan.replicas
        failed = self._sums(*(bool(wrong) and self._replica == number for number in range(count)))
        if self._rank == 0 and wrong and not any(failed[: self._replica]):
            self._say(wrong[0], reasons[wrong[0]])

    def _say(self, rank: int, reason: str) -> None:
        """Say it once, until a checkpoint is whole again."""
        if self._told or self._content is None:
            return
        self._told = True
        rank += 0 if self._peers is None else self._peers.first_rank
        print(
            f"The checkpoint of step {self._content.step} in {self._directory} could not be "
            f"written by rank {rank} ({reason}): training goes on, and no more is said of it "
            "until a checkpoint is whole again.",
            flush=True,
        )

    def _agreed_token(self, begun: int) -> str:
        first = self._rank == self._replica == 0
        # Sums of fp32 are exact up to 24 bits.
        draw = random.SystemRandom()
        numbers = self._sums(*(draw.getrandbits(24) if first else 0 for _ in range(3)))
        token, problem = "".join(f"{int(number):06x}" for number in numbers), ""
        probe = self._directory / f".{token}.probe"
        if first:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                for left in self._directory.glob(f".*{checkpoints.PARTIAL}"):
                    shutil.rmtree(left, ignore_errors=True)
                probe.write_bytes(b"0" * 4096)
            except OSError as error:
                problem = f"it cannot be written ({error.strerror or error}); choose another folder"
            if later := [step for step in checkpoints.steps_in(self._directory) if step > begun]:
                problem = (
                    f"it has a checkpoint of step {max(later)}, which a run that begins with step "
                    f"{begun} has not made; choose another folder (runtime.checkpoint.directory)"
                )
        problem = gather_json(problem)[0]
        (stopped,) = self._sums(bool(problem))
        if stopped:
            raise checkpoints.unusable(self._directory, problem or "replica 0 cannot use it")
        seen = gather_json(probe.is_file())
        self._sums(0)  # all replicas have looked
        if first:
            probe.unlink(missing_ok=True)
        if not all(seen):
            rank = seen.index(False) + (0 if self._peers is None else self._peers.first_rank)
            raise checkpoints.unusable(
                self._directory,
                f"rank {rank} does not see what rank 0 writes there; choose a folder "
                "on a file system that the hosts of all ranks share (runtime.checkpoint.directory)",
            )
        return token

    def _copied(self) -> tuple[BlocksByFile, dict[str, Shape]]:
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
        for name, values in self._update.exchanged().items():
            if values.numel():
                title = checkpoints.tensor_name(checkpoints.EXCHANGE, str(self._rank), name)
                copied = values.detach().to("cpu", copy=True).view(-1)
                shapes[title] = tuple(copied.shape)
                files[0][title] = (0,), copied
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

    def _write(self, folder: Path, files: BlocksByFile, save: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._digests = write_files(folder, self._rank, files, save)
        except Exception as error:  # else its files would be missing from a whole checkpoint
            self._error = error if isinstance(error, OSError) else OSError(repr(error))

    def _gather_digests(self) -> None:
        """Give the marker the digests of the files of all ranks. Collective."""
        assert self._content is not None
        every = {name: text for own in gather_json(self._digests) for name, text in own.items()}
        self._content = replace(self._content, digests=every)

    def _write_own_marker(self, folder: Path) -> None:
        """Write the marker of a replica that is not the first, whose marker comes last."""
        if self._rank == 0 < self._replica:
            try:
                self._write_marker(self._within(folder))
            except OSError as error:
                self._error = error

    def _write_marker(self, folder: Path) -> None:
        assert self._content is not None
        files = sorted(folder.rglob("rank_*"))
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
        digests = {**self._content.digests, **_digests_of_replicas(folder)}
        content = replace(self._content, files=sizes, digests=digests).to_json()
        write_json(folder / checkpoints.MARKER, sealed(without_secrets_in(content)))
        sync(folder / checkpoints.MARKER)
        sync(folder)

    def _complete(self, folder: Path) -> bool:
        """Write the marker, give the folder its name, and remove checkpoints that are not kept.

        Returns False where that cannot be done.
        """
        assert self._content is not None
        target = self._directory / checkpoints.folder_of_step(self._content.step)
        try:
            self._write_marker(folder)
            _set_aside(target)
            os.rename(folder, target)
            sync(self._directory)
        except OSError as error:
            self._say(0, error.strerror or str(error))
            return False
        steps = sorted(checkpoints.steps_in(self._directory).items())
        for _, old in steps[: -self._settings.keep]:
            _set_aside(old)
        return True


def _digests_of_replicas(folder: Path) -> dict[str, str]:
    return {
        f"{marker.parent.name}/{name}": text
        for marker in sorted(folder.glob(f"*/{checkpoints.MARKER}"))
        for name, text in json.loads(marker.read_bytes())["digests"].items()
    }


def _set_aside(folder: Path) -> None:
    """Remove a checkpoint; killed meanwhile, it leaves a folder that no reader takes for one."""
    if not folder.exists():
        return
    gone = folder.with_name(f".{folder.name}.{time.monotonic_ns()}{checkpoints.PARTIAL}")
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)
