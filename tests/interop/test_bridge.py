"""Layouts as Python for Megatron-Bridge."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.interop import to_bridge
from mimokit.prediction import Layout, Workload
from tests.interop.bridge_stand_in import built, finalized, names_in
from tests.rows import rows


def test_what_the_config_of_bridge_has_no_field_for_stands_beside_it() -> None:
    own = ParallelSizes(
        2, 2, data=2, micro_batch=4, virtual=2, recompute=2, sequence_parallel=False,
        distributed_optimizer=False,
    )  # fmt: skip
    images = ParallelSizes(4, recompute=1, instances=2, fully_sharded=True, data=4)
    layout = Layout("heterogeneous", {"images": images, "language": own})
    workload = Workload(4096, 32, "fp8", frozen=frozenset({"images"}))
    source = to_bridge(layout, workload)
    assert built(source) == finalized(layout)
    names = names_in(source)
    assert [names[name] for name in ("WORLD_SIZE", "SEQ_LENGTH", "PRECISION")] == [24, 4096, "fp8"]
    assert (names["GLOBAL_BATCH_SIZE"], names["MICRO_BATCH_SIZE"]) == (32, 8)
    assert names["FROZEN_MODULES"] == ["images"]
    assert names["TRANSFORMER_OVERRIDES"] == {
        "images": {"recompute_granularity": "selective"},
        "language": {
            "virtual_pipeline_model_parallel_size": 2, "recompute_granularity": "full",
            "sequence_parallel": False, "recompute_method": "uniform", "recompute_num_layers": 1,
        },
    }  # fmt: skip
    assert names["DDP_OVERRIDES"] == {
        "images": {"num_distributed_optimizer_instances": 2, "use_megatron_fsdp": True},
        "language": {"use_distributed_optimizer": False},
    }


def test_the_language_module_gets_the_name_that_bridge_wants() -> None:
    modules = {"images": ParallelSizes(data=2), "llava-1.5-7b language": ParallelSizes(2, data=4)}
    source = to_bridge(Layout("heterogeneous", modules), Workload(4096, 8))
    assert list(built(source).module_parallelisms) == ["images", "language"]


@rows(
    "mode, encoder, own, sentence",
    ("colocated", ParallelSizes(data=8), ParallelSizes(data=8), "this layout is colocated"),
    ("heterogeneous", ParallelSizes(3), ParallelSizes(), "must be a power of two"),
    ("heterogeneous", ParallelSizes(data=2), ParallelSizes(data=3), "one must divide"),
    ("heterogeneous", ParallelSizes(2, expert=2), ParallelSizes(), "encoders are dense"),
    (
        "heterogeneous",
        ParallelSizes(),
        ParallelSizes(2, 4, expert=4),
        "does not divide the 2 ranks of a pipeline stage",
    ),
)
def test_what_bridge_refuses_is_refused(
    mode: Any, encoder: ParallelSizes, own: ParallelSizes, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        to_bridge(Layout(mode, {"images": encoder, "language": own}), Workload(4096, 48))


FEW = st.integers(1, 4)


@settings(max_examples=300)
@given(st.tuples(FEW, FEW, FEW, FEW), st.tuples(FEW, FEW, FEW, FEW, FEW))
def test_bridge_takes_what_is_written_and_nothing_else(
    encoder: tuple[int, ...], own: tuple[int, ...]
) -> None:
    """Sizes are tensor, pipeline, expert, data, and the language model's context."""
    images = ParallelSizes(encoder[0], encoder[1], expert=encoder[2], data=encoder[3])
    language = ParallelSizes(own[0], own[1], context=own[4], expert=own[2], data=own[3])
    layout = Layout("heterogeneous", {"images": images, "language": language})
    try:
        source = to_bridge(layout, Workload(4096, 12))
    except ConfigError:
        with pytest.raises((AssertionError, ValueError)):
            finalized(layout)
    else:
        assert built(source) == finalized(layout)
