"""More than a message tag holds is refused before an engine starts, with the engine's sentence."""

import pytest

import mimokit
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.planning.unplannable import first_stage_slots
from tests.config.sections import load, network, put, sections
from tests.layouts_apart import apart_multimodal_config, with_adapter
from tests.layouts_multimodal import LANGUAGE
from tests.rows import rows

APART = {"data_parallel": 1, "rank_offset": 1}


def apart(microbatches: int, mode: str = "1f1b") -> ExperimentConfig:
    content = sections({"data_parallel": 1}, dict(APART), mode)
    if mode != "1f1b":
        content = sections({"data_parallel": 1}, {"data_parallel": 1}, mode)
    return load(put(content, "data.num_microbatches", microbatches))


def test_modules_on_shared_ranks_send_no_tags() -> None:
    mimokit.plan(apart(1025, "colocated"))


def many_encoders(count: int) -> ExperimentConfig:
    """Return encoders of images of any size, each of which takes five slots."""
    encoders = [f"encoder_{number}" for number in range(count)]
    content = sections(dict(APART), {"data_parallel": 1}, "1f1b")
    model, data = content["model"], content["data"]
    seen = network(image_size=4, patch_size=2, seq_length=4, any_image_size=True)
    language = model["module_architectures"]["language_module"]
    sizes = {name: {"data_parallel": 1, "rank_offset": n + 1} for n, name in enumerate(encoders)}
    model["module_parallelisms"] = {**sizes, "language_module": {"data_parallel": 1}}
    model["module_architectures"] = {**dict.fromkeys(encoders, seen), "language_module": language}
    model["special_token_ids"] = {name: 1024 + n for n, name in enumerate(encoders)}
    model.pop("encoder_module_name")
    data["image_seq_length"] = 1
    return load(content)


def test_slots() -> None:
    mimokit.plan(many_encoders(51))
    with pytest.raises(ConfigError, match="260 values of slot, but a message tag holds 256; plan"):
        mimokit.plan(many_encoders(52))


def adapted() -> ExperimentConfig:
    one = (1, 1, 1)
    sizes = {"audio": one, "dino": one, "clip": one, LANGUAGE: one}
    return with_adapter(apart_multimodal_config(sizes), one, "audio", others=("dino",))


@rows("config, slots", (many_encoders(3), [15]), (adapted(), [8, 10]))
def test_slots_are_those_of_the_plan(config: ExperimentConfig, slots: list[int]) -> None:
    pipeline = mimokit.plan(config).pipeline
    assert pipeline is not None
    planned = {
        pipeline.graph.stages[index].module: stage.total
        for index, stage in enumerate(pipeline.slots.stages)
    }
    assert planned == first_stage_slots(config.model)
    assert sorted(number for number in planned.values() if number) == slots


def test_predictions_know_no_tags() -> None:
    from mimokit.architecture.from_config import model_of_config
    from mimokit.interop import layout_of_config, workload_of_config
    from mimokit.prediction import predict

    config = apart(4096)
    config.model.module_architectures["images"] = type(config.model.module_architectures["images"])(
        **network(image_size=8, patch_size=2)
    )
    found = predict(
        model_of_config(config.model), layout_of_config(config), workload_of_config(config)
    )
    assert found.seconds > 0
