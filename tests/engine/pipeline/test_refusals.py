"""What a pipeline cannot do is said in one sentence, before anything crosses where possible."""

from dataclasses import replace

import pytest

import mimokit
from mimokit.cluster import RankError
from mimokit.config import ConfigError
from mimokit.engine.pipeline.communicator import check_tag_room
from tests import seams
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted
from tests.rank_steps import run_step, state_of


def test_more_micro_batches_than_a_tag_holds_are_refused():
    told = r"1,025 values of microbatch, but .* holds 1,024"
    with pytest.raises(ConfigError, match=told):
        mimokit.plan(apart_config((1, 1, 1), (1, 1, 1), 1025))
    pipeline = mimokit.plan(apart_config((1, 1, 1), (1, 1, 1), 1024)).pipeline
    check_tag_room(pipeline)
    one_more = replace(pipeline.schedule, num_microbatches=1025)
    with pytest.raises(ValueError, match=told):
        check_tag_room(replace(pipeline, schedule=one_more))


def test_more_slots_than_a_tag_holds_are_refused():
    pipeline = mimokit.plan(apart_config((1, 1, 1), (1, 1, 1))).pipeline
    full = replace(pipeline.slots.stages[1], counts={"text": 0, "audio": 0, "vision": 257})
    crowded = replace(pipeline)
    crowded.__dict__["slots"] = replace(pipeline.slots, stages=(pipeline.slots.stages[0], full))
    with pytest.raises(ValueError, match="257 values of slot, but a message tag holds 256"):
        check_tag_room(crowded)


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
