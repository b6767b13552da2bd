"""What the prediction for shared cores says of a rank, against what the rank really holds."""

from __future__ import annotations

from typing import Any

import pytest

from mimokit.cluster import EngineCluster
from mimokit.planning import plan_layout
from mimokit.prediction.local_cpu.step_costs import stored_on_rank
from tests.layouts import digits_config
from tests.layouts_apart import apart_config


def _held(plan: Any, config: Any) -> dict[str, tuple[int, int, int, int, int]]:
    """Return module -> tensors and numbers of weights, bytes of weights, gradients, moments."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    with prepared(plan, config, default_data) as state:
        exhaust(training_step(state))
        found = {}
        for name, module in state.model.modules().items():
            own = list(module.parameters())
            moments = [
                value
                for parameter in own
                for key, value in state.update.optimizer.state[parameter].items()
                if key in ("exp_avg", "exp_avg_sq")
            ]
            found[name] = (
                len(own),
                sum(one.numel() for one in own),
                sum(one.nbytes for one in own),
                sum(one.main_grad.nbytes for one in own),
                sum(one.nbytes for one in moments),
            )
        return found


@pytest.mark.parametrize(
    "config",
    [
        digits_config((2, 4), (2, 4)),
        digits_config((1, 8), (4, 2)),
        apart_config((2, 1, 2), (1, 2, 2), 2),
        apart_config((1, 2, 1), (2, 1, 1), 2),
    ],
    ids=["homogeneous", "colocated", "language model in stages", "encoder in stages"],
)
def test_weights_gradients_and_moments_to_the_byte(cluster: EngineCluster, config: Any) -> None:
    plan = plan_layout(config)
    for rank, held in enumerate(cluster.run(_held, plan, config, world_size=plan.world_size)):
        predicted = stored_on_rank(config, plan, rank)
        assert held == {
            name: (
                one.tensors,
                one.numbers,
                one.weight_bytes,
                one.weight_bytes,
                one.optimizer_bytes,
            )
            for name, one in predicted.items()
        }
