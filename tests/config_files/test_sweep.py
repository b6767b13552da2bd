"""Many experiments in one file: all combinations, named after what differs, checked one by one."""

import re
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.config import ConfigError
from mimokit.config_files import LoadedExperiment, load_experiments
from mimokit.config_files.sweep import combinations
from mimokit.config_files.sweep_entries import LONGEST, MOST_EXPERIMENTS, file_name
from tests.config.sections import only, sections
from tests.config_files.test_files import write
from tests.rows import rows

LANGUAGE = "model.module_parallelisms.language_module"
IMAGES = "model.module_parallelisms.images"


def loaded(tmp_path: Path, sweep: object, name: str = "grid") -> dict[str, LoadedExperiment]:
    path = write(tmp_path / f"{name}.yaml", sections() | {"sweep": sweep})
    return {one.name: one for one in load_experiments(path)}


def names(sweep: object, stem: str = "grid") -> list[str]:
    return [one.name for one in combinations(sweep, stem)]


def test_values_of_two_keys_are_crossed(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"data.num_microbatches": [1, 2], "runtime.seed": [1, 2, 3]})
    assert list(found) == [
        f"grid-num_microbatches_{batches}-seed_{seed}" for batches in (1, 2) for seed in (1, 2, 3)
    ]
    one = found["grid-num_microbatches_2-seed_3"]
    assert one.changes == {"data.num_microbatches": 2, "runtime.seed": 3}
    assert one.config is not None
    assert (one.config.data.num_microbatches, one.config.runtime.seed) == (2, 3)
    assert one.config.name == one.name
    assert one.config.data.base_batch_size == 8


def test_named_settings_of_several_keys_go_together(tmp_path: Path) -> None:
    layouts = {
        "same": {IMAGES: {"tensor_parallel": 4, "data_parallel": 1}},
        "apart": {"runtime.pipeline_schedule": "1f1b", f"{LANGUAGE}.rank_offset": 4},
    }
    found = loaded(tmp_path, {"layout": layouts, "runtime.seed": [7]})
    assert list(found) == ["grid-same-seed_7", "grid-apart-seed_7"]
    modes = [one.config.model.deployment_mode for one in found.values() if one.config]
    assert modes == ["colocated", "heterogeneous"]
    same = found["grid-same-seed_7"].config
    assert same is not None
    assert same.model.get_parallelism("images").tensor_parallel == 4


def test_refused_combinations_are_among_them_by_name(tmp_path: Path) -> None:
    found = loaded(tmp_path, {f"{IMAGES}.data_parallel": [4, 3], "data.base_batch_size": [8, "8"]})
    refused = {name: one for name, one in found.items() if one.config is None}
    assert len(found) == 4
    assert len(refused) == 3
    wrong = next(one for one in refused.values() if one.changes["data.base_batch_size"] == 8)
    assert "Module 'images': data_parallel is 3" in wrong.problems[0].sentence


def test_a_file_without_a_sweep_is_one_experiment(tmp_path: Path) -> None:
    one = only_one(load_experiments(write(tmp_path / "plain.yaml", sections())))
    assert (one.name, dict(one.changes), one.problems) == ("plain", {}, ())
    assert one.config is not None
    assert only_one(load_experiments("preset:llava_7b_colocated")).name == "llava_7b_colocated"


def only_one(found: tuple[LoadedExperiment, ...]) -> LoadedExperiment:
    assert len(found) == 1
    return found[0]


def test_a_file_that_cannot_be_read_is_one_refused_experiment(tmp_path: Path) -> None:
    one = only_one(load_experiments(tmp_path / "none.yaml"))
    assert (one.name, one.config) == ("none", None)
    assert "does not exist" in only(one.problems).sentence
    one = only_one(load_experiments("preset:none"))
    assert (one.name, one.config) == ("none", None)


def test_a_sweep_is_inherited_and_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "baseline.yaml", sections() | {"sweep": {"runtime.seed": [1, 2]}})
    more = load_experiments(write(tmp_path / "more.yaml", {"sweep": {"data.num_workers": [0, 1]}}))
    assert len(more) == 4
    assert len(load_experiments(write(tmp_path / "one.yaml", {"sweep": None}))) == 1
    assert mimokit.load_experiment_config(tmp_path / "one.yaml").name == "one"


def test_one_config_is_not_loaded_from_a_sweep(tmp_path: Path) -> None:
    path = write(tmp_path / "grid.yaml", sections() | {"sweep": {"runtime.seed": [1, 2]}})
    with pytest.raises(ConfigError, match=r"several experiments .* mimokit\.load_experiments"):
        mimokit.load_experiment_config(path)


