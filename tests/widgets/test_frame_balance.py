"""`FrameBalance` without a browser: what is typed, dragged and chosen, and what follows."""

from typing import Any

import numpy as np
import pytest

import mimokit
from make.site.check import external_references
from mimokit.config import ExperimentConfig
from mimokit.config_files import load_preset
from mimokit_widgets import FrameBalance
from tests.layouts import digits_config
from tests.rows import rows
from tests.widgets.planner_sessions import IMAGES, LANGUAGE, Driver


def drive(view: FrameBalance, **message: Any) -> None:
    view._on_message(view, {"type": "frames", **message}, None)


def matrix(view: FrameBalance) -> np.ndarray:
    ranks = len(view._picture["ranks"])
    return np.frombuffer(view._picture["numbers"], dtype="<f4").reshape(ranks, ranks)


def videos(frames: list[int]) -> ExperimentConfig:
    config = digits_config((1, 4), (1, 4))
    config.data.modality_frames = {"images": frames}
    return config


def test_loads_follow_what_is_typed() -> None:
    view = FrameBalance("8 8 1 1", ranks=2, frame_time="2 ms")
    assert view.forecast.before == pytest.approx((0.032, 0.004))
    assert max(view.forecast.after) == pytest.approx(0.018)
    assert [sample["rank"] for sample in view._picture["samples"]] == [0, 0, 1, 1]
    assert view._picture["ranks"][0]["before"] == 1
    drive(view, field="ranks", text="4")
    assert view.forecast.before == pytest.approx((0.016, 0.016, 0.002, 0.002))
    drive(view, field="fixed_time", text="50 ms")
    assert view.forecast.before == pytest.approx((0.066, 0.066, 0.052, 0.052))
    assert view._picture["fixed"] == pytest.approx(0.05 / 0.066)
    drive(view, field="fixed_time", text="0 ms")
    drive(view, field="counts", text="4 / 4 / 4")
    assert view._picture["fields"]["ranks"] == "3"
    assert "the slowest encoder takes only 1.00 times the mean" in view._picture["sentence"]
    drive(view, field="ranks", text="2")
    assert view._picture["fields"]["counts"] == "4 4 / 4"
    assert view.forecast.before == pytest.approx((0.016, 0.008))
    drive(view, field="ranks", text="3")
    assert view._picture["fields"]["counts"] == "4 / 4 / 4"  # as it was typed


def test_a_dragged_sample_changes_its_count() -> None:
    view = FrameBalance([[8], [1, 1]])
    drive(view, field="sample", sample=2, frames=7)
    assert view._picture["fields"]["counts"] == "8 / 1 7"
    drive(view, field="sample", sample=9, frames=7)
    drive(view, field="sample", sample=0, frames=-3)
    assert view._picture["fields"]["counts"] == "0 / 1 7"


def test_traffic_is_what_the_planner_moves() -> None:
    view = FrameBalance("8 / 0", frame_time="1 ms", patches=4)
    bytes_of_a_patch = 2 * 1176 + 2 * 2 * (1280 + 3584 / 4)
    assert matrix(view)[0, 1] == pytest.approx(4 * 4 * bytes_of_a_patch)
    assert matrix(view).sum() == pytest.approx(view.forecast.traffic_bytes)
    assert view._picture["ranks"][1]["received"] == pytest.approx(0.5)
    drive(view, field="planner", text="none")
    assert not matrix(view).any()
    assert "Every rank encodes what it reads" in view._picture["sentence"]
    drive(view, field="planner", text="lpt")
    assert view.plan.load_per_rank == pytest.approx((0.004, 0.004))


def test_ordered_samples_need_no_traffic() -> None:
    view = FrameBalance("8 6 / 2 1", frame_time="1 ms", planner="order")
    assert view.forecast.before == pytest.approx((0.014, 0.003))
    assert sorted(view.forecast.after) == pytest.approx([0.008, 0.009])
    assert not matrix(view).any()
    assert (
        "Another order of the samples saves 5 ms: the slowest encoder takes 9 ms"
        in view._picture["sentence"]
    )
    assert [rank["received"] for rank in view._picture["ranks"]] == pytest.approx([0, 0])
    drive(view, field="counts", text="8 6 / 2")
    assert "only where every rank reads as many" in view.problem


def test_slow_links_are_not_worth_it() -> None:
    view = FrameBalance("64 64 1 1", ranks=2)
    assert view.forecast.worth_it
    assert view._picture["good"]
    view.ask(bandwidth="1 Mbit/s")
    assert "Frame parallel is not worth it" in view._picture["sentence"]


