"""The planner drops nothing of a file that says more than it has fields for."""

import json
import re
from pathlib import Path

from mimokit.architecture import load_model
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.interop import to_yaml
from mimokit.prediction import EncoderInput, Layout, Workload
from mimokit_widgets.planner.draft import Draft, content_of
from tests.widgets.planner_sessions import Driver

OWN = ParallelSizes(4, 2, 2, data=2, micro_batch=2, recompute=2, instances=2)


def written(folder: Path) -> Path:
    """Write a layout with chunks, recomputation, experts, a projector, a GPU and a precision."""
    model = load_model("qwen3-vl-30b-a3b")
    layout = Layout(
        "heterogeneous", {"images": ParallelSizes(2, data=2, micro_batch=2), "language": OWN}
    )
    step = Workload(4096, 64, "fp8", {"images": EncoderInput(1024, 1.5, 1.25)})
    file = folder / "layout.yaml"
    supposed = {"gpu": "b200", "price_per_gpu_hour": 4.25}
    file.write_text(to_yaml(layout, step, model=model, supposed=supposed), encoding="utf-8")
    return file


def test_what_is_loaded_is_saved(tmp_path: Path) -> None:
    file = written(tmp_path)
    config = load_experiment_config(file)
    content = content_of(file)
    assert content == config.to_mapping()
    assert config_from_mapping(Draft(content).copied()) == config
    driver = Driver(file)
    assert driver.session.valid is not None
    assert driver.session.valid.config == config
    assert json.loads(json.dumps(driver.screen | {"numbers": None}))["valid"]
    assert driver.session.valid.config.to_yaml() == file.read_text(encoding="utf-8")


def test_an_edit_leaves_the_rest(tmp_path: Path) -> None:
    file = written(tmp_path)
    driver = Driver(file)
    driver.type("data.num_microbatches", "32")
    assert driver.session.valid is not None
    text = driver.session.valid.config.to_yaml()
    assert text == re.sub("num_microbatches: 16", "num_microbatches: 32", file.read_text())


def test_a_module_of_another_name_keeps_its_words(tmp_path: Path) -> None:
    driver = Driver(written(tmp_path))
    driver.send("rename", name="images", text="pictures")
    assert driver.sentences == []
    assert driver.session.valid is not None
    config = driver.session.valid.config
    assert config.prediction is not None
    assert list(config.prediction.inputs or {}) == ["pictures"]
    assert config.model.get_architecture("pictures").projector is not None
