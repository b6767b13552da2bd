"""Edits that mean more than one field, and what is saved of them."""

from pathlib import Path
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping, load_experiment_config, load_preset
from mimokit.config_files.concise import concise_mapping, written_text
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver


def sizes(driver: Driver, module: str = "language_module") -> tuple[int, ...]:
    own = driver.plan.modules[module]
    return (
        own.tensor_parallel, own.pipeline_parallel, own.context_parallel, own.data_parallel
    )  # fmt: skip


def test_sizes_trade_so_that_ranks_and_samples_stay() -> None:
    driver = Driver("preset:llava_7b_colocated")
    for field, text, expected in (
        ("tensor_parallel", "4", (4, 1, 1, 2)),  # the replicas give
        ("data_parallel", "4", (2, 1, 1, 4)),  # then TP does
        ("context_parallel", "2", (2, 1, 2, 2)),
        ("data_parallel", "1", (4, 1, 2, 1)),
        ("data_parallel", "8", (1, 1, 1, 8)),  # all give what one cannot
    ):
        driver.type(LANGUAGE + field, text)
        assert (driver.sentences, sizes(driver)) == ([], expected)
        assert (driver.plan.world_size, driver.plan.batch.global_batch_size) == (8, 64)
    driver.type(LANGUAGE + "data_parallel", "3")  # what does not divide the ranks stays as typed
    assert driver.sentences
    said = driver.screen["gave"]["sentence"]
    assert said == "Found no sizes that keep 8 GPUs and 64 samples with DP 3."
    driver.type(LANGUAGE + "data_parallel", "2")
    assert (driver.sentences, driver.plan.world_size) == ([], 8)
    driver.send("preset", name="llava_7b_heterogeneous")
    assert driver.screen["fields"]["holding"]
    driver.type(LANGUAGE + "tensor_parallel", "32")
    assert driver.plan.world_size == 136  # it is valid, and said to have more GPUs
    said = driver.screen["gave"]["sentence"]
    assert said == "Found no sizes that keep 24 GPUs and 64 samples with TP 32."
    driver.send("hold", on=False)
    driver.type(LANGUAGE + "tensor_parallel", "8")
    assert driver.plan.world_size == 40
    assert driver.screen["gave"]["sentence"] == ""


def test_what_gives_way_is_said_and_undone_with_the_edit() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type(LANGUAGE + "tensor_parallel", "1")
    driver.type(LANGUAGE + "tensor_parallel", "16")  # one word: nothing of "1" stays
    assert driver.session.draft.content["data"]["base_batch_size"] == 8
    driver.type(LANGUAGE + "tensor_parallel", "4")
    gave = driver.screen["gave"]
    assert gave["sentence"] == (
        "DP 1 → 2 and micro-batch size 8 → 4, to keep 8 GPUs and 64 samples."
    )
    assert gave["paths"] == [
        [*LANGUAGE.split(".")[:3], "data_parallel"], ["data", "base_batch_size"]
    ]  # fmt: skip
    driver.send("undo")
    assert sizes(driver) == (8, 1, 1, 1)
    assert driver.screen["gave"] == {"sentence": "", "paths": []}
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.type("data.base_batch_size", "1")
    driver.type(LANGUAGE + "tensor_parallel", "2")  # no half samples: fewer micro-batches
    said = driver.screen["gave"]["sentence"]
    assert said == "DP 2 → 4 and micro-batches 8 → 4, to keep 24 GPUs and 16 samples."


def test_the_largest_batch_is_cut_at_once() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type("data.base_batch_size", "1000000000")
    driver.type("data.num_microbatches", "9000")
    driver.type(LANGUAGE + "tensor_parallel", "4")
    assert driver.sentences == []
    assert driver.plan.batch.global_batch_size == 9 * 10**12


def test_sizes_trade_where_another_problem_is_left() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.type(LANGUAGE + "pipeline_parallel", "2")  # wants another schedule
    assert driver.screen["gave"]["sentence"] == "TP 8 → 4, to keep 8 GPUs and 64 samples."
    driver.click_fix("pipeline schedule colocated → three_phase")
    assert (driver.sentences, sizes(driver)) == ([], (4, 2, 1, 1))
    assert (driver.plan.world_size, driver.plan.batch.global_batch_size) == (8, 64)


def test_the_fix_that_keeps_the_ranks_is_the_first() -> None:
    driver = Driver("preset:llava_7b_colocated")
    driver.send("hold", on=False)
    driver.type(LANGUAGE + "tensor_parallel", "4")
    assert driver.labels[:2] == ["DP 2, keeps 8 ranks", "TP 4 → 8"]
    assert "DP 1 → 2 and micro-batch size 8 → 4 keep 8 GPUs and 64 samples" in driver.sentences[0]
    driver.send("hold", on=True)  # while the layout is invalid
    assert driver.screen["fields"]["holding"]
    driver.click_fix("DP 2, keeps 8 ranks")
    assert (driver.sentences, sizes(driver)) == ([], (4, 1, 1, 2))
    assert driver.plan.batch.global_batch_size == 64


def test_no_fix_changes_the_gpus_that_are_held() -> None:
    driver = Driver()
    driver.type(LANGUAGE + "tensor_parallel", "3")
    assert [each.label for each in driver.session.field_errors if each.label] == ["TP 3 → 4"]
    assert any("set data_parallel to 3" in sentence for sentence in driver.sentences)
    driver.click_fix("TP 3 → 4")
    assert driver.plan.world_size == 8
    assert driver.plan.batch.global_batch_size == 64


