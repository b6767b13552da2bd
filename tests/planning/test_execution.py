"""`ModuleExecution`: a plan says of every module how its ranks compute it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mimokit
from mimokit.axes import CONFIG_FIELDS
from mimokit.config import ModuleParallelismConfig
from mimokit.config.parallelism import LEFT_OUT
from mimokit.config.sizes import RECOMPUTE_FULL, ParallelSizes, sizes_of
from mimokit.interop.size_fields import other_fields, rank_fields
from mimokit.planning.execution import ModuleExecution
from tests.planning.layouts import layout, sizes
from tests.rows import rows

SHIPPED = sorted((Path(__file__).parents[2] / "configs").glob("digits_*.yaml"))


@rows("file", *SHIPPED)
def test_what_ships_is_executed_as_its_config_says(file: Path) -> None:
    config = mimokit.load_experiment_config(file)
    executions = mimokit.plan(config).executions
    assert executions.keys() == config.model.module_parallelisms.keys()
    for name, execution in executions.items():
        stated = config.finalize().model.get_parallelism(name)
        assert execution == ModuleExecution().resized(
            tensor=stated.tensor_parallel,
            pipeline=stated.pipeline_parallel,
            data=stated.data_parallel or 0,
        )


ALL_SAID = {
    "context_parallel": 2,
    "expert_parallel": 2,
    "expert_tensor_parallel": 2,
    "moe_token_dispatcher_type": "allgather",
    "virtual_pipeline_model_parallel_size": 2,
    "recompute_granularity": "full",
    "num_distributed_optimizer_instances": 2,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "use_megatron_fsdp": True,
}


def test_every_choice_of_a_config_is_in_the_execution() -> None:
    """A field that a config has and the execution lacks would be planned and never executed."""
    own = sizes(tp=2, pp=2, dp=2, offset=1)
    config = layout("heterogeneous", own, 8, 2, images=sizes())
    plain = mimokit.plan(config).executions["language"]
    for field, value in ALL_SAID.items():
        setattr(config.model.module_parallelisms["language"], field, value)
    network = config.model.module_architectures["language"]
    network.num_moe_experts, network.moe_router_topk, network.add_bias_linear = 4, 2, False
    config.runtime.precision = "bf16"
    assert mimokit.plan(config).executions["language"] == replace(
        plain, token_dispatcher="allgather", precision="bf16", weights="bf16"
    ).resized(
        context=2,
        expert=2,
        expert_tensor=2,
        virtual=2,
        recompute=RECOMPUTE_FULL,
        instances=2,
        sequence_parallel=True,
        distributed_optimizer=True,
        fully_sharded=True,
    )
    stated = {*ALL_SAID, "tensor_parallel", "pipeline_parallel", "data_parallel"}
    stated -= {"moe_token_dispatcher_type"}
    assert stated == set(CONFIG_FIELDS.values())


@rows(
    "precision, weights",
    (None, "fp32"),
    ("tf32", "fp32"),
    ("fp16", "fp16"),
    ("bf16", "bf16"),
    ("fp8", "bf16"),
)
def test_weights_follow_the_precision_and_gradients_stay_fp32(
    precision: str | None, weights: str
) -> None:
    config = layout("homogeneous", sizes(dp=2), 4, images=sizes(dp=2))
    config.runtime.precision = precision
    for execution in mimokit.plan(config).executions.values():
        assert execution.precision == (precision or "fp32")
        assert (execution.weights, execution.gradients) == (weights, "fp32")


def test_what_is_left_out_is_predicted_as_it_runs() -> None:
    left_out = ModuleParallelismConfig(data_parallel=1)
    assert sizes_of(left_out, 1, 1) == ModuleExecution().sizes
    for cut in (True, False):
        sizes = ParallelSizes(tensor=2, sequence_parallel=cut, distributed_optimizer=cut)
        stated = ModuleParallelismConfig(**rank_fields(sizes), **other_fields(sizes, None))
        assert sizes_of(stated, 1, 1) == sizes, "what a search writes is what it found"
    optional = {
        name for name, field in ModuleParallelismConfig.model_fields.items()
        if field.default is None
    }  # fmt: skip
    assert set(LEFT_OUT) == optional - {"data_parallel"}


def test_one_tensor_parallel_rank_has_nothing_to_cut_along_the_sequence() -> None:
    own: dict[str, Any] = {**sizes(dp=2), "sequence_parallel": True}
    config = layout("homogeneous", own, 4, images=dict(own))
    assert not any(one.sizes.sequence_parallel for one in mimokit.plan(config).executions.values())


def test_homogeneous_encoders_are_executed_as_the_first_stage_that_they_lie_in() -> None:
    own: dict[str, Any] = {**sizes(tp=2, pp=2), "recompute_granularity": "full"}
    own |= {"sequence_parallel": True, "virtual_pipeline_model_parallel_size": 2}
    config = layout("homogeneous", own, 4, 2, images=sizes(tp=2, pp=2))
    config.model.module_architectures["images"].frozen = ["encoder"]
    executions = mimokit.plan(config).executions
    encoder, language = executions["images"], executions["language"]
    assert (language.sizes.pipeline, language.sizes.virtual) == (2, 2)
    whole = language.resized(pipeline=1, virtual=1)
    assert encoder == replace(whole, frozen_parts=frozenset(("encoder",)))
    assert encoder.sizes.sequence_parallel
    assert encoder.sizes.recompute == RECOMPUTE_FULL
