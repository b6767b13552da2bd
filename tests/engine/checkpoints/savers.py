"""Savers without a model, and what tests have them do on ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from mimokit.cluster.worker.stack import Place, main_place
from mimokit.config.runtime import CheckpointConfig
from mimokit.engine.checkpoints.blocks import TensorBlock
from mimokit.engine.checkpoints.saver import Saver
from mimokit.engine.checkpoints.state import HeldTensor
from mimokit.planning.checkpoints import DataPosition
from tests.layouts import digits_config

_SAVER = "mimokit.engine.checkpoints.saver"
SHAPE = (2, 100_000)


@contextmanager
def saver_of(folder: Path, begun: int = 0) -> Iterator[tuple[Saver, torch.Tensor]]:
    """Yield the saver of a rank of the world, and its weights, `weights/m/<rank>`."""
    checkpoint = CheckpointConfig(interval=1, keep=2, directory=str(folder))
    update: Any = SimpleNamespace(progress=lambda: {"learning_rate_steps": 0, "loss_scale": None})
    weights = torch.zeros(SHAPE)
    name = f"weights/m/{dist.get_rank()}"
    held = [HeldTensor(name, SHAPE, (TensorBlock((0, 0), weights),), True)]
    with (
        mock.patch(f"{_SAVER}.held_by", return_value=held),
        mock.patch(f"{_SAVER}.random_of", return_value={}),
    ):
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

    with saver_of(Path(folder)) as (saver, _), mock.patch(f"{_SAVER}.write_files", lambda *_: enough.wait()):
        threading.Thread(target=look).start()
        saver.save(1)
        saver.finish()
    return looked