@rows(
    "field, text, sentence",
    ("counts", "8 eight", "'eight' is not a number of frames; write 64 1 / 2"),
    ("counts", "-1", "'-1' is not a number of frames"),
    ("counts", "9999999", "are more than 1,000,000"),
    ("counts", "1 / " * 200, "There are 201 ranks; the view draws 128."),
    ("ranks", "0", "Ranks, '0': write a whole number from 1 to 128."),
    ("ranks", "many", "write a whole number"),
    ("frame_time", "2", "Time per frame, '2': it has no unit; write 30 ms or 0.5 s."),
    ("frame_time", "0 ms", "it is 0"),
    ("bandwidth", "fast", "Bandwidth, 'fast': it is not a bandwidth"),
    ("fixed_time", "long", "Fixed time, 'long': it is not a duration"),
    ("latency", "-1 ms", "it must be at least 0"),
    ("planner", "magic", "it is one of plan_frames, lpt, none, order"),
)
def test_bad_input_gets_a_sentence_and_keeps_the_last_forecast(
    field: str, text: str, sentence: str
) -> None:
    view = FrameBalance("8 / 1")
    before = view.forecast
    drive(view, field=field, text=text)
    assert sentence in view.problem
    assert view._picture["problem"] == {"field": field, "sentence": view.problem}
    assert view.problem.endswith(".")
    assert view.forecast is before
    drive(view, field="sample", sample=0, frames=3)
    assert view._picture["fields"][field] == text.strip(), "what was typed stays"
    drive(view, field=field, text=FrameBalance("8 / 1")._picture["fields"][field])
    assert view.problem == ""


def test_what_is_no_question_is_rejected_at_once() -> None:
    with pytest.raises(ValueError, match="'x' is not a number of frames"):
        FrameBalance("x")
    with pytest.raises(TypeError, match="no field 'gpus'"):
        FrameBalance("8 / 1", gpus=4)
    with pytest.raises(TypeError, match="give a text such as"):
        FrameBalance([1.5, "a"])
    with pytest.raises(ValueError, match="whole number of at least 1"):
        FrameBalance("8 / 1", patches=0)
    with pytest.raises(ValueError, match="The plan has no frames"):
        FrameBalance(mimokit.plan(digits_config((1, 2), (1, 2))))


def test_a_plan_opens_with_its_own_figures() -> None:
    plan = mimokit.plan(videos([8, 8, 4, 2, 1, 1, 1, 0]))
    (batch,) = plan.frames
    view = FrameBalance(plan)
    assert batch.forecast is not None
    assert view.forecast.before == pytest.approx(batch.forecast.before, rel=1e-3)
    assert view.forecast.traffic_bytes == pytest.approx(batch.forecast.traffic_bytes)
    assert [rank["label"] for rank in view._picture["ranks"]] == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match="no frames of 'videos'; it has those of images"):
        FrameBalance(plan, encoder="videos")


def test_what_stays_in_a_saved_notebook() -> None:
    view = FrameBalance("16 / 1 / 1")
    saved = view._in_html()
    assert "Frame parallel saves" in saved
    assert external_references(saved) == []


def test_empty_batches_and_many_samples() -> None:
    view = FrameBalance("", ranks=2)
    assert max(view.forecast.before) == 0
    view.ask(counts=[1] * 1000, ranks=128)
    assert len(view._picture["samples"]) == 256
    assert view._picture["more"] == 744


def test_the_planner_shows_the_frames_of_its_layout() -> None:
    driver = Driver(videos([8, 8, 4, 2, 1, 1, 1, 0]))
    driver.send("frames", field="counts", text="1")  # before the picture was opened
    driver.send("tab", name="frames")
    shown = driver.screen["frames"]
    assert shown["fields"]["counts"] == "8 8 / 4 2 / 1 1 / 1 0"
    assert len(driver.screen["numbers"]) == 4 * 4**2
    driver.send("frames", field="sample", sample=7, frames=5)
    assert driver.screen["frames"]["fields"]["counts"] == "8 8 / 4 2 / 1 1 / 1 5"
    # Another layout keeps the frames that were dragged, and deals them to its own ranks.
    driver.type("model.deployment_mode", "colocated")
    driver.type(IMAGES + "data_parallel", "2")
    driver.type(IMAGES + "tensor_parallel", "2")
    shown = driver.screen["frames"]
    assert [len(shown["ranks"]), shown["fields"]["ranks"]] == [2, "2"]
    assert shown["ranks"][1]["label"] == "2–3"
    assert [sample["frames"] for sample in shown["samples"]] == [8, 8, 4, 2, 1, 1, 1, 5]


def test_more_replicas_than_are_drawn_are_said() -> None:
    config = load_preset("llava_7b_colocated")
    config.data.modality_frames = {"images": [1]}
    driver = Driver(config)
    driver.send("hold", on=False)
    driver.type(LANGUAGE + "data_parallel", "128")
    driver.type(IMAGES + "data_parallel", "1024")
    driver.send("tab", name="frames")
    problem = driver.screen["frames"]["problem"]
    assert problem["sentence"] == "There are 1,024 ranks; the view draws 128."


def test_frames_stay_while_an_edit_is_rejected() -> None:
    driver = Driver(videos([1]))
    driver.send("tab", name="frames")
    shown = driver.screen["frames"]
    assert {sample["frames"] for sample in shown["samples"]} == {1}
    assert "not worth it" in shown["sentence"]
    driver.type(LANGUAGE + "tensor_parallel", "x")
    assert driver.screen["frames"] == shown
