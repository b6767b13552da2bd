"""The marker of a checkpoint: what is rejected, each in one sentence that says what is right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimokit.architecture.from_config import cuts_of_config
from mimokit.config import ConfigError, ExperimentConfig, StrategyConfig
from mimokit.experiment.checkpoints import find_checkpoint, list_checkpoints, resumed
from mimokit.planning.checkpoints import (
    FORMAT,
    MARKER,
    Checkpoint,
    DataPosition,
    check_same_data,
    check_same_model,
    check_same_replicas,
    folder_of_step,
    layout_json,
    read_checkpoint,
    steps_in,
)
from mimokit.planning.digests import sealed
from tests.layouts import digits_config
from tests.rows import rows

DATA = DataPosition("digits", 4096, 1234, 16, 8, "abc")


def _saved(folder: Path, step: int = 4, change: Callable[[dict[str, Any]], object] = id) -> Path:
    directory = folder / folder_of_step(step)
    directory.mkdir(parents=True)
    (directory / "rank_00000_0.safetensors").write_bytes(b"12345")
    content = Checkpoint(
        directory,
        step,
        {"mode": "colocated", "ranks": 4, "modules": {"images": {"data_parallel": 4}}},
        {"weights/images/w": (4, 2), "weights/images/b": (4,), "exp_avg/images/w": (4, 2)},
        {"rank_00000_0.safetensors": 5},
        DATA,
        {"learning_rate_steps": step, "loss_scale": None},
        "2026-11-23T09:00:00+00:00",
    ).to_json()
    change(content)
    (directory / MARKER).write_text(json.dumps(content), encoding="utf-8")
    return directory


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    read = read_checkpoint(_saved(tmp_path))
    assert read.weights == {"images/w": (4, 2), "images/b": (4,)}
    assert (read.step, read.bytes, read.data) == (4, 5, DATA)


DAMAGED = {
    "format 2, and this version": lambda content: content.update(format=FORMAT + 1),
    "is not what mimokit writes": lambda content: content.pop("data"),
    "rank_00001_0.safetensors missing or not whole": lambda content: content["files"].update(
        {"rank_00001_0.safetensors": 7}
    ),
    "rank_00000_0.safetensors missing or not whole": lambda content: content["files"].update(
        {"rank_00000_0.safetensors": 6}
    ),
    "checkpoint.json is not what": lambda content: content["files"].update({"../secret": 1}),
    "is not what mimokit writes; go": lambda content: content["files"].update(
        {"replica_1/../../secret.safetensors": 1}
    ),
    "checkpoint.json is not what mimokit": lambda content: content["shapes"].update(
        {"weights/images/w": [float("inf")]}
    ),
    "checkpoint.json has another content than was saved": lambda content: content.update(
        {**sealed(content), "written": "2026-11-24T09:00:00+00:00"}
    ),
    "checkpoint.json is of step 5, which is not its folder's": lambda content: content.update(
        step=5
    ),
    "is not what mimokit writes; go on": lambda content: content.update(
        data={**content["data"], "per_microbatch": 0}
    ),
}


@rows("said", *DAMAGED)
def test_what_is_not_whole_or_newer_is_rejected(said: str, tmp_path: Path) -> None:
    directory = _saved(tmp_path, change=DAMAGED[said])
    with pytest.raises(ConfigError) as error:
        read_checkpoint(directory)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    problems = list_checkpoints(tmp_path).section().sentences
    assert problems == [str(error.value)], "a list shows it and why"


def test_names_and_shapes_of_another_model_are_listed(tmp_path: Path) -> None:
    saved = read_checkpoint(_saved(tmp_path))
    check_same_model(saved, {"images/w": (4, 2), "images/b": (4,)})
    with pytest.raises(ConfigError) as error:
        check_same_model(saved, {"images/w": (8, 2), "images/c": (4,)})
    sentence = str(error.value)
    assert "it lacks images/c, it has images/b besides" in sentence
    assert "it has images/w [4, 2] instead of [8, 2]" in sentence


@rows(
    "field, value, said",
    ("name", "noise", "the data set is noise, was digits"),
    ("samples", 100, "its samples are 100, was 4096"),
    ("seed", 1, "runtime.seed is 1, was 1234"),
    ("per_step", 32, "the samples of a step are 32, was 16"),
    ("digest", "other", "the digest of its samples is other, was abc"),
)
def test_data_that_have_changed_are_rejected(
    field: str, value: object, said: str, tmp_path: Path
) -> None:
    saved = read_checkpoint(_saved(tmp_path))
    check_same_data(saved, DATA)
    with pytest.raises(ConfigError) as error:
        check_same_data(saved, DataPosition(**{**vars(DATA), field: value}))
    assert said in str(error.value)


def test_replicas_go_on_with_their_layout_and_strategy_alone(tmp_path: Path) -> None:
    config = digits_config()
    check_same_replicas(read_checkpoint(_saved(tmp_path)), config)
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=2)

    def of_replicas(content: dict[str, Any]) -> None:
        content["layout"] = layout_json(config)

    saved = read_checkpoint(_saved(tmp_path, 5, of_replicas))
    check_same_replicas(saved, config)
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=3)
    with pytest.raises(ConfigError, match=r": strategy.H is 3, was 2; replicas with a strategy go"):
        check_same_replicas(saved, config)
    config.strategy = None
    said = r"1 ranks: .*, it was of homogeneous, 2 ranks, 2 replicas with diloco: images"
    with pytest.raises(ConfigError, match=said):
        check_same_replicas(saved, config)


def test_a_results_folder_has_the_newest_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    for step in (4, 8):
        _saved(tmp_path / "run" / "checkpoints", step)
    (tmp_path / "run" / "checkpoints" / ".step-00000012.partial").mkdir()
    (tmp_path / "run" / "checkpoints" / folder_of_step(12)).mkdir()  # without a marker
    assert list(steps_in(tmp_path / "run" / "checkpoints")) == [4, 8]
    for place in (tmp_path, tmp_path / "run", tmp_path / "run" / "checkpoints"):
        assert find_checkpoint(place).step == 8
        assert find_checkpoint(place, 4).step == 4
    with pytest.raises(ConfigError, match=r"no checkpoint of step 5, but of 4 and 8; choose"):
        find_checkpoint(tmp_path / "run", 5)
    with pytest.raises(ConfigError, match="there is no whole checkpoint in it"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"is of step 8, and runtime.num_iterations.* is 8;"):
        resumed(digits_config(num_iterations=8), tmp_path / "run")
    _saved(tmp_path / "other" / "checkpoints")
    with pytest.raises(ConfigError, match=r"2 runs in it have some \(other and run\); name one"):
        find_checkpoint(tmp_path)


def _of_run(results: Path, run: str, config: ExperimentConfig, step: int) -> Path:
    def of_config(content: dict[str, Any]) -> None:
        content["layout"] = layout_json(config)
        content["shapes"] = {
            f"weights/{module}/{name}": list(cut.whole or (1,))
            for module, cuts in cuts_of_config(config.model).items()
            for name, cut in cuts.items()
        }

    return _saved(results / run / "layout" / "checkpoints", step, of_config)


def test_a_folder_of_runs_has_the_newest_that_the_config_goes_on_with(tmp_path: Path) -> None:
    config = digits_config(num_iterations=20)
    larger, replicas = digits_config(), digits_config()
    larger.model.module_architectures["language_module"].num_layers += 1
    replicas.strategy = StrategyConfig(name="diloco", replicas=2, H=2)
    _of_run(tmp_path, "run_20261122_093000", config, 4)
    _of_run(tmp_path, "run_20261122_093000_9", config, 6)
    taken = _of_run(tmp_path, "run_20261122_093000_10", config, 8)
    _of_run(tmp_path, "run_20261123_093000", larger, 12)
    _of_run(tmp_path, "run_20261124_093000", replicas, 14)
    (tmp_path / "run_20261125_093000" / "layout").mkdir(parents=True)
    assert resumed(config, tmp_path).runtime.resume_from == str(taken)
    assert list(list_checkpoints(tmp_path).found) == [14]
    assert find_checkpoint(tmp_path).step == 14
    with pytest.raises(ConfigError, match=r"_10': it has no checkpoint of step 6, but of 8"):
        resumed(config, tmp_path, 6)
    with pytest.raises(ConfigError, match=r"is of step 8, and runtime.num_iterations.* is 8;"):
        resumed(digits_config(num_iterations=8), tmp_path)


def test_a_folder_of_runs_of_other_models_alone_is_rejected(tmp_path: Path) -> None:
    config, larger = digits_config(num_iterations=20), digits_config()
    larger.model.module_architectures["language_module"].num_layers += 1
    _of_run(tmp_path, "run_20261122_093000", larger, 4)
    said = r"none of the runs in it \(run_20261122_093000\) has one of this model and strategy"
    with pytest.raises(ConfigError, match=said):
        resumed(config, tmp_path)
    _of_run(tmp_path, "run_20261123_093000", config, 4)
    _saved(tmp_path / "run_20261123_093000" / "other" / "checkpoints")
    with pytest.raises(ConfigError, match=r"2 runs in it have some \(layout and other\); name one"):
        resumed(config, tmp_path)
    (tmp_path / "empty" / "run_20261122_093000").mkdir(parents=True)
    with pytest.raises(ConfigError, match="there is no whole checkpoint in it; give"):
        resumed(config, tmp_path / "empty")
