"""A predicted step on the clock is the step that is predicted."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from mimokit.architecture import load_model
from mimokit.architecture.from_config import model_of_config
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_preset
from mimokit.interop import layout_of_config, workload_of_config
from mimokit.prediction import Layout, PredictedTimeline, Workload, predict, predict_timeline
from tests.large_presets import LARGE_PRESETS
from tests.rows import rows

TOO_LONG = "video_77b_heterogeneous"
"""44 chunks of 160 micro-batches: over `MOST_CHUNKS`."""

MODEL = load_model("llava-1.5-7b")
STEP = Workload(4096, 64)
LANGUAGE = MODEL.language.name


def drawn(layout: Layout) -> PredictedTimeline:
    found = predict_timeline(MODEL, layout, STEP)
    assert found is not None
    return found


def overlapping(timeline: PredictedTimeline) -> float:
    """Return the most seconds for which a stage does two things at once."""
    lanes = defaultdict(list)
    for block in timeline.blocks:
        lanes[block.lane].append((block.start, block.stop))
    pairs = (pair for own in lanes.values() for pair in pairwise(sorted(own)))
    return max((one[1] - other[0] for one, other in pairs), default=0.0)


def spent(timeline: PredictedTimeline, lane: int, module: str | None, work: str) -> float:
    return sum(
        block.stop - block.start
        for block in timeline.blocks
        if (block.lane, block.module, block.kind) == (lane, module, work)
    )


@rows("name", *sorted({*LARGE_PRESETS} - {TOO_LONG}))
def test_it_ends_with_the_step_and_no_lane_does_two_things_at_once(name: str) -> None:
    config = load_preset(name).finalize()
    asked = (model_of_config(config.model), layout_of_config(config), workload_of_config(config))
    timeline, found = predict_timeline(*asked), predict(*asked)
    assert timeline is not None
    assert timeline.seconds == found.seconds
    assert max(block.stop for block in timeline.blocks) == pytest.approx(found.seconds)
    assert overlapping(timeline) < 1e-9
    for lane in range(len(timeline.lanes)):
        assert spent(timeline, lane, None, "update") == pytest.approx(found.parts["update"])


def test_a_pipeline_of_many_chunks_is_not_drawn() -> None:
    config = load_preset(TOO_LONG).finalize()
    assert predict_timeline(config) is None
    config.data.num_microbatches = 8
    assert predict_timeline(config) is not None


def test_the_check_sees_two_things_at_once() -> None:
    layout = Layout("colocated", {"images": ParallelSizes(data=8), LANGUAGE: ParallelSizes(data=8)})
    timeline = drawn(layout)
    longer = replace(timeline.blocks[0], stop=timeline.blocks[0].stop + 0.01)
    assert overlapping(timeline) < 1e-9
    assert overlapping(replace(timeline, blocks=(longer, *timeline.blocks[1:]))) > 0.009


def test_colocated_encoders_come_before_and_after_the_pipeline() -> None:
    own = ParallelSizes(tensor=2, pipeline=2, data=2, micro_batch=2)
    layout = Layout("colocated", {"images": ParallelSizes(data=8), LANGUAGE: own})
    timeline, found = drawn(layout), predict(MODEL, layout, STEP)
    assert timeline.lanes == (f"{LANGUAGE} 0", f"{LANGUAGE} 1")
    pipeline = [block for block in timeline.blocks if block.module == LANGUAGE]
    begin, end = min(b.start for b in pipeline), max(b.stop for b in pipeline)
    for block in timeline.blocks:
        if block.module == "images" and block.kind != "bridge":
            assert block.stop <= begin if block.kind == "forward" else block.start >= end
    both = sum(spent(timeline, 0, "images", work) for work in ("forward", "backward"))
    assert both == pytest.approx(found.parts["encoder"])
    assert len(pipeline) == 2 * 2 * 16  # stages, passes, micro-batches


def test_a_homogeneous_encoder_is_in_the_first_stage() -> None:
    own = ParallelSizes(pipeline=2, data=4)
    layout = Layout("homogeneous", {"images": ParallelSizes(data=4), LANGUAGE: own})
    timeline = drawn(layout)
    first = [block for block in timeline.blocks if block.lane == 0 and block.micro_batch == 0]
    assert [(block.module, block.kind) for block in first] == [
        ("images", "forward"),
        (LANGUAGE, "forward"),
        (LANGUAGE, "backward"),
        ("images", "backward"),
    ]
    assert spent(timeline, 1, "images", "forward") == 0


@rows("mode", "homogeneous", "colocated", "heterogeneous")
def test_chunks_are_drawn_too(mode: Any) -> None:
    own = ParallelSizes(pipeline=2, virtual=4, data=4)
    encoder = {
        "homogeneous": ParallelSizes(data=4),
        "colocated": ParallelSizes(data=8),
        "heterogeneous": ParallelSizes(pipeline=2, data=2, micro_batch=2),
    }
    layout = Layout(mode, {"images": encoder[mode], LANGUAGE: own})
    timeline, found = drawn(layout), predict(MODEL, layout, STEP)
    assert max(block.stop for block in timeline.blocks) == pytest.approx(found.seconds)
    assert overlapping(timeline) < 1e-9
    chunks = [block for block in timeline.blocks if block.chunk is not None]
    assert len(chunks) == 2 * 2 * 4 * 16  # stages, passes, chunks, micro-batches


def test_more_than_anybody_could_look_at_is_not_drawn() -> None:
    layout = Layout("homogeneous", {"images": ParallelSizes(), LANGUAGE: ParallelSizes()})
    assert predict_timeline(MODEL, layout, Workload(64, 40_000)) is None
