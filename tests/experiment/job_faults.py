"""`python -m mimokit.experiment` with data that fails on rank 1 where a config says so."""

import os
import signal
import sys
import time
from typing import Any

import typer

import mimokit.cluster.job as job
import mimokit.engine.data.sources as sources
from mimokit.cluster.worker.membership import Membership
from mimokit.config import ExperimentConfig
from mimokit.experiment.__main__ import main

RAISES, KILLED, STAYS = 0.011, 0.012, 0.013
"""Learning rates with which rank 1 raises or is killed when it loads its third batch, or cannot
leave its world from then on."""

_default = sources.default_data


def _faulty(config: ExperimentConfig) -> sources.TrainingData:
    data = _default(config)
    calls = [0]

    def collate(samples: list[Any]) -> Any:
        calls[0] += 1
        if calls[0] == 3 and os.environ["RANK"] == "1":
            if config.runtime.learning_rate == RAISES:
                raise KeyError("page 7 is missing")
            if config.runtime.learning_rate == KILLED:
                time.sleep(1.0)  # several batches: the samples of earlier steps have left
                os.kill(os.getpid(), signal.SIGKILL)
            if config.runtime.learning_rate == STAYS:
                job.LEAVE_SECONDS = 1.0
                Membership.leave = lambda self: time.sleep(1e6)  # type: ignore[method-assign]
        return data.collate_fn(samples)

    return sources.TrainingData(data.name, data.train, collate)


if __name__ == "__main__":
    sources.default_data = _faulty
    sys.argv[0] = "mimokit.experiment"
    typer.run(main)
