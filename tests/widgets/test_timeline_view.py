"""Plan, prediction and trace as spans on lanes, and schedules side by side."""

from __future__ import annotations

import pandas as pd
import pytest

import mimokit
from mimokit.analysis import planned_steps
from mimokit.analysis.trace import TRACE_COLUMNS
from mimokit.planning import plan_layout
from mimokit.prediction import predict_timeline
from mimokit_widgets import ScheduleView, TimelineView
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

PLAN = plan_layout(apart_config((1, 1, 4), (2, 2, 2), 4))


def _trace() -> pd.DataFrame:
    """Return a trace of what the plan says, with one transfer."""
    assert PLAN.pipeline is not None
    steps = planned_steps(PLAN.pipeline.timeline(), PLAN).assign(iteration=3)
    sent = pd.DataFrame([(0, 3, "send-forward", "images", 0, 1.0, 1.1)], columns=TRACE_COLUMNS)
    return pd.concat([steps[list(TRACE_COLUMNS)], sent], ignore_index=True)


def _said(view: TimelineView) -> list[str]:
    return list(view._timeline["words"])


def test_a_plan_says_what_ranks_compute_and_send() -> None:
    view = TimelineView(plan=PLAN)
    assert [lane["name"] for lane in view._timeline["lanes"]] == [
        "images, ranks 0–3",
        "language_module, ranks 4–7",
        "language_module, ranks 8–11",
    ]
    sent = "forward of images, micro-batch 0, sent from rank 0 to rank 4, samples 0–1, 65.5 kB"
    assert any(words.startswith(sent) for words in _said(view))
    spans = view._timeline["spans"]
    assert len([span for span in spans if span[0] == 2]) == 8
    assert view._timeline["unit"].startswith("units")
    shared = TimelineView(plan=plan_layout(digits_config((4, 2), (1, 8))))
    assert any("gather of images" in words for words in _said(shared))


def test_a_trace_with_a_plan_names_ends_and_without_one_says_why_not() -> None:
    view = TimelineView(trace=_trace(), plan=PLAN)
    groups = dict.fromkeys(lane["group"] for lane in view._timeline["lanes"])
    assert list(groups) == ["measured", "planned, with the measured medians"]
    transfer = "send-forward of images, micro-batch 0"
    assert any(words.startswith(f"{transfer}, from rank 0 to rank 4") for words in _said(view))
    alone = TimelineView(trace=_trace())
    assert transfer in _said(alone)
    assert alone._timeline["sentence"].startswith("Without a plan transfers do not say")
    assert "computes for" in alone._in_html()
    with pytest.raises(ValueError, match="Iteration 7 was not traced; traced are"):
        TimelineView(trace=_trace(), iteration=7)
    with pytest.raises(ValueError, match="give a trace, a plan or a prediction"):
        TimelineView()


def test_a_prediction_is_drawn_on_the_lanes_of_its_stages() -> None:
    config = mimokit.load_experiment_config("preset:llava_7b_heterogeneous")
    timeline = predict_timeline(config)
    assert timeline is not None
    view = TimelineView(prediction=timeline)
    assert [lane["name"] for lane in view._timeline["lanes"]] == list(timeline.lanes)
    assert max(span[3] for span in view._timeline["spans"]) == pytest.approx(timeline.seconds)


def test_schedules_follow_their_sliders() -> None:
    view = ScheduleView(stages=4, encoder_stages=0, microbatches=8)
    said = {each["name"]: each["said"] for each in view._schedules}
    assert list(said) == ["GPipe", "1F1B", "ZB-H1", "interleaved"]
    assert "idles most idles 27.3%; at most 8 micro-batches in flight" in said["GPipe"]
    assert "at most 4 micro-batches in flight" in said["1F1B"]
    assert "idles most idles 15.8%" in said["interleaved"]
    view._on_message(view, {"name": "microbatches", "value": 6}, [])
    shown = {each["name"]: each for each in view._schedules}
    assert shown["interleaved"]["timeline"] is None
    assert shown["interleaved"]["said"].endswith("multiples of the 4 stages; take 8.")
    assert shown["ZB-H1"]["timeline"]["keys"][-1]["name"] == "language model weight-gradient"
    view._on_message(view, {"name": "chunks", "value": 1}, [])
    assert "take 2 chunks or more" in view._schedules[-1]["said"]
    view._on_message(view, {"name": "chunks", "value": 2}, [])
    view._on_message(view, {"name": "stages", "value": 1}, [])
    assert "take 2 stages" in view._schedules[-1]["said"]
    view._on_message(view, {"name": "stages", "value": 4}, [])
    view._on_message(view, {"name": "encoder_stages", "value": 2}, [])
    assert len(view._schedules[0]["timeline"]["lanes"]) == 6
