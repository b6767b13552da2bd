"""The samples of a planner: histograms to drag, steps that follow, lanes of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mimokit_widgets.planner.draft import Draft, content_of
from mimokit_widgets.planner.samples import FOLLOWS, judged
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session
from tests.rows import rows

PRESET = "preset:llava_7b_colocated"


def opened(tmp_path: Path, counts: str) -> Session:
    file = tmp_path / "counts.csv"
    file.write_text(counts)
    content = content_of(PRESET)
    content["data"]["workload"] = str(file)
    session = Session(Draft(content))
    session.handle({"type": "tab", "name": "samples"})
    return session


def picture(session: Session, **message: Any) -> dict[str, Any]:
    if message:
        session.handle({"type": "samples", **message})
    return screen_of(session)["samples"]  # type: ignore[no-any-return]


TAIL = "text,images.items\n" + "20,0\n" * 20 + "400,1\n" * 19 + "20,7\n"


def test_the_tab_shows_the_samples_of_the_config(tmp_path: Path) -> None:
    shown = picture(opened(tmp_path, TAIL))
    assert shown["problem"] == ""
    assert [column["name"] for column in shown["columns"]] == ["text", "images.items"]
    assert sum(bar["share"] for bar in shown["columns"][0]["bars"]) == pytest.approx(1)
    assert [row[0] for row in shown["rows"]] == [
        "as drawn", "balanced order", "balanced frames", "packed", "without text-only samples"
    ]  # fmt: skip
    assert shown["source"] in shown["sources"]


def test_a_tail_that_is_dragged_and_a_modality_that_is_dropped_change_the_steps(
    tmp_path: Path,
) -> None:
    session = opened(tmp_path, TAIL)
    before = picture(session)
    cut = picture(session, column="images.items", most=1)
    assert cut["columns"][1]["most"] == 1
    assert cut["columns"][1]["largest"] == 7
    assert cut["rows"][3] != before["rows"][3]
    none = picture(session, modality="images", on=False)
    assert none["modalities"] == [{"name": "images", "on": False}]
    assert none["rows"][0] != cut["rows"][0]
    back = picture(session, modality="images", on=True)
    assert back["rows"] == cut["rows"]


def test_a_bar_shows_who_waits_in_a_batch_with_such_samples(tmp_path: Path) -> None:
    shown = picture(opened(tmp_path, TAIL), column="images.items", bar=7)
    timeline = shown["timeline"]
    lanes = [(lane["group"], lane["name"]) for lane in timeline["lanes"]]
    assert lanes == [
        (group, f"replica {number}")
        for group in ("as drawn", "balanced frames")
        for number in range(8)
    ]
    assert [key["name"] for key in timeline["keys"]] == [
        "images forward",
        "language_module forward",
        "images backward",
        "language_module backward",
        "update",
    ]
    encoded = [
        sum(stop - start for at, key, start, stop, _ in timeline["spans"] if (at, key) == (lane, 0))
        for lane in range(8)
    ]
    assert max(encoded) > 1.5 * min(encoded)
    assert "with balanced frames" in shown["batch"]


@rows("preset, source", (PRESET, "image_captions"), ("preset:digits_audio", "image_captions"))
def test_without_samples_there_are_those_of_a_mix_that_fits(preset: str, source: str) -> None:
    """Of LLaVA's 4,096 tokens pages and videos have more; no mix has scans and speech."""
    session = Session(Draft(content_of(preset)))
    session.handle({"type": "tab", "name": "samples"})
    shown = picture(session)
    assert shown["source"] == source
    assert bool(shown["problem"]) == (preset != PRESET)


def test_samples_that_do_not_fit_are_said_and_dragging_mends_it(tmp_path: Path) -> None:
    session = opened(tmp_path, TAIL)
    long = picture(session, source="interleaved_pages")
    assert "samples have more than the 4,096 tokens of the sequence" in long["problem"]
    assert long["columns"]
    short = picture(session, column="vision.items", most=3)
    assert picture(session, column="text", most=1000)["problem"] == "" != short["problem"]
    assert "neither a .parquet" in picture(session, source="nothing")["problem"]


def test_the_best_layout_follows_the_samples(tmp_path: Path) -> None:
    session = opened(tmp_path, TAIL)
    assert not picture(session, search=True)["problem"]
    session.samples_search.wait(60)
    shown = picture(session)
    assert "for these samples is" in shown["found"]
    assert (shown["loads"], shown["searching"]) == (True, False)
    state = session.samples_search.state
    assert state.result is not None
    mean = state.result.task.workload.inputs["images"].count
    assert mean == pytest.approx((19 + 7) / 40)
    held = picture(session, column="images.items", most=2, dragging=True)
    assert held["found"] == FOLLOWS
    cut = picture(session, modality="images", on=False)
    assert cut["found"] not in (FOLLOWS, shown["found"])
    best = judged(state.result, session.look_at_samples().mix()).best.samples.layout
    picture(session, take=True)
    assert session.valid is not None
    assert session.valid.config.model.deployment_mode == best.mode
    assert session.loaded_layout == best
    assert session.valid.config.data.workload is not None
