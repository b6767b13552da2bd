"""All benchmarks, one table each: `make bench`. Run them on an otherwise idle machine."""

from __future__ import annotations

from tests.benchmarks import (
    cold_start,
    decoding_speed,
    emulated_links,
    failure_reports,
    fit_speed,
    frame_balance,
    frame_parallel,
    load_runs,
    monitor_lag,
    pipeline_overhead,
    plan_speed,
    planner_speed,
    prediction_here,
    prediction_speed,
    sampling_speed,
    schedule_speed,
    search_speed,
    sixteen_ranks,
    soak,
    trace_overhead,
    training_speed,
    transfers,
    watching_cost,
    weight_loading,
    weight_plan_speed,
)
from tests.benchmarks.table import show


def main() -> None:
    """Measure and print."""
    show("Planning", plan_speed.rows())
    show("Planning weights", weight_plan_speed.rows())
    show("Loading weights", weight_loading.rows())
    show("Sampling from shards", sampling_speed.rows())
    show("Generating and converting", decoding_speed.rows())
    show("The planner in Chromium", planner_speed.rows())
    show("Balancing frames", frame_balance.rows())
    show("Frame parallel", frame_parallel.rows())
    show("Schedules", schedule_speed.rows())
    show("Predicting", prediction_speed.rows())
    show("Search", search_speed.rows())
    show("Starting 8 engines", cold_start.rows())
    show("Failures", failure_reports.rows())
    show("Training, 8 ranks", training_speed.rows())
    show("Fits under strategies", fit_speed.rows())
    show("Fits on emulated links", emulated_links.rows())
    show("Transfers between modules", transfers.rows())
    show("Pipeline executor", pipeline_overhead.rows())
    show("Tracing", trace_overhead.rows())
    show("Layout invariance on 16 ranks", sixteen_ranks.rows())
    show("Prediction on this machine", prediction_here.rows())
    show("Loading runs", load_runs.rows())
    show("What watching costs", watching_cost.rows())
    show("Files, threads and memory over many runs", soak.rows())
    show("Watching a run", monitor_lag.rows())


if __name__ == "__main__":
    main()
