"""Fields of networks and sizes: checked against each other, not written unless they are said."""

from typing import Any

import pytest

import mimokit
from mimokit.config import ConfigError, check_runnable
from mimokit.config.layer_architecture import LayerArchitecture
from mimokit.config.parallelism import ModuleParallelismConfig
from tests.config.sections import load, network, problems, put, sections
from tests.layouts_apart import decoded_config
from tests.rows import rows

LANGUAGE = "language_module"
PIPELINE = {"pipeline_parallel": 2, "data_parallel": 1, "rank_offset": 1}


def with_network(module: str, **fields: Any) -> dict[str, Any]:
    content = sections()
    content["model"]["module_architectures"][module] |= fields
    if "num_moe_experts" in fields:
        content["model"]["module_parallelisms"][module]["sequence_parallel"] = True
    return content


def with_sizes(schedule: str = "1f1b", **fields: Any) -> dict[str, Any]:
    if schedule == "1f1b":
        return sections({"data_parallel": 1}, {**PIPELINE, **fields}, schedule)
    return sections({"data_parallel": 4}, {"data_parallel": 4, **fields}, schedule)


def test_a_plan_says_what_runs_reject() -> None:
    content = with_sizes()
    content["runtime"]["precision"] = "nvfp4"
    plan = mimokit.plan(content)
    line = "`mimokit run` rejects this layout: runtime precision nvfp4"
    assert line in " ".join(str(plan).split())
    assert line in plan._repr_html_()
    with pytest.raises(ConfigError) as refused:
        check_runnable(load(content))
    assert plan.to_json()["rejected_by_run"] == str(refused.value).splitlines()


def test_a_plan_that_runs_says_nothing_of_it() -> None:
    plan = mimokit.plan(with_sizes())
    assert "rejects" not in str(plan) + plan._repr_html_()
    assert "rejected_by_run" not in plan.to_json()


def test_nothing_of_them_is_written_unless_it_is_said() -> None:
    text = load(sections()).to_yaml()
    planned = list(LayerArchitecture.model_fields)
    sizes = list(ModuleParallelismConfig.model_fields)[6:]
    for word in (*planned, *sizes, "precision", "prediction"):
        assert f"{word}:" not in text


def test_positions_of_encoders_need_not_divide_and_sequences_do() -> None:
    both = {"tensor_parallel": 2, "context_parallel": 2, "sequence_parallel": True}
    content = sections({**both, "data_parallel": 1}, {**both, "data_parallel": 1})
    content["model"]["module_architectures"]["images"]["num_registers"] = 1
    mimokit.plan(load(content))
    content = put(content, "data.seq_length", 126)
    content = put(content, f"model.module_architectures.{LANGUAGE}.seq_length", 126)
    found = problems(content)
    assert {(problem.module, problem.field) for problem in found} >= {
        (LANGUAGE, "context_parallel")
    }
    assert "cuts its 126 tokens into 4 unequal pieces" in found[0].sentence


def test_sequences_of_decoders_need_not_divide() -> None:
    config = decoded_config(dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 2)))
    writer = config.model.module_parallelisms["writer"]
    writer.context_parallel, writer.data_parallel = 2, 1
    assert config.data.seq_length % 4
    mimokit.plan(config)


def test_rows_run_with_experts() -> None:
    fields = {"moe_router_enable_expert_bias": True, "moe_z_loss_coeff": 0.01}
    content = with_network(LANGUAGE, num_moe_experts=8, **fields, add_bias_linear=False)
    content["data"]["pack_sequences_in_batch"] = True
    sizes = content["model"]["module_parallelisms"][LANGUAGE]
    sizes["sequence_parallel"] = True
    mimokit.plan(load(content))
    sizes["moe_token_dispatcher_type"] = "allgather"
    mimokit.plan(load(content))


def test_what_is_said_as_it_runs_is_run() -> None:
    plain = {
        "num_query_groups": 8,
        "kv_channels": 8,
        "gated_linear_unit": False,
        "normalization": "LayerNorm",
        "add_bias_linear": True,
        "window_size": 8,
    }
    for precision in ("fp32", "bf16"):
        content = put(with_network(LANGUAGE, **plain), "runtime.precision", precision)
        content["prediction"] = {"gpu": "h100", "price_per_gpu_hour": 2}
        mimokit.plan(load(content))


@rows("field", "use_distributed_optimizer", "use_megatron_fsdp")
def test_replicas_with_shards_run(field: str) -> None:
    content = with_sizes(**{field: True})
    mimokit.plan(load(content | {"strategy": {"name": "diloco", "replicas": 2}}))


@rows("precision", "bf16", "fp16")
def test_replicas_run_in_half_precision(precision: str) -> None:
    content = put(sections(), "runtime.precision", precision)
    mimokit.plan(load(content | {"strategy": {"name": "diloco", "replicas": 2}}))


def test_a_network_of_the_small_config_is_plain() -> None:
    mimokit.plan(load(with_network("images", **network(seq_length=16))))
