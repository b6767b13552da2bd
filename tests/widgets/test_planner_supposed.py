"""What predictions and searches suppose stands in the planner's draft: loaded, undone, saved."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.architecture.from_config import model_of_config
from mimokit.config import PredictionConfig
from mimokit.config_files import load_experiment_config, load_preset
from mimokit.interop import layout_of_config, workload_of_config
from mimokit.planning.schedule import unit_timeline
from mimokit.prediction import predict
from mimokit.prediction.hardware import load_hardware, save_hardware
from mimokit.prediction.step_time.software import load_software, save_software
from mimokit_widgets import LayoutPlanner
from tests.rows import rows
from tests.widgets.planner_sessions import Driver

PRICE = "prediction.price_per_gpu_hour"
SECONDS = 180


def priced(**supposed: Any) -> dict[str, Any]:
    return {**load_preset("llava_7b_colocated").to_mapping(), "prediction": supposed}


def shown(driver: Driver) -> tuple[str, str]:
    fields = driver.screen["fields"]
    return fields["gpu"], fields["price"]


def test_a_file_says_gpu_and_price(tmp_path: Path) -> None:
    file = tmp_path / "priced.yaml"
    config = load_preset("llava_7b_colocated")
    config.prediction = PredictionConfig(gpu="b200", price_per_gpu_hour=4.25)
    config.save(file)
    driver = Driver(file)
    driver.send("tab", name="prediction")
    assert shown(driver) == ("b200", "4.25")
    found = predict(
        model_of_config(config.model),
        layout_of_config(config),
        workload_of_config(config),
        "b200",
        price_per_gpu_hour=4.25,
    )
    sentence = driver.screen["prediction"]["sentence"]
    assert sentence.startswith(f"step {found.seconds:.3g} s (")
    assert sentence.endswith(f"{found.dollars_per_million_tokens:.3g} dollars per million tokens")
    driver.send("load", text=load_preset("llava_7b_colocated").to_yaml(), name="plain.yaml")
    assert shown(driver) == ("h100", "")
    assert "dollars" not in driver.screen["prediction"]["sentence"]
    driver.send("undo")
    assert shown(driver) == ("b200", "4.25")


def test_what_is_chosen_is_saved_and_undone(tmp_path: Path) -> None:
    driver = Driver()
    driver.send("gpu", name="h200")
    driver.type(PRICE, "2.5")
    assert shown(driver) == ("h200", "2.5")
    written = driver.session.save(tmp_path / "chosen.yaml")
    assert written is not None
    known = load_experiment_config(written).prediction
    assert known == PredictionConfig(gpu="h200", price_per_gpu_hour=2.5)
    driver.send("undo")
    assert shown(driver) == ("h200", "")
    driver.send("undo")
    assert shown(driver) == ("h100", "")
    assert driver.session.valid.config.prediction is None
    driver.send("redo")
    driver.send("redo")
    assert shown(driver) == ("h200", "2.5")
    driver.type(PRICE, "")
    assert driver.session.valid.config.prediction == PredictionConfig(gpu="h200")


def test_a_section_that_says_nothing_is_left_out() -> None:
    driver = Driver(priced(price_per_gpu_hour=3))
    driver.type(PRICE, "")
    assert "prediction" not in driver.session.draft.content


@rows(
    "text, said",
    ("much", "price_per_gpu_hour is the text 'much'"),
    ("-1", "price_per_gpu_hour is -1"),
    ("0", "price_per_gpu_hour is 0"),
    ("1e5x", "price_per_gpu_hour is the text '1e5x'"),
)
def test_a_price_that_is_none_is_refused_beside_its_field(text: str, said: str) -> None:
    driver = Driver(priced(price_per_gpu_hour=3.0))
    driver.type(PRICE, text)
    (error,) = driver.session.field_errors
    assert said in error.sentence
    assert error.path == tuple(PRICE.split("."))
    assert shown(driver) == ("h100", text)
    driver.type(PRICE, "$ 1,000.5")
    assert driver.session.valid.config.prediction.price_per_gpu_hour == 1000.5


def test_a_file_of_hardware_is_one_of_the_choices(tmp_path: Path) -> None:
    file = str(save_hardware(load_hardware("a100"), tmp_path / "own.json"))
    driver = Driver(priced(gpu=file))
    driver.send("tab", name="prediction")
    fields = driver.screen["fields"]
    assert (fields["gpu"], file in fields["gpu_names"]) == (file, True)
    assert driver.screen["prediction"]["sentence"].startswith("step ")
    driver.send("gpu", name="h100")
    assert shown(driver)[0] == "h100"
    driver.send("undo")
    assert shown(driver)[0] == file


def test_an_unknown_gpu_is_reported_at_its_field() -> None:
    driver = Driver(priced(gpu="h1000"))
    driver.send("tab", name="prediction")
    assert "it does not exist" in driver.screen["prediction"]["sentence"]
    driver.send("search", gpus="")
    driver.session.search.wait(SECONDS)
    assert "it does not exist" in driver.session.search.state.sentence


def test_a_search_supposes_the_same() -> None:
    driver = Driver(priced(gpu="h200", price_per_gpu_hour=2.0, software="megatron-bridge"))
    driver.send("search", gpus="")
    driver.session.search.wait(SECONDS)
    task = driver.session.search.state.result.task
    assert task.hardware == load_hardware("h200")
    assert task.price_per_gpu_hour == 2.0
    driver.send("take_found", index=0)
    driver.send("gpu", name="b200")
    assert driver.session.loaded_layout is not None, "another GPU is no other layout"
    driver.send("take_found", index=0)
    assert shown(driver)[0] == "h200", "what was found is what is predicted"
    driver.type("data.num_microbatches", "4")
    assert driver.session.loaded_layout is None


def test_a_result_from_another_cell_brings_its_gpu_along() -> None:
    result = mimokit.search(
        load_preset("llava_7b_colocated"), gpus=8, hardware="b300", price_per_gpu_hour=7.5
    )
    planner = LayoutPlanner()
    planner.load_layout(result.best.layout, result)
    assert planner.config.prediction == PredictionConfig(gpu="b300", price_per_gpu_hour=7.5)
    planner.show("prediction")
    sentence = planner._state["prediction"]["sentence"]
    assert sentence.startswith(f"step {result.best.seconds:.3g} s (")


def test_setting_a_config_from_code_sets_what_is_supposed() -> None:
    planner = LayoutPlanner()
    planner.config = priced(gpu="gb200")
    assert planner._state["fields"]["gpu"] == "gb200"
    planner.undo()
    assert planner._state["fields"]["gpu"] == "h100"


def test_schedule_and_prediction_agree_on_idle_time_under_virtual_stages() -> None:
    driver = Driver("preset:llava_7b_homogeneous")
    driver.send("hold", on=False)
    driver.send("for_all", on=True)
    language = "model.module_parallelisms.language_module."
    for field, size in (("tensor_parallel", "1"), ("pipeline_parallel", "2")):
        driver.type(language + field, size)
    driver.send("for_all", on=False)
    for chunks in ("1", "16"):
        driver.type(language + "virtual_pipeline_model_parallel_size", chunks)
        assert driver.sentences == []
        driver.send("tab", name="prediction")
        state = driver.screen
        bubble = unit_timeline(driver.plan.pipeline.schedule).bubble
        predicted = next(each for each in state["verdict"]["lines"] if each["key"] == "idle")
        idle = [100 * max(bubble), float(predicted["value"].rstrip(" %"))]
        assert idle[0] == pytest.approx(idle[1], abs=1.5)
        assert ("interleaved" in state["prediction"]["order"]) == (chunks == "16")
    assert idle[1] < 1.5


def test_traffic_and_memory_count_numbers_of_the_same_format() -> None:
    driver = Driver()
    for precision, number in (("bf16", 2), ("fp32", 4)):
        driver.type("runtime.precision", precision)
        driver.send("tab", name="prediction")
        memory = driver.screen["prediction"]["memory"]
        weights = next(part for part in memory[0]["parts"] if part["name"] == "weights")
        assert f"= {number} × " in weights["formula"]
        key = "bridge.images.language_module.forward"
        bridge = next(each for each in driver.screen["figures"] if each["key"] == key)
        assert f" × {number} B = " in bridge["formula"]
        driver.send("tab", name="traffic")
        kinds = {each["name"]: each["total"] for each in driver.screen["traffic"]["kinds"]}
        if precision == "bf16":
            before = kinds
    assert before["tensor"] != kinds["tensor"]


def test_modules_that_share_a_gpu_fill_one_bar() -> None:
    driver = Driver()
    driver.send("tab", name="prediction")
    picture = driver.screen["prediction"]
    shares = [share for _, share in driver.screen["verdict"]["bar"]]
    assert shares == pytest.approx([module["share"] for module in picture["memory"]])
    parts = [*picture["step"], *(part for module in picture["memory"] for part in module["parts"])]
    recede = {part["name"] for part in parts if part["color"] == "var(--rest)"}
    assert recede == {"buffers"}  # dark on a dark page; a layout without a pipeline has no bubble
    formulas = [part["formula"] for module in picture["memory"] for part in module["parts"]]
    assert not any("e+" in formula for formula in formulas)
    apart = Driver("preset:llava_7b_heterogeneous")
    apart.send("tab", name="prediction")
    assert len(apart.screen["verdict"]["bar"]) == 1
    bubble = {part["name"]: part["color"] for part in apart.screen["prediction"]["step"]}
    assert bubble["pipeline bubble"] == "var(--rest)"


def test_the_step_is_drawn_on_the_clock() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("tab", name="prediction")
    timeline = driver.screen["prediction"]["timeline"]
    names = [lane["name"] for lane in timeline["lanes"]]
    assert names == ["images 0", "images 1", "language_module 0", "language_module 1"]
    for lane in range(4):
        ends = [stop for at, _, _, stop, _ in timeline["spans"] if at == lane]
        assert ends == sorted(ends)
    assert min(start for _, _, start, _, _ in timeline["spans"]) == 0
    assert {each["name"] for each in timeline["keys"]} >= {"images forward", "update"}
    driver.type("data.num_microbatches", "1024")
    timeline = driver.screen["prediction"]["timeline"]
    assert timeline["sentence"].startswith("The first ")
    assert len(timeline["spans"]) < 1300


def test_the_calibration_of_another_gpu_is_a_sentence(tmp_path: Path) -> None:
    stack = replace(load_software("megatron-bridge"), gpu=load_hardware("b200").name)
    own = save_software(stack, "megatron-bridge", tmp_path / "own.json")
    file = tmp_path / "other.yaml"
    config = load_preset("llava_7b_colocated")
    config.prediction = PredictionConfig(gpu="h100", software=str(own))
    config.save(file)
    driver = Driver(file)
    driver.send("tab", name="prediction")
    for told in (driver.screen["verdict"], driver.screen["prediction"]):
        assert "it was calibrated on NVIDIA B200" in told["sentence"]
