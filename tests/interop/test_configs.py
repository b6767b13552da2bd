"""Experiments, out and in."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import mimokit
from mimokit.architecture import load_model
from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_experiment_config, load_preset
from mimokit.interop import (
    config_of_layout,
    layout_of_config,
    to_bridge,
    to_yaml,
    workload_of_config,
)
from mimokit.layout_search import search
from mimokit.prediction import Layout, Workload, predict
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/digits_*.yaml"))
PAINTER = Path(__file__).parents[2] / "configs/digits_reconstruction.yaml"
CONFIGS.remove(PAINTER)  # see test_decoders_of_images_are_not_predicted
SOURCES = [*(f"preset:{name}" for name in LARGE_PRESETS), *map(str, CONFIGS)]


@rows("source", *SOURCES)
def test_an_experiment_comes_back(source: str) -> None:
    config = load_experiment_config(source)
    layout, workload = layout_of_config(config), workload_of_config(config)
    assert layout.gpus == config.model.total_world_size
    back = config_of_layout(layout, workload, experiment=config)
    assert mimokit.plan(back) == mimokit.plan(config)


def test_yaml_of_a_searched_layout_can_be_planned(tmp_path: Path) -> None:
    model = load_model("llava-1.5-7b")
    workload = Workload(4096, 64)
    own = ParallelSizes(4, 2, 2, data=2, micro_batch=2, recompute=2, instances=2)
    modules = {"images": ParallelSizes(data=4, micro_batch=1), "llava-1.5-7b language": own}
    layout = Layout("heterogeneous", modules)
    text = to_yaml(layout, workload, model=model)
    assert "virtual_pipeline_model_parallel_size: 2" in text
    assert "recompute_granularity: full" in text
    assert "num_distributed_optimizer_instances: 2" in text
    file = tmp_path / "layout.yaml"
    file.write_text(text)
    config = load_experiment_config(file)
    plan = mimokit.plan(config)
    assert plan.world_size == layout.gpus
    assert plan.modules["language"].ranks[0] == 4
    assert config.data.image_seq_length == 576
    back = layout_of_config(config).modules
    assert back == {"images": modules["images"], "language": own}
    assert workload_of_config(config).global_batch_size == 64


def test_the_prediction_of_an_experiment() -> None:
    config = load_preset("llava_7b_heterogeneous")
    workload = workload_of_config(config)
    assert workload.global_batch_size == 64
    assert workload.inputs["images"].count == 1.0
    found = predict(load_model("llava-1.5-7b"), layout_of_config(config), workload, "h100")
    assert found.layout.gpus == 24


def test_decoders_of_images_are_not_predicted() -> None:
    config = load_experiment_config(PAINTER)
    for asked in (layout_of_config, workload_of_config, partial(search, gpus=8)):
        with pytest.raises(ConfigError, match="'painter': it makes images or sound, which is"):
            asked(config)


def test_what_the_modes_forbid_is_refused() -> None:
    layout = Layout(
        "colocated",
        {"images": ParallelSizes(pipeline=2, data=2), "language": ParallelSizes(data=4)},
    )
    with pytest.raises(ConfigError, match="has one stage, or as many as"):
        config_of_layout(layout, Workload(4096, 8), model=load_model("llava-1.5-7b"))
    with pytest.raises(ConfigError, match="give the model or an experiment"):
        config_of_layout(layout, Workload(4096, 8))


def test_a_pipeline_between_the_phases_of_its_encoders_is_kept() -> None:
    modules = {"images": ParallelSizes(data=4), "language": ParallelSizes(pipeline=2, data=2)}
    modules["language"] = replace(modules["language"], micro_batch=2)
    layout = Layout("colocated", modules)
    config = config_of_layout(layout, Workload(4096, 16), model=load_model("llava-1.5-7b"))
    assert config.runtime.pipeline_schedule == "three_phase"
    assert layout_of_config(config) == layout
    plain = replace(modules["language"], pipeline=1, data=4, micro_batch=1)
    flat = Layout("colocated", {**modules, "language": plain})
    again = config_of_layout(flat, Workload(4096, 16), experiment=config)
    assert again.runtime.pipeline_schedule == "colocated"
    with pytest.raises(ConfigError, match="this layout is colocated; choose a heterogeneous one"):
        to_bridge(layout, Workload(4096, 16))


def test_chunks_take_whole_rounds_of_micro_batches_in_megatron() -> None:
    modules = {"images": ParallelSizes(data=4), "language": ParallelSizes(pipeline=2, virtual=2)}
    layout = Layout("heterogeneous", modules)
    assert "virtual_pipeline_model_parallel_size" in to_bridge(layout, Workload(4096, 16))
    with pytest.raises(ConfigError, match="multiples of its 2 stages there, and a step has 15"):
        to_bridge(layout, Workload(4096, 15))


def test_an_open_number_of_replicas_is_asked_for() -> None:
    config = load_preset("llava_7b_heterogeneous")
    config.model.module_parallelisms["images"].data_parallel = None
    with pytest.raises(ConfigError, match="data_parallel is missing"):
        layout_of_config(config)
