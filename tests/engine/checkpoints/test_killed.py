"""A process that is killed while it saves leaves the checkpoint before, whole."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist

from mimokit.config.runtime import CheckpointConfig
from mimokit.engine.checkpoints.blocks import TensorBlock
from mimokit.engine.checkpoints.files import read_whole
from mimokit.engine.checkpoints.saver import Saver
from mimokit.engine.checkpoints.state import HeldTensor
from mimokit.experiment.restarts import newest
from mimokit.planning.checkpoints import DataPosition, steps_in
from tests.layouts import digits_config

KILLS = 12
SAVED = "mimokit.engine.checkpoints.saver"


def _save_for_ever(folder: Path) -> NoReturn:
    """Save after every step; the weights say which."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    checkpoint = CheckpointConfig(interval=1, keep=2, directory=str(folder))
    update: Any = SimpleNamespace(progress=lambda: {"learning_rate_steps": 0, "loss_scale": None})
    weights = torch.zeros(2, 100_000)
    held = [HeldTensor("weights/m/w", (2, 100_000), (TensorBlock((0, 0), weights),), True)]
    with (
        mock.patch(f"{SAVED}.held_by", return_value=held),
        mock.patch(f"{SAVED}.random_of", return_value={}),
    ):
        before = newest(folder)
        begun = 0 if before is None else before.step
        data, model = DataPosition("", 1, 1, 1, 1), mock.Mock()
        saver = Saver(digits_config(checkpoint=checkpoint), model, update, data, begun)
        for step in itertools.count(begun + 1):
            weights.fill_(step)
            saver.after_step(step)
    raise AssertionError


def test_killed_at_any_moment_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, KILLS)


def kill_while_saving(folder: Path, kills: int) -> None:
    """Kill a process that saves so many times; `tests.benchmarks.checkpoints` does 100."""
    draw, step = random.Random(0), 0
    for _ in range(kills):
        process = os.fork()
        if not process:
            try:
                _save_for_ever(folder)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while max(steps_in(folder), default=0) <= step and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(process, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(process, 0)[1]), "it had ended by itself"
        found = newest(folder)
        assert found is not None
        assert found.step == max(steps_in(folder)) > step, "the newest one is not whole"
        step = found.step
        assert (read_whole(found, ["weights/m/w"])["weights/m/w"] == step).all()
