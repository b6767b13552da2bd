"""Measured rounds of DiLoCo and LocalSGD on shaped lines.

Repository diloco-measured (Apache-2.0), computed from its raw records: 4 nodes with one L40S each,
30,846,720 fp32 parameters, TCP shaped by Linux tc and checked by iperf3. DiLoCo: median of 3 runs;
LocalSGD, which is FedAvg: 1 run.
"""

from typing import NamedTuple

from mimokit.config import StrategyConfig
from mimokit.extras.strategies.exchanges import plan_of_size
from mimokit.extras.strategies.network import Network, StrategyPrediction, predict_strategy

PARAMETERS = 30_846_720
NODES = 4
LATENCY = "0.2 ms"
RUNS = {"diloco": 3, "fedavg": 1}


class Round(NamedTuple):
    """Seconds of compute per step, and seconds blocked per exchange, at a rate in Mbit/s."""

    rate: float
    strategy: str
    H: int
    compute: float
    blocked: float

    @property
    def seconds(self) -> float:
        return self.H * self.compute + self.blocked


ROUNDS = tuple(
    Round(rate, strategy, H, *times)
    for rate, strategy, found in (
        (198.5, "diloco", ((0.0266, 8.277), (0.0253, 8.298), (0.0252, 8.285), (0.0253, 8.506))),
        (198.5, "fedavg", ((0.0257, 8.225), (0.0247, 8.257), (0.0245, 8.311), (0.0245, 8.753))),
        (
            4963.5,
            "diloco",
            ((0.0267, 0.3172), (0.0254, 0.3187), (0.0252, 0.4225), (0.0253, 0.7191)),
        ),
        (
            4963.5,
            "fedavg",
            ((0.0258, 0.3135), (0.0246, 0.3212), (0.0246, 0.5115), (0.0247, 1.0406)),
        ),
    )
    for H, times in zip((1, 8, 32, 128), found, strict=True)
)


def predicted(row: Round, efficiency: float, spread: float) -> StrategyPrediction:
    """Predict the round of a row with given constants."""
    plan = plan_of_size(StrategyConfig(name=row.strategy, H=row.H), PARAMETERS, NODES)
    network = Network(f"{row.rate} Mbit/s", LATENCY, efficiency=efficiency, spread=spread)
    return predict_strategy(plan, network, row.compute)


def error(row: Round, efficiency: float, spread: float) -> float:
    """Return by what share the prediction is too long."""
    return predicted(row, efficiency, spread).round_seconds / row.seconds - 1
