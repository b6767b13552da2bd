"""Every config in the tree can be planned."""

from pathlib import Path

from mimokit.config_files import load_experiment_config
from tests.rows import rows

CONFIGS = Path(__file__).parents[2] / "configs"


@rows("path", *sorted(CONFIGS.rglob("*.yaml")))
def test_it_is_right(path: Path) -> None:
    config = load_experiment_config(path)
    assert config.model.finalize().total_world_size >= 1
