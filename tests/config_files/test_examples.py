"""Every config in the tree can be planned."""

from pathlib import Path

import pytest

from mimokit.config_files import load_experiment_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS))
)
def test_it_is_right(path: Path) -> None:
    config = load_experiment_config(path)
    assert config.model.finalize().total_world_size >= 1
