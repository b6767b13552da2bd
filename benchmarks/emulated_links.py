"""Fits on emulated links and on a real one: how long they take against what is predicted."""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.plain_fit import BATCH, NODES, Network, digits
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
from mimokit.extras.strategies.network import Network as Links
from tests.network_hosts import engines_on, network_of, why_no_hosts

PAIRS = 3
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
    return (
        Case("DiLoCo, H 20, equal links", DiLoCoStrategy(SGD, H=20), 200, line),
        Case("SimpleReduce, equal links", SimpleReduceStrategy(SGD), 20, line),
        Case("FedAvg, islands of two", FedAvgStrategy(SGD, H=10, island_size=2), 100, line),
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


def emulated_rows() -> Iterator[dict[str, Any]]:
    """Compare emulated links with what is predicted."""
    with tempfile.TemporaryDirectory() as folder, EngineCluster(NODES, progress=False) as cluster:
        trainer = Trainer(Network(), digits(), digits(64), cluster=cluster)
        for case in cases():
            measured, predicted = seconds_of(trainer, case, Path(folder), emulate=True)
            yield _row(f"{case.name}: {measured:.2f} s over the predicted {predicted:.2f} s",
                       measured / predicted, 0.1)  # fmt: skip


def real_rows() -> Iterator[dict[str, Any]]:
    """Compare a real link with what is predicted and emulated, in turns."""
    case = Case("DiLoCo, H 20", DiLoCoStrategy(SGD, H=20), 200,
                {"bandwidth": "100 Mbit/s", "latency": "0.1 ms"})  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="mk") as folder,
        network_of([f"host{number}" for number in range(NODES)], "100mbit") as (address, hosts),
        engines_on(address, hosts, Path(folder)) as file,
        EngineCluster(NODES, cluster_file=file, progress=False) as far,
        EngineCluster(NODES, progress=False) as near,
    ):
        trainers = [
            Trainer(Network(), digits(), digits(64), cluster=cluster) for cluster in (far, near)
        ]
        pairs = [
            (seconds_of(trainers[0], case, Path(folder) / "logs", emulate=False),
             seconds_of(trainers[1], case, Path(folder) / "logs", emulate=True))
            for _ in range(PAIRS)
        ]  # fmt: skip
    real, predicted = (statistics.median(found[place] for found, _ in pairs) for place in (0, 1))
    share = statistics.median(found[0] / found[1] for found, _ in pairs)
    yield _row(f"{case.name}, real link of 100 Mbit/s: {real:.2f} s over the predicted "
               f"{predicted:.2f} s", share, 0.15)  # fmt: skip
    emulated = statistics.median(found[0] / real[0] for real, found in pairs)
    yield _row(f"{case.name}, emulated over the real link", emulated, 0.15)


def rows() -> Iterator[dict[str, Any]]:
    """Measure."""
    warnings.simplefilter("ignore")
    yield from emulated_rows()
    problem = why_no_hosts()
    if problem is None:
        yield from real_rows()
    else:
        none = {"measured": float("nan"), "target": None, "unit": "times", "ok": False}
        yield {"name": f"real link: not measured. {problem}", **none}


def _row(name: str, share: float, most: float) -> dict[str, Any]:
    return {
        "name": name, "measured": share, "target": f"{1 - most:g} to {1 + most:g}",
        "unit": "times", "ok": abs(share - 1) <= most,
    }  # fmt: skip


if __name__ == "__main__":
    from benchmarks.table import show

    show("Fits on emulated and real links", rows())
