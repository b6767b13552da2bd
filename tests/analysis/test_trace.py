"""Traces: the file that Chrome and Perfetto open, and the comparison with the plan."""

import json
from dataclasses import replace
from tempfile import TemporaryDirectory

import pandas as pd
import pytest

import mimokit
from mimokit.analysis import (
    TraceFileError,
    bubbles,
    planned_steps,
    read_trace,
    simulate_as_measured,
    traced_iteration,
    write_trace,
)
from mimokit.analysis.trace import TRACE_COLUMNS
from mimokit.planning.schedule import simulate, unit_timeline
from mimokit.samples import StepSample, TraceSample
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_pipelines import shared_pipeline

PLAN = mimokit.plan(apart_config((1, 1, 1), (1, 3, 1), 6))
FORWARD, BACKWARD = (0.010, 0.020, 0.015, 0.030), (0.020, 0.040, 0.030, 0.060)
CLOCK_BEGINS = 1234.5


def _samples(iterations=3, slow_first=3.0):
    """What ranks would send that keep exactly to the plan, and have read a clock of their own."""
    timeline = simulate(PLAN.pipeline.schedule, FORWARD, BACKWARD)
    for iteration in range(iterations):
        slower = slow_first if iteration == 0 else 1.0
        begin = CLOCK_BEGINS + 5 * iteration
        for rank, stage in PLAN.pipeline.by_rank():
            events = [
                (
                    i.action.kind,
                    stage.module,
                    i.action.microbatch,
                    begin + slower * i.start,
                    begin + slower * i.stop,
                )
                for i in timeline.intervals(stage.index)
                if i.action.kind in ("forward", "backward")
            ]
            events.append(("optimizer", None, None, begin + 4.0, begin + 4.1))
            yield TraceSample(
                rank=rank,
                iteration=iteration,
                clock_offset=0.001 * rank,
                clock_error=0.00002 * rank,
                events=tuple(events),
            )
    yield StepSample(0, loss=1.0)


def samples_to_trace(samples):
    """What the file of these samples holds."""
    with TemporaryDirectory() as folder:
        write_trace(f"{folder}/trace.json", list(samples), PLAN)
        return read_trace(folder)


@pytest.fixture
def file(tmp_path):
    write_trace(tmp_path / "trace.json", list(_samples()), PLAN)
    return tmp_path / "trace.json"


