"""Constants from own runs: what they tell about moves, inside bounds; wrong input is refused."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mimokit import calibrate_from, predict
from mimokit.architecture import load_model
from mimokit.config.errors import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Workload
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.own_runs import adjust, read_runs
from mimokit.prediction.step_time import Software, load_software
from mimokit.prediction.step_time.software import movable, save_software

H100, BRIDGE = load_hardware("h100"), load_software("megatron-bridge")
LAYOUTS = [(1, 4, 1), (2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 2), (8, 1, 2)]
"""Tensor and pipeline parallel sizes, and samples per micro-batch, of 16 GPUs."""


def rows(software: Software, layouts: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return a row per layout, as if a stack were as fast as it predicts."""
    model, found = load_model("llama-3-8b"), []
    for tp, pp, micro_batch in layouts:
        sizes = ParallelSizes(tp, pp, data=16 // (tp * pp), micro_batch=micro_batch)
        layout = Layout("homogeneous", {model.name: sizes})
        seconds = predict(model, layout, Workload(4096, 128), gpu="h100", software=software).seconds
        found.append({
            "model": "llama-3-8b", "seq_length": 4096, "global_batch_size": 128, "tp": tp, "pp": pp,
            "dp": 16 // (tp * pp), "micro_batch": micro_batch, "seconds": seconds,
        })  # fmt: skip
    return found


def written(path: Path, content: list[dict[str, Any]], without: str = "") -> Path:
    columns = [name for name in content[0] if name != without]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(content)
    return path


def slower(share: float = 0.85) -> Software:
    return replace(BRIDGE, matrix_share=share)


def test_runs_of_a_slower_machine_move_its_rate_and_predict_the_others(tmp_path: Path) -> None:
    found = calibrate_from(written(tmp_path / "runs.csv", rows(slower(), LAYOUTS[:3])), "h100")
    assert found.software.matrix_share == pytest.approx(0.85, rel=0.03)
    assert "matrix_share" in found.moved
    assert max(map(abs, found.left_out.values())) < 0.03 < max(map(abs, found.before.values()))
    for row in rows(slower(), LAYOUTS[3:]):
        (other,) = rows(found.software, [(row["tp"], row["pp"], row["micro_batch"])])
        assert other["seconds"] == pytest.approx(row["seconds"], rel=0.03)
    assert "matrix_share: 1 becomes 0.8" in str(found)
    assert "teach nothing" not in str(found)


def test_runs_that_teach_nothing_say_so(tmp_path: Path) -> None:
    """Some are faster and some slower than predicted, for no reason that a constant stands for."""
    table = rows(BRIDGE, LAYOUTS[:3])
    for row, factor in zip(table, (0.3, 1, 4), strict=True):
        row["seconds"] *= factor
    found = calibrate_from(written(tmp_path / "runs.csv", table), "h100")
    assert "the runs teach nothing about another run: its error" in str(found)


def test_no_constant_leaves_its_bounds_and_one_that_ends_there_is_named(tmp_path: Path) -> None:
    table = rows(BRIDGE, LAYOUTS[:3])
    for row in table:
        row["seconds"] *= 4
    found = adjust(read_runs(written(tmp_path / "runs.csv", table), H100, BRIDGE), BRIDGE)
    for name, (low, high) in movable(H100.name).items():
        assert low * (1 - 1e-6) <= getattr(found.software, name) <= high * (1 + 1e-6)
    assert any("matrix_share ends on its bound" in sentence for sentence in found.on_bounds)


def test_the_file_is_a_training_stack_of_its_gpu(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    runs = written(tmp_path / "runs.csv", rows(slower(), LAYOUTS[:3]))
    found = calibrate_from(runs, "h100", save=path)
    model = load_model("llama-3-8b")
    layout = Layout("homogeneous", {model.name: ParallelSizes(2, data=8)})
    work = Workload(4096, 128)
    own = predict(model, layout, work, gpu="h100", software=str(path))
    assert own.seconds == predict(model, layout, work, gpu="h100", software=found.software).seconds
    with pytest.raises(
        ConfigError, match="it was calibrated on NVIDIA H100 SXM 80GB, and the pred"
    ):
        predict(model, layout, work, gpu="b200", software=str(path))


def test_a_stack_that_does_not_ship_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder '.*absent'"):
        save_software(BRIDGE, BRIDGE.name, tmp_path / "absent" / "own.json")
    with pytest.raises(ConfigError, match=r"'my-stack' is none of the stacks megatron-bridge, "):
        save_software(BRIDGE, "my-stack", tmp_path / "own.json")
    assert not list(tmp_path.iterdir())
    written_file = save_software(replace(BRIDGE, gpu=H100.name), BRIDGE.name, tmp_path / "own.json")
    kept = written_file.read_text()
    with pytest.raises(ConfigError, match="it exists already, and is not written over"):
        save_software(replace(slower(), gpu=H100.name), BRIDGE.name, written_file)
    assert written_file.read_text() == kept


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"facts": {"matrix_share": 3.0}}, "matrix_share is 3.0, outside its bounds 0."),
        ({"facts": {"speed": 1.0}}, "Fact 'speed': it does not exist"),
        ({"format": 3}, "it has no format 2"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    path = save_software(replace(BRIDGE, gpu=H100.name), BRIDGE.name, tmp_path / "own.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=sentence):
        load_software(str(path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seconds": 2500.0}, "it looks like milliseconds"),
        ({"memory_gib": 61440.0}, "GiB predicted; it looks like MiB or bytes"),
        ({"seconds": "fast"}, "seconds is 'fast'; it must be a number above 0"),
        ({"tp": 3}, "line 2: Module 'llama-3-8b'"),
        ({"model": "llama-9"}, "line 2: Model 'llama-9'"),
        ({"precision": "fp1"}, "line 2: Precision"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    table = rows(BRIDGE, LAYOUTS[:2])
    table[0] |= change
    table[1].setdefault("memory_gib", "")
    with pytest.raises(ConfigError) as refused:
        calibrate_from(written(tmp_path / "runs.csv", table), "h100")
    assert sentence in str(refused.value)


def test_tables_without_a_column_and_single_runs_are_refused(tmp_path: Path) -> None:
    table = rows(BRIDGE, LAYOUTS[:2])
    with pytest.raises(ConfigError, match="column 'dp' is missing; needed are model, seq_length"):
        calibrate_from(written(tmp_path / "runs.csv", table, without="dp"), "h100")
    with pytest.raises(ConfigError, match="there is 1 run, and at least 2 are needed"):
        calibrate_from(written(tmp_path / "runs.csv", table[:1]), "h100")
    with pytest.raises(ConfigError, match="there are 0 runs, and at least 2 are needed"):
        adjust([], BRIDGE)
    with pytest.raises(ConfigError, match="cannot be read"):
        calibrate_from(tmp_path / "nothing.csv", "h100")


def test_runs_that_contradict_each_other_are_listed(tmp_path: Path) -> None:
    table = rows(BRIDGE, [*LAYOUTS[:2], LAYOUTS[0]])
    table[2]["seconds"] *= 1.25
    found = calibrate_from(written(tmp_path / "runs.csv", table), "h100")
    ((one, other),) = found.contradicting
    assert (one[-6:], other[-6:]) == ("line 2", "line 4")
    table[2]["fsdp"] = "true"  # another layout
    for row in table[:2]:
        row["fsdp"] = "false"
    assert not calibrate_from(written(tmp_path / "other.csv", table), "h100").contradicting


def test_measured_memory_is_compared(tmp_path: Path) -> None:
    table = rows(BRIDGE, LAYOUTS[:2])
    for row, memory in zip(table, (80.0, ""), strict=True):
        row["memory_gib"] = memory
    runs = read_runs(written(tmp_path / "runs.csv", table), H100, BRIDGE)
    found = adjust(runs, BRIDGE)
    (error,) = found.memory.values()
    peak = runs[0].prediction(BRIDGE).peak_memory / 2**30
    assert error == pytest.approx(peak / 80 - 1)
    assert f"{abs(error):.1%} of 1 run" in str(found)
    assert "of memory" not in str(replace(found, memory={}))
