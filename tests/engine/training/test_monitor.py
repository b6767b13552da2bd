"""The performance monitor and its tables."""

import csv
import time

import pytest

import mimokit
from mimokit.engine.steps import Step, exhaust
from mimokit.engine.training.monitor import PerformanceMonitor
from tests import seams
from tests.evaluations import QUICK
from tests.layouts import digits_config


def _schedule(clock):
    for name, module, seconds in [
        ("load", None, 0.01),
        ("forward", "images", 0.02),
        ("gather", "images", 0.01),
        ("forward", "language_module", 0.04),
        ("backward", "language_module", 0.06),
        ("backward", "images", 0.02),
        ("grad-sync", None, 0.03),
        ("optimizer", None, 0.01),
    ]:
        yield Step(name, module, 0)
        clock[0] += seconds
    return "done"


def test_steps_of_a_schedule_are_timed_where_they_happen(monkeypatch):
    clock = [100.0]
    for mark in (seams.BEGIN_MARKS, seams.SET_MARK):
        monkeypatch.setattr(mark, lambda: clock[0])
    monitor = PerformanceMonitor(["images", "language_module"], world_size=4)
    monitor.start_step()
    assert exhaust(_schedule(clock), monitor.observe) == "done"
    sample = monitor.end_step(7, samples=8, language_tokens=80, tokens={"images": 32}, loss=1.5)
    row = sample.row()
    took = {"forward": 0.06, "backward": 0.08, "communication": 0.04, "optimizer": 0.01}
    for phase, seconds in took.items():
        assert row[f"{phase}_time"] == pytest.approx(seconds)
    assert row["images_forward_time"] == pytest.approx(0.02)
    assert row["language_module_forward_time"] == pytest.approx(0.04)
    parts = ("forward", "backward", "optimizer", "communication", "data")
    assert sum(row[f"{part}_time"] for part in parts) == pytest.approx(row["total_time"])
    assert row["tokens_per_sec"] == pytest.approx(80 / row["total_time"])
    assert row["tokens_per_sec_per_rank"] == pytest.approx(row["tokens_per_sec"] / 4)
    assert row["images_tokens_per_sec"] == pytest.approx(32 / row["total_time"])
    assert row["memory_allocated"] > 1e6
    assert (sample.loss, sample.iteration) == (1.5, 7)
    assert monitor.log_metrics(7) == row
    with pytest.raises(KeyError, match="No metrics of iteration 8"):
        monitor.log_metrics(8)


def test_phases_by_hand():
    monitor = PerformanceMonitor([], world_size=1)
    began = time.perf_counter()
    monitor.start_step()
    monitor.start_phase("optimizer")
    monitor.end_phase("optimizer")
    monitor.start_phase("forward_backward")
    monitor.end_phase("forward_backward")
    row = monitor.end_step(0).row()
    assert row["optimizer_time"] > 0
    assert row["forward_backward_time"] > 0
    known = row["optimizer_time"] + row["forward_backward_time"]
    assert known < row["total_time"] < time.perf_counter() - began
    with pytest.raises(KeyError):
        monitor.end_phase("optimizer")


def _train_with_tables(plan, config):
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.training.loop import train_on_rank

    samples = []
    train_on_rank(RunOfRank(plan, config), samples.append, lambda: False, evaluations=QUICK)
    return [type(sample).__name__ for sample in samples]


def test_a_run_without_a_notebook_leaves_tables(cluster, tmp_path):
    config = digits_config((1, 2), (2, 1), num_iterations=4, metrics_output_dir=str(tmp_path))
    kinds = cluster.run(_train_with_tables, mimokit.plan(config), config, world_size=2)
    steps = ["StepSample", "HealthSample", *["StepSample"] * 3, "HealthSample"]
    assert kinds == [[*steps, "AnswersSample", "EvaluationSample"], steps]
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1", "2", "3"]
    assert all(float(row["language_module_forward_time"]) > 0 for row in rows)