def test_the_file_is_in_the_trace_event_format(file):
    content = json.loads(file.read_text())
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    names = [e for e in content["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"]
    assert [e["args"]["name"] for e in names] == [
        "rank 0: images",
        *(f"rank {rank}: language_module" for rank in (1, 2, 3)),
    ]
    complete = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == 3 * (4 * 2 * 6 + 4)
    ends = {}
    for event in sorted(complete, key=lambda e: (e["pid"], e["ts"])):
        assert {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"} == set(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["dur"] > 0
        # Events of one thread lie behind each other, or the viewers draw them as a stack.
        assert event["ts"] >= ends.get(event["pid"], 0.0) - 1e-3
        ends[event["pid"]] = event["ts"] + event["dur"]
    assert min(e["ts"] for e in complete) == 0.0
    assert content["otherData"]["clock_error_seconds"] == {
        "0": 0.0,
        "1": 0.00002,
        "2": 0.00004,
        "3": pytest.approx(0.00006),
    }


def test_what_is_written_is_read(file):
    table = read_trace(file.parent)
    samples = [sample for sample in _samples() if isinstance(sample, TraceSample)]
    events = [(each.rank, each.iteration, *event) for each in samples for event in each.events]
    written = pd.DataFrame(events, columns=TRACE_COLUMNS).sort_values(["start", "rank"])
    written[["start", "stop"]] -= written["start"].min()
    assert table.attrs["clock_error"] == pytest.approx(0.00006)
    assert len(table) == len(written)
    for column in ("rank", "iteration", "name"):
        assert table[column].tolist() == written[column].tolist()
    assert table["stop"].to_numpy() == pytest.approx(written["stop"].to_numpy(), abs=1e-9)
    assert table["microbatch"].isna().sum() == 3 * 4
    assert table["module"].isna().sum() == 3 * 4


def test_the_plan_with_measured_times_is_what_was_measured():
    trace = samples_to_trace(_samples())
    timeline = simulate_as_measured(trace, PLAN)
    truth = simulate(PLAN.pipeline.schedule, FORWARD, BACKWARD)
    assert timeline.pipeline_makespan == pytest.approx(truth.pipeline_makespan, rel=1e-6)
    table = bubbles(trace, PLAN)
    assert table["planned"].tolist() == pytest.approx(list(truth.bubble), abs=1e-6)
    assert table["measured"].tolist() == pytest.approx(list(truth.bubble), abs=1e-6)
    planned = unit_timeline(PLAN.pipeline.schedule).bubble
    assert table["on_plans_clock"].tolist() == pytest.approx(list(planned))


def test_a_rank_that_stalls_shows_in_the_measured_bubble_and_not_in_the_planned_one():
    samples = [_stalled(sample) if sample.rank == 3 else sample for sample in _samples()]
    table = bubbles(samples_to_trace(samples), PLAN).set_index("rank")
    assert (table["measured"] > table["planned"] + 0.1).all()


def _stalled(sample):
    late = tuple(
        (name, module, microbatch, start + 0.5, stop + 0.5)
        for name, module, microbatch, start, stop in sample.events[3:]
    )
    return replace(sample, events=sample.events[:3] + late)


def test_one_iteration_begins_at_zero_and_leaves_out_the_slow_first():
    trace = samples_to_trace(_samples())
    chosen = traced_iteration(trace)
    assert set(chosen["iteration"]) == {1}
    assert chosen["start"].min() == 0.0
    with pytest.raises(ValueError, match=r"Iteration 9 was not traced; traced are \[0, 1, 2\]"):
        traced_iteration(trace, 9)


def test_the_planned_steps_last_as_long_as_the_measured_ones():
    trace = samples_to_trace(_samples())
    planned = planned_steps(simulate_as_measured(trace, PLAN), PLAN)
    assert len(planned) == 4 * 2 * 6
    measured = traced_iteration(trace)
    work = measured[measured["name"].isin(["forward", "backward"])]
    assert planned["stop"].max() == pytest.approx(work["stop"].max(), rel=1e-6)


def test_without_a_pipeline_no_timeline_is_planned():
    plan = mimokit.plan(digits_config((1, 8), (4, 2)))
    with pytest.raises(ValueError, match="colocated and has no pipeline"):
        bubbles(samples_to_trace(_samples()), plan)


def _with_a_list(name: str) -> str:
    arguments = {"iteration": 0, "step": "load", name: []}
    event = {"ph": "X", "ts": 0.0, "dur": 1.0, "pid": 0, "args": arguments}
    return json.dumps({"traceEvents": [event], "otherData": {"clock_error_seconds": {}}})


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"traceEvents": [{"ph": "X"}]}', '{"a": 1}', "[" * 100_000,
     _with_a_list("module"), _with_a_list("microbatch")],
    ids=range(7),
)  # fmt: skip
def test_a_file_that_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(TraceFileError, match="is not a trace of mimokit"):
        read_trace(tmp_path)


def test_a_missing_trace_says_how_to_get_one(tmp_path):
    with pytest.raises(TraceFileError, match=r"train\(\.\.\., trace=True\) writes one"):
        read_trace(tmp_path)


def test_encoders_around_a_pipeline_are_no_part_of_it() -> None:
    plan = mimokit.plan(shared_pipeline("colocated", (1, 2, 1), {"clip": (2, 1)}, 3))
    assert plan.pipeline is not None
    inside = planned_steps(unit_timeline(plan.pipeline.schedule), plan).assign(iteration=0)
    before = inside[inside["name"] == "forward"].assign(module="clip", start=-9.0, stop=-2.0)
    traced = pd.concat([before, inside])
    found = bubbles(traced, plan)
    assert found["measured"].tolist() == pytest.approx([0.25, 0.25])
    assert found["planned"].tolist() == pytest.approx([0.25, 0.25])
