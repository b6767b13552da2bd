"""The samples of a planner: histograms to drag, steps that follow, lanes of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mimokit_widgets.planner.draft import Draft, content_of
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session

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
    drawn = [lane for lane in shown["lanes"] if lane["policy"] == "as drawn"]
    shared = [lane for lane in shown["lanes"] if lane["policy"] == "balanced frames"]
    images = [lane for lane in drawn if lane["label"].startswith("images")]
    assert len(images) == 8
    assert len(drawn) == len(shared) == 9
    assert max(sum(lane["parts"]) for lane in images) == pytest.approx(1)
    spread = [
        max(sums) - min(sums)
        for sums in (
            [sum(lane["parts"]) for lane in lanes if lane["label"].startswith("images")]
            for lanes in (drawn, shared)
        )
    ]
    assert spread[1] < spread[0]
    assert "with balanced frames" in shown["batch"]


def test_samples_that_do_not_fit_are_said_and_dragging_mends_it(tmp_path: Path) -> None:
    session = opened(tmp_path, TAIL)
    long = picture(session, source="interleaved_pages")
    assert "samples have more than the 4,096 tokens of the sequence" in long["problem"]
    assert long["columns"]
    short = picture(session, column="vision.items", most=3)
    assert picture(session, column="text", most=1000)["problem"] == "" != short["problem"]
    assert "neither a .parquet" in picture(session, source="nothing")["problem"]


def test_a_search_says_which_of_its_layouts_is_best_for_the_samples(tmp_path: Path) -> None:
    session = opened(tmp_path, TAIL)
    session.handle({"type": "search", "gpus": "8"})
    session.search.wait(60)
    assert "that the search put first the best is" in picture(session)["found"]
