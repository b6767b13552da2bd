"""A small layout has every kind of group, bridge and schedule pattern of a large one."""

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError, ExperimentConfig
from mimokit.extras.shrinking import MOST_RANKS, kinds_of, shrunk
from mimokit.planning import plan_layout
from tests.layouts_drawn import numbered_config
from tests.planning.layouts import layout, sizes

SIZES = st.sampled_from((1, 2, 3, 4, 6, 8))
STAGES = st.sampled_from((1, 2, 4, 6))


@st.composite
def large_layouts(draw: Any) -> ExperimentConfig:
    """Draw layouts of up to a million ranks, mostly beyond what a machine holds."""
    mode = draw(st.sampled_from(("homogeneous", "colocated", "heterogeneous")))
    dp, tp, pp = draw(SIZES), draw(SIZES), draw(STAGES)
    language = sizes(tp=tp, dp=dp, pp=pp, cp=draw(st.sampled_from((1, 2))))
    encoder, schedule = dict(language), None
    if mode == "colocated":
        ranks = tp * dp * pp * language["context_parallel"]
        own = draw(st.sampled_from([n for n in range(1, 9) if ranks % n == 0]))
        encoder = sizes(tp=own, dp=ranks // own)
        schedule = "three_phase" if pp > 1 else None
    if mode == "heterogeneous":
        encoder = sizes(tp=draw(SIZES), dp=draw(SIZES), pp=draw(STAGES))
        language["rank_offset"] = encoder["tensor_parallel"] * encoder["data_parallel"] * (
            encoder["pipeline_parallel"]
        )  # fmt: skip
    batch, microbatches = 4 * draw(SIZES), draw(st.integers(1, 12))
    try:
        return layout(mode, language, batch, microbatches, schedule=schedule, images=encoder)
    except ConfigError:
        assume(False)
        raise


ONE_REPLICA_OF_SIX = layout(
    "colocated", sizes(tp=6, cp=2, pp=2), 24, 4, schedule="three_phase", images=sizes(tp=4, dp=6)
)


SIX_STAGES = layout(
    "colocated", sizes(pp=6, dp=1), 4, schedule="three_phase", images=sizes(tp=3, dp=2)
)


def _missing(config: ExperimentConfig) -> frozenset[str]:
    small = shrunk(config)
    assert all(one.total_world_size <= MOST_RANKS for one in small)
    kinds = frozenset().union(*(kinds_of(plan_layout(one)) for one in small))
    return kinds_of(plan_layout(config)) - kinds


FEW_AND_MANY = pytest.mark.parametrize("examples", [6, 60])


@FEW_AND_MANY
def test_no_kind_of_a_large_layout_is_lost(examples: int) -> None:
    @settings(max_examples=examples)
    @given(large_layouts())
    @example(ONE_REPLICA_OF_SIX)  # of few ranks one has what those of many lack
    @example(SIX_STAGES)  # it has few ranks, and none with fewer has all that it has
    def loses_nothing(config: ExperimentConfig) -> None:
        assert not _missing(config)

    loses_nothing()


@FEW_AND_MANY
def test_nor_of_one_that_runs_and_the_small_one_runs_too(examples: int) -> None:
    @settings(max_examples=examples // 2)
    @given(st.integers(0, 10_000))
    @example(882)  # rows of inner layers, which the first chunk of a pipeline adds
    @example(6832)  # the last layer of an encoder is an inner one
    def loses_nothing(number: int) -> None:
        config = numbered_config(number)
        config.strategy = None
        assert not _missing(config)
        for small in shrunk(config):
            plan_layout(small)
            assert small.total_world_size <= config.total_world_size

    loses_nothing()


def test_what_is_lost_with_fewer_ranks_is_said() -> None:
    config = layout("homogeneous", sizes(tp=4, dp=4), 4, images=sizes(tp=4, dp=4))
    assert [one.total_world_size for one in shrunk(config)] == [4]
    assert {one.total_world_size for one in shrunk(config, 2)} == {2}, "an axis each"
    with pytest.raises(ConfigError, match=r"no layout of at most 1 rank has .*several ranks along"):
        shrunk(config, 1)


def test_each_place_of_a_long_pipeline_is_kept() -> None:
    deep = layout("homogeneous", sizes(pp=6), 4, 12, images=sizes(pp=6))
    (small,) = shrunk(deep)
    assert small.model.module_parallelisms["language"].pipeline_parallel == 3
    pair = layout("homogeneous", sizes(pp=2), 4, 12, images=sizes(pp=2))
    lost = kinds_of(plan_layout(deep)) - kinds_of(plan_layout(shrunk(pair)[0]))
    assert any("at language middle" in kind for kind in lost)
