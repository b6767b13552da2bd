import json
import math
import pickle
from itertools import combinations
from pathlib import Path

import pytest

import mimokit
import mimokit.planning.ranks
from mimokit.config import ConfigError, ExperimentConfig, ModuleOptimizerConfig
from mimokit.config_files import load_preset
from mimokit.planning import LayoutPlan, plan_layout
from mimokit.units import bytes_text, samples_text, span_text
from tests.large_presets import LARGE_PRESETS
from tests.planning.layouts import layout, sizes
from tests.rows import rows

CONFIGS = Path(__file__).parents[2] / "configs"


def colocated() -> ExperimentConfig:
    return layout("colocated", sizes(tp=4, dp=1), 4, images=sizes(dp=4))


def test_the_face_of_the_package_names_what_it_offers() -> None:
    config = colocated()
    assert mimokit.plan(config) == plan_layout(config)
    assert set(mimokit.__all__) <= set(dir(mimokit))
    for name in mimokit.__all__:
        assert callable(getattr(mimokit, name))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = mimokit.nothing_of_the_kind


def test_every_kind_of_source(tmp_path: Path) -> None:
    config = load_preset("llava_7b_colocated")
    path = config.save(tmp_path / "config.yaml")
    expected = mimokit.plan(config)
    for source in (path, str(path), config.to_mapping(), "preset:llava_7b_colocated"):
        assert mimokit.plan(source) == expected


@rows("name", *LARGE_PRESETS)
def test_presets_can_be_planned(name: str) -> None:
    mode = "colocated" if name == "vision_dp" else name.rsplit("_", 1)[1]
    assert mimokit.plan(f"preset:{name}").deployment_mode == mode


def test_a_plan_leaves_the_config_alone() -> None:
    config = layout("colocated", sizes(tp=4, dp=None), 4, images=sizes(dp=4))
    before = config.model_copy(deep=True)
    assert mimokit.plan(config).modules["language"].data_parallel == 1
    assert config == before


def test_a_plan_needs_to_know_its_world() -> None:
    config = layout("colocated", sizes(tp=4, dp=1), 4, images=sizes(dp=4))
    for module in config.model.module_parallelisms.values():
        module.data_parallel = None
    with pytest.raises(ConfigError, match="--world-size"):
        mimokit.plan(config)
    assert mimokit.plan(config, 4).world_size == 4


def test_plans_travel() -> None:
    plan = mimokit.plan(colocated())
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan != mimokit.plan("preset:llava_7b_colocated")


def test_json() -> None:
    found = json.loads(json.dumps(mimokit.plan(colocated()).to_json()))
    assert set(found) == {
        "world_size", "deployment_mode", "topology", "modules", "batch", "bridges",
    }  # fmt: skip
    assert (found["world_size"], found["deployment_mode"]) == (4, "colocated")
    assert found["topology"] == {"images": ["language"], "language": []}
    images = found["modules"]["images"]
    assert images["coords"]["2"] == {"tp": 0, "cp": 0, "dp": 2, "pp": 0}
    names = [
        "-".join(chosen)
        for n in range(1, 5)
        for chosen in combinations(("tp", "cp", "dp", "pp"), n)
    ]
    assert list(images["groups"]) == names
    assert images["groups"]["dp"] == [[0, 1, 2, 3]]
    assert found["batch"]["samples_per_microbatch"] == 4
    assert found["batch"]["modules"]["images"] == {
        "micro_batch_size": 1,
        "samples": {"0": [0, 1], "1": [1, 2], "2": [2, 3], "3": [3, 4]},
        "loads": [0, 1, 2, 3],
    }
    assert found["bridges"] == [
        {
            "source": "images",
            "destination": "language",
            "direction": "fan_in",
            "gather_groups": [[0, 1, 2, 3]],
            "slices": {"0": [0, 1], "1": [1, 2], "2": [2, 3], "3": [3, 4]},
            "bytes_forward": 4 * 3 * 16 * 5040 * 4,
            "bytes_backward": 0,
        }
    ]


def big() -> LayoutPlan:
    return mimokit.plan(layout("colocated", sizes(tp=16, dp=16), 16, images=sizes(dp=256)))


def test_the_notebook_picture() -> None:
    picture = mimokit.plan(colocated())._repr_html_()
    assert picture.count("<div") == picture.count("</div>")
    assert "<script" not in picture
    assert "images" in picture
    assert "fan-in, 4 → 1 replica" in picture
    assert "dp3 · 3" in picture
    assert len(big()._repr_html_()) < 60_000
    assert "… and 224 more ranks" in big()._repr_html_()


def test_the_text() -> None:
    plan = mimokit.plan(colocated())
    assert repr(plan).startswith("<PlannedLayout: colocated, 4 ranks; images on 4, ")
    assert len(repr(plan)) < 100, "one line at a prompt"
    text = str(plan)
    assert "colocated on 4 ranks" in text
    assert "fan-in, 4 → 1 replica" in text
    assert "… and 224 more ranks" in str(big())


def test_what_a_module_is_stepped_by_is_planned_and_shown_where_it_is_given() -> None:
    config = colocated()
    config.model.get_architecture("images").optimizer = ModuleOptimizerConfig(lr=3e-4)
    plan = mimokit.plan(config)
    assert plan.executions["images"].learning_rate == 3e-4
    assert plan.to_json()["optimizers"] == {"images": {"lr": 3e-4}}
    for shown in (str(plan), plan._repr_html_()):
        assert "images, stepped by itself: learning rate 0.0003" in shown
    config.model.get_architecture("images").optimizer = ModuleOptimizerConfig()
    assert mimokit.plan(config) == mimokit.plan(colocated())


def test_words() -> None:
    assert [bytes_text(n) for n in (0, 999, 1000, 528482304)] == ["0 B", "999 B", "1 kB", "528 MB"]
    assert span_text([0, 1, 2, 8, 10, 11]) == "0–2, 8, 10–11"
    assert [samples_text(span) for span in ((0, 1), (0, 4))] == ["0", "0–3"]


def test_no_gradient_crosses_to_a_frozen_encoder() -> None:
    config = layout("colocated", sizes(tp=1, dp=4), 4, images=sizes(tp=4, dp=1))
    assert mimokit.plan(config).colocated_bridges[0].bytes_backward > 0
    networks = config.model.module_architectures
    networks["images"] = networks["images"].model_copy(update={"frozen": True})
    frozen = mimokit.plan(config).colocated_bridges[0]
    assert (frozen.direction, frozen.bytes_backward) == ("fan_out", 0)


@rows("mode", "colocated", "heterogeneous")
def test_the_model_section_alone_can_be_planned(mode: str) -> None:
    model, data, _ = mimokit.load_experiment_config(CONFIGS / f"digits_{mode}.yaml")
    whole = mimokit.plan(CONFIGS / f"digits_{mode}.yaml")
    assert mimokit.plan(model, data=data) == whole
    alone = mimokit.plan(model)
    assert (alone.modules, alone.topology) == (whole.modules, whole.topology)
    assert alone.batch.num_microbatches == 1
    replicas = [module.data_parallel for module in alone.modules.values()]
    assert alone.batch.samples_per_microbatch == math.lcm(*replicas)


def test_what_cannot_be_planned_is_named() -> None:
    config = mimokit.load_experiment_config(CONFIGS / "digits_colocated.yaml")
    data = config.data
    with pytest.raises(TypeError, match="The config is a DataConfig; give an ExperimentConfig"):
        mimokit.plan(data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data goes with the section model alone"):
        mimokit.plan(config, data=data)
