"""Fits on emulated links: how long they take against what is predicted."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mimokit.cluster import EngineCluster
from mimokit.engine.strategies import (
    DiLoCoStrategy,
    FedAvgStrategy,
    OptimSpec,
    SimpleReduceStrategy,
    SPARTAStrategy,
    Strategy,
    StreamingDiLoCoStrategy,
)
from mimokit.experiment import Trainer
from mimokit.prediction.network import Link
from mimokit.prediction.network import Network as Links
from tests.benchmarks.plain_fit import BATCH, NODES, Network, digits

SGD = OptimSpec(torch.optim.SGD, lr=0.01)


@dataclass(frozen=True)
class Case:
    """A fit on links.

    Attributes:
        name: in the table.
        strategy: of the fit.
        steps: of the fit.
        links: arguments of the network.
    """

    name: str
    strategy: Strategy
    steps: int
    links: dict[str, Any] = field(default_factory=dict)


def cases() -> tuple[Case, ...]:
    """Return fits of some seconds each."""
    line = {"bandwidth": "100 Mbit/s", "latency": "5 ms"}
    sites = {"sites": (2, 2), "inside": Link.of("1 Gbit/s"), **line}
    return (
        Case("DiLoCo, H 20, equal links", DiLoCoStrategy(SGD, H=20), 200, line),
        Case("SimpleReduce, equal links", SimpleReduceStrategy(SGD), 20, line),
        Case("FedAvg, islands of two, two sites", FedAvgStrategy(SGD, H=10, island_size=2), 100,
             sites),
        Case("SPARTA, p 0.1, each step", SPARTAStrategy(SGD, p_sparta=0.1), 40, line),
        Case("Streaming DiLoCo, overlapped",
             StreamingDiLoCoStrategy(SGD, H=40, fragments=2, overlap_steps=10), 200, line),
        Case("DiLoCo, one node half as fast", DiLoCoStrategy(SGD, H=20), 200,
             {**line, "speeds": (1.0, 1.0, 1.0, 0.5)}),
    )  # fmt: skip


def seconds_of(trainer: Trainer, case: Case, folder: Path, *, emulate: bool) -> tuple[float, float]:
    """Return how long a fit takes, measured and predicted."""
    result = trainer.start(
        strategy=case.strategy, num_nodes=NODES, max_steps=case.steps, batch_size=BATCH,
        minibatch_size=BATCH, val_interval=10**9, log_dir=folder,
        network=Links(emulate=emulate, **case.links),
    ).result()  # fmt: skip
    last = result.train.iloc[-1]
    return float(last["seconds"]), float(last["predicted_seconds"])


def rows() -> Iterator[dict[str, Any]]:
    """Measure."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, EngineCluster(NODES, progress=False) as cluster:
        trainer = Trainer(Network(), digits(), digits(64), cluster=cluster)
        for case in cases():
            measured, predicted = seconds_of(trainer, case, Path(folder), emulate=True)
            share = measured / predicted
            yield {
                "name": f"{case.name}: {measured:.2f} s, predicted {predicted:.2f} s",
                "measured": share, "target": "0.9 to 1.1", "unit": "times",
                "ok": 0.9 <= share <= 1.1,
            }  # fmt: skip


if __name__ == "__main__":
    from tests.benchmarks.table import show

    show("Fits on emulated links", rows())
