import pickle

import pytest

import mimokit
from mimokit.config import (
    ConfigError,
    DataConfig,
    MimoParallelismConfig,
    ModuleParallelismConfig,
    RuntimeConfig,
)
from tests.config.sections import load, put, sections
from tests.rows import rows


def model(mode: str = "colocated", **modules: ModuleParallelismConfig) -> MimoParallelismConfig:
    return MimoParallelismConfig(
        llm_module_name="language",
        deployment_mode=mode,
        module_parallelisms=modules,
        special_token_ids={},
    )


def sizes(**fields: int) -> ModuleParallelismConfig:
    return ModuleParallelismConfig(**fields)


def test_total_ranks_leave_experts_out() -> None:
    module = sizes(tensor_parallel=2, context_parallel=3, pipeline_parallel=5, data_parallel=8)
    module.expert_parallel = 4
    assert module.total_ranks == 240


def test_total_ranks_need_the_replicas() -> None:
    with pytest.raises(ConfigError, match="data_parallel is empty"):
        _ = sizes(tensor_parallel=2).total_ranks


def test_finalize_fills_replicas_in_on_shared_ranks() -> None:
    finished = model(images=sizes(), language=sizes(tensor_parallel=4)).finalize(8)
    assert finished.get_parallelism("images").data_parallel == 8
    assert finished.get_parallelism("language").data_parallel == 2
    assert finished.total_world_size == 8
    assert finished.encoder_module_names == ("images",)


def test_finalize_fills_replicas_in_between_offsets() -> None:
    # Trap T36: language TP8 @0, clip TP2 @8, dino TP4 @12 cover 16 ranks only if clip has DP 2.
    finished = model(
        "heterogeneous",
        language=sizes(tensor_parallel=8),
        clip=sizes(tensor_parallel=2, rank_offset=8),
        dino=sizes(tensor_parallel=4, rank_offset=12),
    ).finalize(16)
    found = {name: m.data_parallel for name, m in finished.module_parallelisms.items()}
    assert found == {"language": 1, "clip": 2, "dino": 1}


def test_a_refused_finalize_changes_nothing() -> None:
    config = model(images=sizes(), language=sizes(tensor_parallel=3))
    with pytest.raises(ConfigError, match="'language'"):
        config.finalize(8)
    assert config.get_parallelism("images").data_parallel is None


def test_one_complete_module_tells_the_shared_world() -> None:
    config = model(images=sizes(), language=sizes(tensor_parallel=4, data_parallel=2))
    assert config.total_world_size == 8
    assert config.finalize().get_parallelism("images").data_parallel == 8


def test_an_unknown_module_is_named() -> None:
    config = model(images=sizes(), language=sizes())
    for ask in (config.get_parallelism, config.get_architecture):
        with pytest.raises(ConfigError, match="'audio'"):
            ask("audio")


@rows("value", "4", True, 2.0, 2.5, 0, -1, None, [1])
def test_wrong_values_are_refused_by_constructor_and_assignment(value: object) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel"):
        ModuleParallelismConfig(tensor_parallel=value)
    module = ModuleParallelismConfig()
    with pytest.raises(ConfigError, match="tensor_parallel"):
        module.tensor_parallel = value  # type: ignore[assignment]
    assert module.tensor_parallel == 1


@rows("value", float("nan"), float("inf"), 0.0, -1.0, "1e-3", True)
def test_a_learning_rate_is_a_positive_number(value: object) -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        RuntimeConfig(learning_rate=value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match="DataConfig: base_batch_size is missing"):
        DataConfig(seq_length=8, image_seq_length=4, vocab_size=9, image_special_token_id=9)


def test_errors_survive_pickling() -> None:
    with pytest.raises(ConfigError) as caught:
        ModuleParallelismConfig(tensor_parallel="4")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.problems == caught.value.problems


def test_a_schedule_follows_from_the_mode() -> None:
    config = load(sections())
    assert config.model.deployment_mode == "colocated"
    content = put(sections(), "model.deployment_mode", "colocated")
    del content["runtime"]
    assert load(content).runtime.pipeline_schedule == "colocated"


def test_configs_unpack() -> None:
    config = load(sections())
    model_config, data, runtime = config
    assert (model_config, data, runtime) == (config.model, config.data, config.runtime)


def test_what_runs_is_let_through() -> None:
    mimokit.plan(load(sections()))
    apart = {"pipeline_parallel": 2, "data_parallel": 1, "rank_offset": 1}
    mimokit.plan(load(sections({"data_parallel": 1}, apart, "1f1b")))
