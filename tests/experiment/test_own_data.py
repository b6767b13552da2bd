"""Data of the user's that a config names: trained, proven, and refused before engines start."""

from pathlib import Path
from typing import Any

import pytest

from mimokit.cluster import EngineCluster
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.experiment import Oracle, compute_oracle, verify
from mimokit.experiment.trainable import check_trainable
from tests.cli.call import call
from tests.experiment.own_data import shades
from tests.rows import rows

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "digits_colocated.yaml"
SHADES = "tests.experiment.own_data:shades"


def config(source: str | None = SHADES, **data: Any) -> ExperimentConfig:
    loaded = load_experiment_config(CONFIG).with_layout(
        "colocated",
        images={"data_parallel": 2},
        language_module={"tensor_parallel": 2, "data_parallel": 1},
    )
    update = {"source": source, "base_batch_size": 8, **data}
    loaded.data = loaded.data.model_copy(update=update)
    return loaded.finalize(2)


def test_the_page_shows_what_the_tests_run() -> None:
    example = Path(__file__).with_name("own_data.py").read_text()
    assert f"```python\n{example}```" in (ROOT / "docs" / "own_data.md").read_text()


def test_layouts_train_on_it_and_are_proven(cluster: EngineCluster) -> None:
    few = {"dataset_size": 5}  # of which a micro-batch of 8 takes three twice
    oracle: Oracle = compute_oracle(cluster, config(**few), steps=2)
    report = verify(cluster, config(**few), steps=2, oracle=oracle)
    assert report.passed, report.verdict
    given = verify(cluster, config(None, **few), steps=2, data=shades)
    assert given.passed
    assert report.losses == pytest.approx(given.losses, rel=1e-6)


@rows(
    "data, sentence",
    ({"source": "tests.nowhere:f"}, "source is tests.nowhere:f, but tests.nowhere cannot be"),
    ({"source": "tests.experiment.own_data:WORDS"}, "'data': source is a int; it must be a f"),
    ({"source": "tests.experiment.own_data:samples"}, "cannot be called with one argument"),
    ({"image_seq_length": 0}, "image_seq_length is 0, which leaves no tokens to module 'imag"),
)
def test_what_no_run_can_read_is_refused_before_it(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        check_trainable(config(**data))


def test_the_command_line_names_it(tmp_path: Path) -> None:
    told = call("run", CONFIG, "--data", "x:y", "--task", "sum")
    assert "give --task or --data, not both" in told.output
