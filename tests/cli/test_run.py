"""`mimokit run` leaves what it says."""

from __future__ import annotations

from pathlib import Path

import yaml
from typer.testing import CliRunner

from mimokit.analysis import read_trace
from mimokit.cli.main import app

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_traced_run_leaves_tables_and_a_trace(tmp_path: Path) -> None:
    sizes = {"tensor_parallel": 1, "data_parallel": 2}
    file = tmp_path / "two_ranks.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "extends": str(CONFIGS / "digits_homogeneous.yaml"),
                "model": {"module_parallelisms": {"images": sizes, "language_module": sizes}},
                "runtime": {"num_iterations": 3, "warmup_iterations": 1},
            }
        )
    )
    results = tmp_path / "results"
    ended = CliRunner().invoke(app, ["run", str(file), "--trace", "--results-dir", str(results)])
    assert ended.exit_code == 0, ended.output
    assert f"Results are in {results}" in ended.output.replace("\n", "")
    trace = read_trace(results / "trace.json")
    assert set(trace["rank"]) == {0, 1}
    assert set(trace["iteration"]) == {0, 1, 2}
