"""Plan, prediction and trace as spans on lanes, and schedules side by side."""

from pathlib import Path

import pandas as pd
import pytest

import mimokit
from mimokit.analysis import planned_steps, read_trace, write_trace
from mimokit.analysis.trace import TRACE_COLUMNS
from mimokit.planning import plan_layout
from mimokit.planning.schedule import unit_timeline
from mimokit.prediction import predict_timeline
from mimokit.samples import TraceSample
from mimokit_widgets import ScheduleView, TimelineView
from tests.layouts import digits_config
from tests.layouts_apart import apart_config

PLAN = plan_layout(apart_config((1, 1, 4), (2, 2, 2), 4))


def _trace() -> pd.DataFrame:
    assert PLAN.pipeline is not None
    steps = planned_steps(unit_timeline(PLAN.pipeline.schedule), PLAN).assign(iteration=3)
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
    with pytest.raises(ValueError, match="give a trace, a plan, a prediction or nodes"):
        TimelineView()


def test_what_is_inside_steps_is_drawn_below_its_rank(tmp_path: Path) -> None:
    steps = (("forward", "llm", 0, 7.0, 8.0), ("backward", "llm", 0, 8.0, 10.0))
    inside = (
        ("dispatch", "llm", 0, 7.2, 7.4),
        ("dispatch", "llm", 0, 8.3, 8.5),
        ("recompute", "llm", 0, 8.0, 8.9),
    )
    clock = {"clock_offset": 0.0, "clock_error": 0.0, "events": steps}
    samples = [
        TraceSample(rank=0, iteration=0, **clock),
        TraceSample(rank=0, iteration=1, **clock, inside=inside),
        TraceSample(rank=1, iteration=1, **clock),
    ]
    write_trace(tmp_path / "trace.json", samples, PLAN)
    timeline = TimelineView(trace=tmp_path)._timeline
    names = [lane["name"] for lane in timeline["lanes"]]
    assert names == ["rank 0", "rank 0, inside its steps", "rank 1"]
    keys, words = [key["name"] for key in timeline["keys"]], timeline["words"]
    below = [span for span in timeline["spans"] if span[0] == 1]
    sent = ("communication", "dispatch of llm, micro-batch 0")
    again = ("llm forward", "recompute of llm, micro-batch 0")
    assert [(keys[key], words[told]) for _, key, _, _, told in below] == [sent, again, sent, again]
    assert [span[2] for span in below] == pytest.approx([0.2, 1.0, 1.3, 1.5])
    assert [span[3] for span in below] == pytest.approx([0.4, 1.3, 1.5, 1.9])
    alone = TimelineView(trace=read_trace(tmp_path))._timeline
    assert [lane["name"] for lane in alone["lanes"]] == ["rank 0", "rank 1"]


def test_a_prediction_is_drawn_on_the_lanes_of_its_stages() -> None:
    config = mimokit.load_experiment_config("preset:llava_7b_heterogeneous")
    timeline = predict_timeline(config)
    assert timeline is not None
    view = TimelineView(prediction=timeline)
    assert [lane["name"] for lane in view._timeline["lanes"]] == list(timeline.lanes)
    assert max(span[3] for span in view._timeline["spans"]) == pytest.approx(timeline.seconds)


def test_schedules_follow_their_sliders() -> None:
    view = ScheduleView(stages=4, encoder_stages=0, microbatches=8)
    said = {group.title.split(":")[0]: group.title for group in view.groups}
    assert list(said) == ["GPipe", "1F1B", "ZB-H1", "interleaved"]
    assert "idles most idles 27.3%; at most 8 micro-batches in flight" in said["GPipe"]
    assert "at most 4 micro-batches in flight" in said["1F1B"]
    assert "idles most idles 15.8%" in said["interleaved"]
    view.set_state({"encoder_stages": False})  # as a page may
    view._on_message(view, {"name": "microbatches", "value": 6}, [])
    assert "idles most idles 26.5%" in view.groups[-1].title
    assert view._timeline["keys"][-1]["name"] == "language_module weight-gradient"
    view._on_message(view, {"name": "chunks", "value": 1}, [])
    assert "take 2 chunks or more" in view._timeline["sentence"]
    assert [group.title.split(":")[0] for group in view.groups] == ["GPipe", "1F1B", "ZB-H1"]
    view._on_message(view, {"name": "chunks", "value": 2}, [])
    view._on_message(view, {"name": "stages", "value": 1}, [])
    assert "take 2 stages" in view._timeline["sentence"]
    view._on_message(view, {"name": "stages", "value": 4}, [])
    view._on_message(view, {"name": "encoder_stages", "value": 2}, [])
    assert [len(group.lanes) for group in view.groups] == [6] * 4
