"""Savers without a model, and what tests have them do on ranks."""

import contextlib
import io
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist

from mimokit.cluster.worker.stack import Place, main_place
from mimokit.config.runtime import CheckpointConfig
from mimokit.engine.checkpoints.blocks import TensorBlock
from mimokit.engine.checkpoints.saver import Saver
from mimokit.engine.checkpoints.state import HeldTensor
from mimokit.planning.checkpoint_files import check_all_files
from mimokit.planning.checkpoints import Checkpoint, DataPosition, read_checkpoint, steps_in
from tests import seams
from tests.layouts import digits_config

SHAPE = (2, 100_000)


@contextmanager
def saver_of(folder: Path, begun: int = 0) -> Iterator[tuple[Saver, torch.Tensor]]:
    """Yield the saver of a rank of the world, and its weights, `weights/m/<rank>`."""
    checkpoint = CheckpointConfig(interval=1, keep=2, directory=str(folder))
    progress = {"learning_rate_steps": 0, "loss_scale": None}
    update: Any = SimpleNamespace(peers=None, exchanged=dict, progress=lambda: progress)
    weights = torch.zeros(SHAPE)
    name = f"weights/m/{dist.get_rank()}"
    held = [HeldTensor(name, SHAPE, (TensorBlock((0, 0), weights),), True)]
    with mock.patch(seams.HELD_BY, return_value=held), mock.patch(seams.RANDOM_OF, return_value={}):
        data, model = DataPosition("", 1, 1, 1, 1), mock.Mock()
        yield Saver(digits_config(checkpoint=checkpoint), model, update, data, begun), weights


def places_while_the_disk_is_slow(folder: str) -> list[Place]:
    """Return two looks at a rank that waits until its files are on the disk."""
    looked: list[Place] = []
    enough = threading.Event()

    def look() -> None:
        while "finish" not in main_place().stack:
            time.sleep(0.01)
        looked.append(main_place())
        time.sleep(0.1)
        looked.append(main_place())
        enough.set()

    slow = mock.patch(seams.WRITE_FILES, side_effect=lambda *_: enough.wait() and {})
    with saver_of(Path(folder)) as (saver, _), slow:
        threading.Thread(target=look).start()
        saver.save(1)
        saver.finish()
    return looked


def save_steps(folder: str, seed: int) -> None:
    """Save after steps 2 and 4, other weights each time, on each rank and with each seed."""
    draw = torch.Generator().manual_seed(seed * dist.get_world_size() + dist.get_rank())
    with saver_of(Path(folder)) as (saver, weights):
        for step in (2, 4):
            weights.normal_(generator=draw)
            saver.save(step)
            saver.finish()


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint, all bytes of which are those that were saved."""
    steps = steps_in(folder)
    if not steps:
        return None
    checkpoint = read_checkpoint(steps[max(steps)])
    assert checkpoint.digests
    check_all_files(checkpoint)
    return checkpoint


def save_again_and_again(folder: Path) -> NoReturn:
    """Save after every step, in a world of one; the weights say which step it is."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = newest(folder)
    begun = 0 if before is None else before.step
    with saver_of(folder, begun) as (saver, weights):
        for step in itertools.count(begun + 1):
            weights.fill_(step)
            saver.after_step(step)
    raise AssertionError


def serve(folder: Path) -> None:
    """Fork a process that saves for every line that comes; print its number and how it has ended.

    This process has no threads, so its fork inherits no lock that one of them holds.
    """
    for _ in sys.stdin:
        process = os.fork()
        if not process:
            save_again_and_again(folder)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


Trouble = Callable[[Path], object]


def save_in_trouble(
    folder: str, troubles: Mapping[int, Trouble]
) -> dict[int, tuple[str, list[int]]]:
    """Save after every step, and let rank 0 get into trouble before some.

    Returns step -> what this rank has printed in it, and the steps with checkpoints after it.
    """
    seen = {}
    with saver_of(Path(folder)) as (saver, _):
        for step in range(1, max(troubles) + 3):
            if dist.get_rank() == 0 and step in troubles:
                troubles[step](Path(folder))
            dist.barrier()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                saver.save(step)
                saver.finish()
            seen[step] = said.getvalue(), list(steps_in(Path(folder)))
            dist.barrier()
    return seen


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
