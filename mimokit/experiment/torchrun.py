"""Trains without a notebook and without a cluster:

torchrun --nproc-per-node 8 -m mimokit.experiment.torchrun configs/digits_colocated.yaml
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mimokit.config import check_runnable
from mimokit.experiment.prepare import prepared, refusals, score
from mimokit.planning import plan as make_plan
from mimokit.samples import EvaluationSample, Sample, StepSample


@contextmanager
def world_from_environment() -> Iterator[int]:
    """Form the world that torchrun describes: nccl if each rank has a GPU, else gloo."""
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own_device = torch.cuda.is_available() and torch.cuda.device_count() >= local
    dist.init_process_group("nccl" if own_device else "gloo", timeout=datetime.timedelta(minutes=5))
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def main(file: str) -> None:
    """Train the layout of a config; rank 0 prints every `log_interval` iterations."""
    with refusals():
        config = prepared(file, int(os.environ["WORLD_SIZE"]))
        check_runnable(config)
    from mimokit.engine.training.loop import train_on_rank

    started = time.perf_counter()

    def report(sample: Sample) -> None:
        if isinstance(sample, EvaluationSample):
            print(score(sample.exact_match, sample.chance))
        elif isinstance(sample, StepSample) and sample.rank == 0 and is_due(sample):
            seconds = time.perf_counter() - started
            print(
                f"iteration {sample.iteration} loss {sample.loss:.4f} after {seconds:.1f} s",
                flush=True,
            )

    def is_due(sample: StepSample) -> bool:
        return sample.iteration % config.runtime.log_interval == 0

    with world_from_environment():
        train_on_rank(make_plan(config), config, report, lambda: False)


if __name__ == "__main__":
    typer.run(main)
