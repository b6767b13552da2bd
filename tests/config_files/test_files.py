import io
import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mimokit.config import ConfigError
from mimokit.config_files import load_experiment_config, load_preset
from tests.config.sections import only, sections
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows


def text_of(content: dict[str, Any]) -> str:
    target = io.StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(content, target)
    return target.getvalue()


def write(path: Path, content: dict[str, Any] | str) -> Path:
    path.write_text(content if isinstance(content, str) else text_of(content))
    return path


def sentence(path: str | os.PathLike[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment_config(path)
    return only(caught.value.problems).sentence


def test_a_file_gives_the_config_its_name(tmp_path: Path) -> None:
    config = load_experiment_config(write(tmp_path / "exp_tp4.yaml", sections()))
    assert config.name == "exp_tp4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("- a\n- b\n", "it holds a list"),
        ("hello\n", "write a mapping"),
        ("model:\n\tdata: 1\n", "line 2: it has a tab"),
        ("model: {a: 1\n", "correct the YAML"),
        ("model: &a\n  x: *a\n  y: *b\n", "correct the YAML"),
        ("a: 1\n---\nb: 2\n", "correct the YAML"),
    ],
)
def test_what_is_no_config(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    found = sentence(path)
    assert expected in found
    assert str(path) in found


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "does not exist" in sentence(tmp_path / "none.yaml")
    assert "is a folder" in sentence(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    assert "UTF-8" in sentence(tmp_path / "latin.yaml")
    assert "cannot be read" in sentence(tmp_path / ("x" * 400))


def test_a_number_as_text(tmp_path: Path) -> None:
    text = text_of(sections()).replace("base_batch_size: 8", 'base_batch_size: "8"')
    found = sentence(write(tmp_path / "bad.yaml", text))
    assert "base_batch_size is the text '8'" in found


def test_a_baseline_lies_beneath(tmp_path: Path) -> None:
    write(tmp_path / "baseline.yaml", sections())
    override = {"data": {"base_batch_size": 16}, "runtime": {"seed": 7}}
    config = load_experiment_config(write(tmp_path / "big.yaml", override))
    assert (config.data.base_batch_size, config.data.seq_length) == (16, 128)
    assert (config.runtime.seed, config.model.deployment_mode) == (7, "colocated")
    assert load_experiment_config(tmp_path / "baseline.yaml").data.base_batch_size == 8


def test_extends_names_a_parent(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    write(tmp_path / "common" / "root.yaml", sections() | {"name": "root"})
    write(tmp_path / "middle.yaml", {"extends": "common/root.yaml", "data": {"num_workers": 3}})
    last = {"extends": "middle.yaml", "data": {"base_batch_size": 4}}
    data = load_experiment_config(write(tmp_path / "last.yaml", last))
    assert (data.data.num_workers, data.data.base_batch_size, data.name) == (3, 4, "last")


def test_extends_names_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", {"extends": "preset:llava_7b_colocated"})
    assert load_experiment_config(path).data == load_preset("llava_7b_colocated").data


def test_extends_null_inherits_nothing(tmp_path: Path) -> None:
    write(tmp_path / "baseline.yaml", {"runtime": {"seed": 7}})
    config = load_experiment_config(write(tmp_path / "a.yaml", {"extends": None, **sections()}))
    assert config.runtime.seed == 1234


@rows("name", *LARGE_PRESETS)
def test_a_saved_copy_loads_to_the_same_config(name: str, tmp_path: Path) -> None:
    write(tmp_path / "baseline.yaml", {"data": {"num_workers": 99}, "surplus": 1})
    config = load_preset(name)
    config.runtime.learning_rate = 3e-7
    config.runtime.metrics_output_dir = "runs/ä: #1"
    copy = load_experiment_config(config.save(tmp_path / "config.yaml"))
    assert copy == config
    assert copy.name == name


def test_the_runs_folder_takes_the_metrics(tmp_path: Path) -> None:
    content = sections()
    content["runtime"]["tensorboard_dir"] = "elsewhere"
    path = write(tmp_path / "a.yaml", content)
    _, _, runtime = load_experiment_config(path, tmp_path / "run")
    assert runtime.metrics_output_dir == str(tmp_path / "run")
    assert runtime.tensorboard_dir == str(tmp_path / "run" / "tensorboard")


def test_an_unknown_preset() -> None:
    with pytest.raises(ConfigError, match="did you mean llava_7b_colocated"):
        load_preset("llava_7b_collocated")


def test_a_world_may_be_left_open(tmp_path: Path) -> None:
    content = sections({"tensor_parallel": 1}, {"tensor_parallel": 4})
    config = load_experiment_config(write(tmp_path / "a.yaml", content))
    assert config.model.get_parallelism("images").data_parallel is None
    assert config.model.finalize(8).get_parallelism("images").data_parallel == 8
