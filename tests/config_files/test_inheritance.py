"""Files that inherit from each other: chains, circles, and where each value comes from."""

from pathlib import Path

import pytest

from mimokit.config_files import load_experiment_config, load_preset
from mimokit.config_files.inheritance import MOST_FILES
from mimokit.config_files.value_sources import (
    SourcedValue,
    resolved_values,
    to_commented_yaml,
    written_values,
)
from tests.config.sections import put, sections
from tests.config_files.test_files import sentence, write
from tests.rows import rows


def chain(folder: Path, *names: str) -> str:
    return " extends ".join(str(folder / name) for name in names)


def test_a_circle_is_refused_with_its_chain(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", {"extends": "b.yaml"})
    write(tmp_path / "b.yaml", {"extends": "c.yaml"})
    write(tmp_path / "c.yaml", {"extends": "./b.yaml"})
    found = sentence(first)
    assert found.startswith(f"File '{tmp_path / 'c.yaml'}': extends is './b.yaml'")
    assert f"closes a circle ({chain(tmp_path, 'a.yaml', 'b.yaml', 'c.yaml', 'b.yaml')})" in found
    own = write(tmp_path / "own.yaml", {"extends": "own.yaml"})
    assert f"({chain(tmp_path, 'own.yaml', 'own.yaml')})" in sentence(own)


def test_a_circle_through_a_link_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.yaml", {"extends": "link.yaml"})
    (tmp_path / "link.yaml").symlink_to("a.yaml")
    assert "closes a circle" in sentence(first)


@rows(
    "parent, expected",
    (None, "does not exist"),
    ("", "it is empty"),
    ("a:\n\tb: 1\n", "line 2: it has a tab"),
    ("- 1\n", "it holds a list"),
)
def test_a_parent_that_is_no_config_is_refused_with_the_chain(
    parent: str | None, expected: str, tmp_path: Path
) -> None:
    first = write(tmp_path / "a.yaml", {"extends": "b.yaml"})
    write(tmp_path / "b.yaml", {"extends": "c.yaml"})
    if parent is not None:
        write(tmp_path / "c.yaml", parent)
    found = sentence(first)
    assert expected in found
    assert found.endswith(f"({chain(tmp_path, 'a.yaml', 'b.yaml', 'c.yaml')}).")


def test_an_unknown_preset_is_refused_with_the_chain(tmp_path: Path) -> None:
    found = sentence(write(tmp_path / "a.yaml", {"extends": "preset:llava_7b_collocated"}))
    assert "did you mean 'llava_7b_colocated'" in found or "did you mean llava_7b" in found
    assert f"({tmp_path / 'a.yaml'} extends preset:llava_7b_collocated)" in found


@rows("value", 5, "", ["a.yaml"], {"a": 1}, True)
def test_what_names_no_parent(value: object, tmp_path: Path) -> None:
    found = sentence(write(tmp_path / "a.yaml", {"extends": value}))
    assert "write the path of a YAML file, or null" in found


def test_chains_are_as_long_as_is_said(tmp_path: Path) -> None:
    write(tmp_path / "0.yaml", sections())
    for number in range(1, MOST_FILES + 1):
        write(tmp_path / f"{number}.yaml", {"extends": f"{number - 1}.yaml"})
    assert load_experiment_config(tmp_path / f"{MOST_FILES - 1}.yaml").data.base_batch_size == 8
    assert f"makes more than {MOST_FILES} files" in sentence(tmp_path / f"{MOST_FILES}.yaml")


def sources(values: tuple[SourcedValue, ...]) -> dict[str, str]:
    return {".".join(one.path): one.source for one in values}


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """a.yaml inherits from b.yaml, which inherits from a preset."""
    sizes = {"language_module": {"data_parallel": 1, "tensor_parallel": 8}}
    write(tmp_path / "b.yaml", {
        "extends": "preset:llava_7b_homogeneous",
        "model": {"module_parallelisms": {"images": {"tensor_parallel": 1, "data_parallel": 8}}},
        "runtime": {"pipeline_schedule": "colocated"},
    })  # fmt: skip
    return write(tmp_path / "a.yaml", {
        "extends": "b.yaml",
        "model": {"module_parallelisms": sizes, "deployment_mode": "colocated"},
        "data": {"base_batch_size": 8},
    })  # fmt: skip


def test_every_value_has_the_file_it_comes_from(family: Path) -> None:
    parent, preset = str(family.parent / "b.yaml"), "preset:llava_7b_homogeneous"
    expected = {
        "name": "name of the file",
        "model.module_parallelisms.language_module.tensor_parallel": str(family),
        "model.module_parallelisms.images.tensor_parallel": parent,
        "model.module_architectures.images.num_layers": preset,
        "runtime.pipeline_schedule": parent,
        "data.base_batch_size": str(family),
        "data.seq_length": preset,
        "data.prefetch_factor": "default",
        "runtime.seed": "default",
    }
    found = sources(resolved_values(family))
    assert {path: found[path] for path in expected} == expected
    written = sources(written_values(family))
    assert {path: written[path] for path in expected if path in written} == {
        path: source
        for path, source in expected.items()
        if source not in ("default", "name of the file")
    }


def test_values_that_follow_from_others_say_from_which(tmp_path: Path) -> None:
    content = sections({"tensor_parallel": 1}, {"tensor_parallel": 4}, "1f1b")
    put(content, "model.llm_rank_offset", 4)
    for path in ("llm_module_name", "encoder_module_name", "special_token_ids"):
        del content["model"][path]
    del content["data"]["seq_length"]
    path = write(tmp_path / "a.yaml", content)
    found = sources(resolved_values(path, world_size=8))
    assert found["model.deployment_mode"] == "implied by runtime.pipeline_schedule"
    assert found["model.special_token_ids.images"] == "implied by data.vocab_size"
    assert found["data.seq_length"] == (
        "implied by model.module_architectures.language_module.seq_length"
    )
    sizes = "model.module_parallelisms"
    assert found[f"{sizes}.language_module.rank_offset"] == f"{path} (llm_rank_offset)"
    assert found[f"{sizes}.images.rank_offset"] == "default"
    assert found[f"{sizes}.images.data_parallel"] == "worked out from the ranks"
    assert f"{sizes}.images.data_parallel" not in sources(resolved_values(path))


@pytest.mark.parametrize("resolve", [resolved_values, written_values])
def test_what_is_printed_loads_to_the_same_config(
    resolve: object, family: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "baseline.yaml", {"surplus": 1})
    text = to_commented_yaml(resolve(family))  # type: ignore[operator]
    copy = write(tmp_path / "other" / "a.yaml", text)
    assert load_experiment_config(copy) == load_experiment_config(family)


def test_values_of_any_kind_are_printed_as_yaml(tmp_path: Path) -> None:
    config = load_preset("llava_7b_colocated")
    config.runtime.metrics_output_dir = 'runs/ä: #1 "x"\n\x07 - null'
    config.runtime.tensorboard_dir = "null"
    config.runtime.learning_rate = 1e-07
    config.name = "on"
    path = config.save(tmp_path / "odd.yaml")
    copy = write(tmp_path / "copy.yaml", to_commented_yaml(resolved_values(path)))
    assert load_experiment_config(copy) == load_experiment_config(path)


def test_sizes_that_the_other_module_determines_are_worked_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", sections({"tensor_parallel": 2}))
    found = {".".join(one.path): one for one in resolved_values(path)}
    replicas = found["model.module_parallelisms.images.data_parallel"]
    assert (replicas.value, replicas.source) == (2, "worked out from the ranks")
