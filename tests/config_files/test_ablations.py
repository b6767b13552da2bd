"""The two sets of experiments that ship: each layout is right, comparable and predicted."""

from collections import Counter
from pathlib import Path

import pytest

import mimokit
from mimokit.config import ConfigError
from mimokit.config_files import load_experiment_config
from tests.config.sections import only
from tests.rows import rows

ABLATIONS = Path(__file__).parents[2] / "configs/ablations"
MODES = {"homogeneous", "colocated", "heterogeneous"}
SETS = ("digits", "llm_7b")


def layouts(name: str) -> list[Path]:
    return sorted(path for path in (ABLATIONS / name).glob("*.yaml") if path.stem != "baseline")


FILES = [path for name in SETS for path in layouts(name)]


@rows("name", *SETS)
def test_a_set_has_a_baseline_and_six_layouts_over_three_modes(name: str) -> None:
    assert (ABLATIONS / name / "baseline.yaml").is_file()
    modes = Counter(load_experiment_config(path).model.deployment_mode for path in layouts(name))
    assert set(modes) == MODES
    assert sum(modes.values()) >= 6
    seen = [mimokit.plan(path).to_json()["modules"] for path in layouts(name)]
    assert all(seen.count(one) == 1 for one in seen), "two files have the same layout"


@rows("path", *FILES)
def test_a_layout_of_a_set_is_comparable_with_the_others(path: Path) -> None:
    config = load_experiment_config(path)
    baseline = load_experiment_config(path.with_name("baseline.yaml"))
    plan = mimokit.plan(config)
    assert plan.batch.global_batch_size == mimokit.plan(baseline).batch.global_batch_size == 64
    assert config.model.module_architectures == baseline.model.module_architectures
    assert path.stem.startswith(config.model.deployment_mode)


@rows("path", *layouts("digits"))
def test_the_digits_run_on_four_to_eight_engines(path: Path) -> None:
    assert 4 <= mimokit.plan(path).world_size <= 8


@rows("path", *layouts("llm_7b"))
def test_the_large_set_is_predicted(path: Path) -> None:
    config = load_experiment_config(path)
    networks = config.model.module_architectures
    assert (networks["images"].num_layers, networks["images"].hidden_size) == (40, 1408)
    language = networks["language_module"]
    assert (language.num_layers, language.hidden_size) == (32, 4096)
    predicted = mimokit.predict(config, gpu="h100")
    assert predicted.seconds > 0
    assert predicted.fits
    assert set(predicted.memory) == {"images", "language_module"}


def test_the_micro_batch_of_the_source_document_is_refused(tmp_path: Path) -> None:
    """Its layout of eight encoder replicas comes with 4 samples; the shipped file has 8."""
    shipped = ABLATIONS / "llm_7b/colocated_tp8_dp1.yaml"
    assert load_experiment_config(shipped).data.base_batch_size == 8
    path = tmp_path / "as_written.yaml"
    path.write_text(f"extends: {shipped}\ndata: {{base_batch_size: 4}}\n")
    with pytest.raises(ConfigError) as refused:
        load_experiment_config(path)
    problem = only(refused.value.problems)
    assert (problem.module, problem.field, problem.value) == ("images", "data_parallel", 8)
    assert "does not divide the 4 samples of a micro-batch" in problem.sentence
    assert problem.fix == {"path": "data.base_batch_size", "value": 8}
