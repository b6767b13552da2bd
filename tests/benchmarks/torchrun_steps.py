"""One side of `training_speed`: train under torchrun, print rank 0's time after every step."""

from __future__ import annotations

import json
import os
import sys

from mimokit.experiment.prepare import prepared
from mimokit.experiment.torchrun.world import world_from_environment
from mimokit.planning import plan_layout
from mimokit.samples import Sample, StepSample


def main(file: str) -> None:
    """Train the layout of a config."""
    from mimokit.engine.training.loop import train_on_rank

    config = prepared(file, int(os.environ["WORLD_SIZE"]))
    times: list[float] = []

    def keep(sample: Sample) -> None:
        if isinstance(sample, StepSample):
            times.append(sample.time)

    with world_from_environment() as rank:
        train_on_rank(plan_layout(config), config, keep, lambda: False)
        if rank == 0:
            print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
