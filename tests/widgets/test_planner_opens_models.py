"""*Open …* of a Hugging Face config.json: a plan that fits on the GPUs that are named."""

import json
from typing import Any

import pytest

import mimokit
from mimokit.experiment.plan_of_model import config_of_model
from mimokit_widgets import LayoutPlanner
from tests.cli.test_plan_of_model import LLAMA, LLAVA
from tests.rows import rows
from tests.widgets.planner_sessions import Driver

SECONDS = 180
QWEN_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
    "vocab_size": 151936, "tie_word_embeddings": True,
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
}  # fmt: skip


def opened(content: object, name: str = "config.json", gpus: str = "") -> Driver:
    driver = Driver()
    driver.session.search_gpus = gpus
    driver.send(
        "load", text=content if isinstance(content, str) else json.dumps(content), name=name
    )
    driver.session.search.wait(SECONDS)
    driver.session.take_opened()
    return driver


@pytest.mark.parametrize(
    ("content", "modules"),
    [(LLAMA, ["llama"]), (LLAVA, ["images", "language"]),
     (QWEN_VL, ["images", "language"])],
    ids=["llama", "llava", "qwen-vl"],
)  # fmt: skip
def test_a_model_becomes_the_plan_that_the_command_makes(
    content: dict[str, Any], modules: list[str], tmp_path: Any
) -> None:
    driver = opened(content)
    assert driver.sentences == []
    assert list(driver.plan.modules) == modules
    assert (driver.plan.world_size, driver.plan.batch.global_batch_size) == (8, 64)
    found = mimokit.predict(driver.session.valid.config)  # type: ignore[union-attr]
    assert found.peak_memory < found.capacity
    (tmp_path / "config.json").write_text(json.dumps(content))
    by_command = config_of_model(str(tmp_path), 8, None, None, None)
    chosen = mimokit.predict(by_command).layout
    assert (chosen.mode, *chosen.modules.values()) == (
        found.layout.mode, *found.layout.modules.values()
    )  # fmt: skip
    assert driver.session.notice == (
        "config.json: the fastest layout that fits on 8 GPUs (NVIDIA H100 SXM 80GB), for samples "
        "of 4,096 tokens and 64 of them per step."
    )
    driver.send("undo")  # opening is one edit
    assert driver.session.draft.value_at(("name",)) == "llava_7b_colocated"


def test_the_gpus_that_are_named_are_planned_for() -> None:
    driver = opened(LLAVA, gpus="16")
    assert driver.plan.world_size == 16
    driver = opened(LLAMA, gpus="7")  # a step of 56 samples, which no more of 7 divide evenly
    assert driver.plan.world_size in range(1, 8)
    fewer = driver.plan.world_size < 7
    assert ("No layout of all 7 GPUs is faster" in driver.session.notice) == fewer


@rows(
    "content, gpus, sentence",
    ("[1, 2", "", "File 'config.json': it is no JSON mapping; give the config.json of a"),
    ([1], "", "File 'config.json': it is no JSON mapping; give the config.json of a"),
    ({"hidden_size": 3}, "", "model_type"),
    ({"model_type": "mamba"}, "", "model_type 'mamba' cannot be read; those of"),
    ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, "",
     "its weights are quantized (gptq), which is not trained; give the config.json of"),
    ({**LLAMA, "hidden_size": "x"}, "", "hidden_size"),
    (LLAMA, "eight", "Search: GPUs is the text 'eight'; write a whole number"),
    (LLAMA, "0", "Search: GPUs is 0; it must be a whole number from 1 to"),
    (LLAMA, "1", "no layout fits on 1 x NVIDIA H100 SXM 80GB"),
)  # fmt: skip
def test_what_cannot_be_planned_is_a_sentence(content: object, gpus: str, sentence: str) -> None:
    driver = opened(content, gpus=gpus)
    said = f"{driver.session.notice} {driver.session.search.state.sentence}"
    assert sentence in said
    assert "\n" not in said
    assert driver.session.draft.value_at(("name",)) == "llava_7b_colocated"  # all is as it was
    assert driver.sentences == []


def test_a_config_of_mimokit_in_json_is_opened_as_one() -> None:
    content = Driver("preset:llava_7b_heterogeneous").session.draft.content
    driver = opened(dict(content))
    assert driver.plan.deployment_mode == "heterogeneous"
    assert driver.session.search.state.status == "idle"


def test_a_widget_shows_what_was_planned() -> None:
    planner = LayoutPlanner()
    text = json.dumps(LLAMA)
    planner._on_message(planner, {"type": "load", "text": text, "name": "config.json"}, [])
    assert planner._state["tab"] == "search"
    planner._session.search.wait(SECONDS)
    assert list(planner.plan.modules) == ["llama"]
    assert "the fastest layout that fits" in planner._state["notice"]
    assert planner._state["search"]["loaded"] == 0