def test_arrow_keys_step_through_sizes_that_go_with_the_rest() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    driver.send("hold", on=False)

    def step(path: str, by: int, *, doubling: bool = False) -> None:
        driver.send("step", path=path.split("."), by=by, doubling=doubling)

    seen = []
    for by in (1, 1, -1, -1, -1, -1):
        step(LANGUAGE + "tensor_parallel", by)
        seen.append(sizes(driver)[0])
        assert driver.sentences == []
    assert seen == [8, 16, 8, 4, 2, 1]
    step(LANGUAGE + "tensor_parallel", -1)
    assert driver.session.notice == "No smaller TP than 1 goes with the rest."
    step(IMAGES + "tensor_parallel", 1)  # those behind it make room
    assert driver.plan.modules["language_module"].rank_offset == 16
    step("data.num_microbatches", 1, doubling=True)
    assert driver.plan.batch.num_microbatches == 16
    driver.type("data.num_microbatches", "many")
    step("data.num_microbatches", 1)  # a text has no next number
    assert driver.sentences
    driver.send("undo")
    driver.send("hold", on=True)
    ranks = driver.plan.world_size
    step(LANGUAGE + "tensor_parallel", 1)
    assert (sizes(driver)[0], driver.plan.world_size) == (2, ranks)


def test_a_size_is_set_for_all_modules() -> None:
    driver = Driver("preset:llava_7b_homogeneous")
    driver.type(LANGUAGE + "tensor_parallel", "2")
    assert driver.labels[:2] == ["TP 2 for all, keeps 8 ranks", "TP 2 for all"]
    assert driver.screen["gave"]["sentence"] == ""
    driver.click_fix("TP 2 for all")
    assert (driver.sentences, sizes(driver)) == ([], (2, 1, 1, 2))
    assert sizes(driver, "images") == (2, 1, 1, 2)
    driver = Driver("preset:llava_7b_homogeneous")
    driver.type(LANGUAGE + "tensor_parallel", "2")
    driver.click_fix("TP 2 for all, keeps 8 ranks")
    assert (driver.sentences, sizes(driver), sizes(driver, "images")) == (
        [], (2, 1, 1, 4), (2, 1, 1, 4)
    )  # fmt: skip
    driver.send("for_all", on=True)
    driver.type(LANGUAGE + "data_parallel", "8")
    assert (driver.sentences, sizes(driver, "images")) == ([], (1, 1, 1, 8))
    assert driver.screen["gave"]["sentence"] == (
        "images TP 2 → 1, language_module TP 2 → 1 and micro-batch size 2 → 1, to keep 8 GPUs "
        "and 64 samples."
    )


def test_precision_schedule_strategy_and_optimizer_are_fields() -> None:
    driver = Driver("preset:llava_7b_heterogeneous")
    before = driver.screen["verdict"]["lines"][0]["value"]
    for path, text in (
        ("runtime.precision", "fp8"),
        ("runtime.pipeline_order", "gpipe"),
        ("strategy.name", "diloco"),
        ("strategy.replicas", "2"),
        ("strategy.H", "50"),
        ("strategy.inner_optimizer.name", "sgd"),
    ):
        driver.type(path, text)
        assert driver.sentences == []
        assert driver.screen["fields"]["training"][path] == text
    config = driver.session.valid.config
    assert (config.runtime.precision, config.strategy.H, config.replicas) == ("fp8", 50, 2)
    assert driver.screen["verdict"]["lines"][0]["value"] != before
    driver.type("strategy.name", "sparta")  # what it does not take is gone
    assert driver.sentences == []
    assert driver.session.draft.content["strategy"] == {
        "name": "sparta", "replicas": 2, "inner_optimizer": {"name": "sgd"}
    }  # fmt: skip
    driver.type("strategy.name", "")
    assert "strategy" not in driver.session.draft.content
    driver.type("strategy.inner_optimizer.name", "adam")
    driver.type("strategy.inner_optimizer.name", "")
    assert "strategy" not in driver.session.draft.content


@rows("name", *LARGE_PRESETS)
def test_a_saved_layout_says_each_fact_once(name: str, tmp_path: Path) -> None:
    config = load_preset(name)
    content = concise_mapping(config)
    for path in leaves(content):
        assert path == ("name",) or differs_without(content, path, config), path
    file = tmp_path / "short.yaml"
    file.write_text(written_text(config, file))
    assert load_experiment_config(file) == config
    assert "extends" not in file.read_text()
    assert len(file.read_text().splitlines()) < 0.6 * len(config.to_yaml().splitlines())


def test_next_to_a_baseline_a_saved_layout_inherits_nothing(tmp_path: Path) -> None:
    (tmp_path / "baseline.yaml").write_text("runtime: {seed: 7}\n")
    driver = Driver()
    driver.send("save", path=str(tmp_path / "mine.yaml"))
    assert load_experiment_config(tmp_path / "mine.yaml").runtime.seed == 1234


def leaves(content: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [
        leaf
        for key, value in content.items()
        for leaf in (
            leaves(value, (*above, key)) if isinstance(value, dict) and value else [(*above, key)]
        )
    ]


def differs_without(
    content: dict[str, Any], path: tuple[str, ...], config: ExperimentConfig
) -> bool:
    if path in (("model", "deployment_mode"), ("model", "llm_module_name")):
        return True  # a reader looks for them
    try:
        return config_from_mapping(without(content, path), world_may_be_open=True) != config
    except ValueError:
        return True


def without(content: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    inner = {key: value for key, value in content.items() if key != path[0] or len(path) > 1}
    if len(path) > 1:
        inner[path[0]] = without(content[path[0]], path[1:])
    return inner
