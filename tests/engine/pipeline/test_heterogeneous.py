"""Modules on ranks of their own: the pipeline computes what one process computes."""

import pytest

import mimokit
from mimokit.cluster import RankError
from tests import seams
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.planted import planted


@pytest.mark.parametrize(
    "config", [apart_config((1, 1, 1), (1, 2, 1), 3), digits_config((1, 2), (2, 1), 3)]
)
def test_steps_run_in_the_order_of_the_plan(cluster, config):
    plan = mimokit.plan(config)
    seen = cluster.run(_observed_steps, plan, config, world_size=plan.world_size)
    for rank, steps in enumerate(seen):
        planned = [
            (action.kind, action.microbatch)
            for action in plan.program.actions(rank)
            if action.kind not in ("grad-sync", "optimizer")
        ]
        assert [step for step in steps if step[0] != "wait"] == planned


def _observed_steps(plan, config):
    from mimokit.engine.pipeline.steps import forward_backward_steps
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepare

    state = prepare(RunOfRank(plan, config))
    seen = []
    exhaust(
        forward_backward_steps(state.iterator, state.model),
        lambda step: seen.append((step.name, step.microbatch)),
    )
    return seen


def _rows_doubled(original):
    """Plant: the encoder claims 8 rows per sample whatever it was given."""
    import torch

    from mimokit.engine.pipeline.base_stage import StageOutput

    def forward(self, given):
        if self.name != "images":
            return original(self, given)
        return StageOutput(torch.zeros(64, 64, requires_grad=True), [8] * 8)

    return forward


def test_rows_that_do_not_match_their_tokens_are_refused(cluster):
    config = apart_config((1, 1, 1), (1, 1, 1))
    with (
        planted(cluster, seams.STAGE_FORWARD, _rows_doubled, 2),
        pytest.raises(RankError, match="sent 8 rows for it; they must be equal"),
    ):
        cluster.run(_train_one_step, mimokit.plan(config), config, world_size=2)


def _train_one_step(plan, config):
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepare, training_step

    exhaust(training_step(prepare(RunOfRank(plan, config))))
