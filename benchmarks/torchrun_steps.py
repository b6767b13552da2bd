"""One side of `training_speed`: train under torchrun, print rank 0's time after every step."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mimokit.experiment.prepare import finalized_copy
from mimokit.planning import plan_layout
from mimokit.samples import Sample, StepSample


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
    """Train the layout of a config."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.loop import train_on_rank

    config = finalized_copy(file, int(os.environ["WORLD_SIZE"]))
    times: list[float] = []

    def keep(sample: Sample) -> None:
        if isinstance(sample, StepSample):
            times.append(sample.time)

    with world_from_environment() as rank:
        train_on_rank(RunOfRank(plan_layout(config), config), keep, lambda: False)
        if rank == 0:
            print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
