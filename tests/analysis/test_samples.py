"""Samples become tables."""

import pytest

from mimokit.analysis import (
    module_names,
    per_iteration,
    phase_times,
    samples_to_evaluations,
    samples_to_steps,
    summarize,
    without_warmup,
)
from tests.charts.fakes import samples


def test_steps_and_evaluations_come_apart() -> None:
    made = samples(iterations=20, ranks=4)
    steps, evaluations = samples_to_steps(made), samples_to_evaluations(made)
    assert len(steps) == 80
    assert list(evaluations["iteration"]) == [9, 19]
    assert not {"kind", "modules", "further"} & set(steps.columns)


def test_order_of_arrival_does_not_matter() -> None:
    made = samples(iterations=5, ranks=3)
    assert samples_to_steps(made[::-1]).equals(samples_to_steps(made))


def test_no_samples_make_an_empty_table_with_columns() -> None:
    assert samples_to_steps([]).empty
    assert "total_time" in samples_to_steps([]).columns
    assert "exact_match" in samples_to_evaluations([]).columns


def test_modules_are_read_from_the_columns() -> None:
    assert module_names(samples_to_steps(samples(1, 1))) == ["images", "language_module"]


def test_phases_add_up_and_none_is_negative() -> None:
    steps = samples_to_steps(samples(6, 3))
    times = phase_times(steps, warmup_iterations=1)
    assert (times["seconds"] >= 0).all()
    expected = without_warmup(steps, 1).groupby("rank")["total_time"].mean()
    assert times.groupby("rank")["seconds"].sum().to_list() == pytest.approx(expected.to_list())


def test_warm_up_is_left_out_but_never_everything() -> None:
    steps = samples_to_steps(samples(4, 2))
    assert set(without_warmup(steps, 1)["iteration"]) == {1, 2, 3}
    assert set(without_warmup(steps, 100)["iteration"]) == {3}


def test_an_iteration_is_as_slow_as_its_slowest_rank() -> None:
    steps = samples_to_steps(samples(3, 3))
    slowest = steps.groupby("iteration")["total_time"].max().to_list()
    assert per_iteration(steps)["total_time"].to_list() == slowest
    least = steps.groupby("iteration")["tokens_per_sec"].min().to_list()
    assert per_iteration(steps)["tokens_per_sec"].to_list() == least


def test_summary_leaves_the_slow_start_out() -> None:
    steps = samples_to_steps(samples(10, 2))
    assert summarize(steps, 1)["step_time_p90"] < steps["total_time"].max()
    assert summarize(steps, 1)["iterations"] == 9
    assert summarize(steps)["first_loss"] > summarize(steps)["last_loss"]


def test_summary_of_nothing_says_nothing() -> None:
    assert summarize(samples_to_steps([]))["iterations"] == 0
