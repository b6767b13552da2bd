"""What a pipeline cannot do is said in one sentence, before anything crosses where possible."""

import pytest

import mimokit
from mimokit.cluster import RankError
from tests import seams
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted
from tests.rank_steps import run_step, state_of


def _build_with_another_width(plan, config):
    """The encoder's rank has a config in which the language model is half as wide."""
    import torch.distributed as dist

    from mimokit.engine.pipeline.model import build_rank_model

    networks = config.model.module_architectures
    if dist.get_rank() == 0:
        networks[LANGUAGE] = networks[LANGUAGE].model_copy(update={"hidden_size": 32})
    build_rank_model(config.model, plan)


def test_another_width_is_refused_before_anything_crosses(cluster):
    config = apart_config((1, 1, 1), (1, 1, 2))
    with pytest.raises(RankError, match=r"takes \(4, 64\) in float32, but .* sent \(4, 32\) in fl"):
        cluster.run(_build_with_another_width, mimokit.plan(config), config, world_size=3)


def _raising_in_the_last_stage(original):
    """Plant: the second forward of the last stage raises."""
    import itertools

    import torch.distributed as dist

    calls = itertools.count(1)

    def forward(self, given):
        if next(calls) == 2 and self.last and self.name == LANGUAGE:
            raise ArithmeticError(f"planted on rank {dist.get_rank()}")
        return original(self, given)

    return forward


def test_a_rank_that_raises_is_named_and_all_come_back(cluster):
    config = apart_config((1, 1, 1), (1, 3, 1), 4)
    with (
        planted(cluster, seams.STAGE_FORWARD, _raising_in_the_last_stage, 4),
        pytest.raises(RankError) as caught,
    ):
        cluster.run(_train_a_step, mimokit.plan(config), config, world_size=4)
    told = str(caught.value)
    assert "rank 3 raised ArithmeticError: planted on rank 3" in told
    assert "On rank 3, stage 3 ('language_module' 2), in the action: forward of 1." in told
    assert_computes_the_same(cluster, config)


def _train_a_step(plan, config):

    with state_of(plan, config) as state:
        run_step(state)