@rows(
    "sweep, expected",
    ({f"{LANGUAGE}.tensor_parallel": [1, 2]}, ["grid-tp1", "grid-tp2"]),
    ({f"{LANGUAGE}.tensor_parallel": [1], f"{IMAGES}.tensor_parallel": [2]},
     ["grid-language_module_tp1-images_tp2"]),
    ({LANGUAGE: [{"tensor_parallel": 2, "data_parallel": 4}]}, ["grid-language_module_tp2_dp4"]),
    ({"runtime.learning_rate": [1e-3, 1e-5]},
     ["grid-learning_rate_0.001", "grid-learning_rate_1e-05"]),
    ({"data.persistent_workers": [True, False]},
     ["grid-persistent_workers_true", "grid-persistent_workers_false"]),
    ({"runtime.precision": [None, "fp32"]}, ["grid-precision_none", "grid-precision_fp32"]),
    ({"runtime.metrics_output_dir": ["../../etc", "a b"]},
     ["grid-metrics_output_dir_.._.._etc", "grid-metrics_output_dir_a_b"]),
    ({"runtime.metrics_output_dir": ["a/b", "a:b"]}, ["grid-0001", "grid-0002"]),
    ({"runtime.metrics_output_dir": ["A", "a"]}, ["grid-0001", "grid-0002"]),
    ({"runtime.metrics_output_dir": ["x" * 300, "y"]}, ["grid-0001", "grid-0002"]),
    ({"layout": {"a": {"runtime.seed": 1}, "b": {"runtime.seed": 2}}}, ["grid-a", "grid-b"]),
)  # fmt: skip
def test_names(sweep: dict[str, Any], expected: list[str]) -> None:
    assert names(sweep) == expected


@rows("stem", "..", "a b", "x/../y", "ä", "-", ".hidden", "n" * 300, "con.")
def test_names_are_safe_as_folders(stem: str, tmp_path: Path) -> None:
    for name in names({"runtime.metrics_output_dir": ["..", "/", "\0", "ü"]}, file_name(stem)):
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name)
        assert len(name) <= LONGEST
        (tmp_path / name).mkdir()
        assert (tmp_path / name).resolve().parent == tmp_path.resolve()


@rows(
    "sweep, expected",
    (5, "Section 'sweep': it is 5; write a mapping of keys and lists"),
    ([], "Section 'sweep': it is an empty list"),
    ({}, "Section 'sweep': it is an empty mapping"),
    ({"runtime.seed": 3}, "runtime.seed is 3; write a list of values"),
    ({"runtime.seed": []}, "runtime.seed is an empty list; give at least one value"),
    ({"runtime.seed": [1, 2, 1]}, "runtime.seed has 1 twice; keep one"),
    ({"seed": [1]}, "seed is not a path into a config; write one such as"),
    ({"extends": ["a.yaml"]}, "extends is not a path into a config"),
    ({"name.x": ["a"]}, "name.x is not a path into a config"),
    ({"data..seed": [1]}, "data..seed is not a path"),
    ({3: [1]}, "3 is not a path"),
    ({"layout": {"a": 1}}, "layout.a is 1; write a mapping of keys and values"),
    ({"layout": {"a b": {"runtime.seed": 1}}}, "layout.a b names an experiment; name it with"),
    ({"layout": {"../a": {"runtime.seed": 1}}}, "layout.../a names an experiment"),
    ({"layout": {"a": {"seed": 1}}}, "seed of layout.a is not a path into a config"),
    ({"runtime.seed": [1], "layout": {"a": {"runtime.seed": 2}}},
     "runtime.seed is set by runtime.seed and by layout; set it in one of them"),
    ({f"{LANGUAGE}.tensor_parallel": [1], LANGUAGE: [{"tensor_parallel": 2}]},
     f"{LANGUAGE}.tensor_parallel is set by"),
    ({"runtime": [1]}, "runtime is not a path"),
    ({"runtime.seed": list(range(5000))}, "runtime.seed has 5,000 values; give at most 1,000"),
    ({f"runtime.k{number}": [1, 2] for number in range(100)},
     "its 100 entries make more than the 1,000 experiments that one file may have"),
)  # fmt: skip
def test_what_is_no_sweep(sweep: object, expected: str, tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, sweep).values()
    assert (one.name, one.config) == ("grid", None)
    sentence = only(one.problems).sentence
    assert expected in sentence
    assert sentence.endswith(".")


def test_as_many_experiments_as_a_file_may_have() -> None:
    sweep = {
        "runtime.seed": list(range(MOST_EXPERIMENTS // 10)),
        "data.num_workers": list(range(10)),
    }
    assert len(set(names(sweep))) == MOST_EXPERIMENTS
