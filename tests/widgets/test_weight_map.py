"""`WeightMap` without a browser: sizes that are chosen, and the slices and bytes that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mimokit import charts
from mimokit.config import ConfigError
from mimokit.planning.weights import plan_weights, read_directory
from mimokit_widgets import WeightMap
from mimokit_widgets.notebooks.page import external_references
from tests.sparse_weights import LLAMA_70B, small_checkpoint, sparse_checkpoint


def drive(view: WeightMap, **message: Any) -> None:
    """Send what the browser sends."""
    view._on_message(view, message, None)


def bytes_of(view: WeightMap, owner: int, file: str) -> tuple[int, int]:
    """Return the bytes of a file in the strips of an owner: all, and those in part."""
    names = [one["name"] for one in view._picture["files"]]
    runs = np.frombuffer(view._numbers, dtype="<f4").reshape(-1, 5).astype(float)
    size = max(one.start + one.bytes for one in view._stored.tensors.values() if one.file == file)
    mine = runs[(runs[:, 0] == owner) & (runs[:, 1] == names.index(file))]
    lengths = (mine[:, 3] - mine[:, 2]) * size
    return round(lengths.sum()), round(lengths[mine[:, 4] == 1].sum())


def test_ranks_tensors_and_files_follow_the_sizes(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "llama", files=2), tensor_parallel=2)
    view._draw()
    assert [rank["lines"][0] for rank in view._picture["ranks"]] == ["heads 0–3", "heads 4–7"]
    drive(view, type="weights", sizes={"tensor_parallel": 4, "pipeline_parallel": 2})
    plan = plan_weights(tmp_path, 4, 2)
    assert view.plan == plan
    picture = view._picture
    assert [rank["stage"] for rank in picture["ranks"]] == [0] * 4 + [1] * 4
    assert picture["ranks"][3]["lines"][:3] == ["heads 6–7", "groups 3", "vocab 78–103"]
    assert "rows 78–103 of the vocabulary (3 of padding)" in picture["ranks"][3]["words"]
    assert "layers 2–3" in picture["ranks"][4]["words"]
    (head,) = (one for one in picture["tensors"] if one["name"] == "lm_head.weight")
    (cell,) = head["cells"]
    assert (cell["stage"], cell["ranks"]) == (1, [4, 5, 6, 7])
    assert [band["box"][1] for band in cell["bands"]] == pytest.approx([0, 26 / 101, 52 / 101,
                                                                       78 / 101])  # fmt: skip
    assert "rank 7 rows 78–100" in cell["words"]
    norms = next(one for one in picture["tensors"] if one["name"] == "model.norm.weight")
    assert [band["ranks"] for band in norms["cells"][0]["bands"]] == [[4, 5, 6, 7]]


def test_the_strips_of_a_rank_are_the_bytes_that_its_plan_touches(tmp_path: Path) -> None:
    """All of the rows whose columns are cut, which are needed in part."""
    view = WeightMap(small_checkpoint(tmp_path, "llama", files=2), 2, 2)
    view._draw()
    files = [one["name"] for one in view._picture["files"]]
    for number, rank in enumerate(view.plan.ranks):
        found = [bytes_of(view, number, file) for file in files]
        assert sum(all_ for all_, _ in found) == pytest.approx(rank.bytes_touched, abs=8)
        cut = 2 * (32 * 32 + 32 * 48) * 2  # output and down projection of two layers in bf16
        assert sum(part for _, part in found) == pytest.approx(cut, abs=8)
    tensors = read_directory(tmp_path).tensors
    owner = next(one for one in view._picture["tensors"] if one["name"] == "lm_head.weight")
    file = tensors["lm_head.weight"].file
    assert bytes_of(view, owner["cells"][0]["owner"], file)[0] == pytest.approx(
        tensors["lm_head.weight"].bytes, abs=8
    )


def test_sizes_without_a_plan_get_a_sentence_and_keep_the_last_plan(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "llama"), 2)
    view.selected = 1
    before = view.plan
    view.ask(tensor_parallel=3)
    assert "tensor_parallel 3 does not divide the attention heads" in view.problem
    assert view._picture["problem"] == view.problem
    assert view._picture["fields"][0]["value"] == 3
    assert 3 in view._picture["fields"][0]["offered"]
    assert view.plan is before
    view.ask(tensor_parallel=64, pipeline_parallel=4)
    assert view.problem == "Layout: there are 256 ranks; the view draws 128."
    view.ask(tensor_parallel=1, pipeline_parallel=1)
    assert view.problem == ""
    assert view.selected is None, "the rank is gone"
    with pytest.raises(TypeError, match="no field 'tp'; it has tensor_parallel, pipeline_parallel"):
        view.ask(tp=2)
    with pytest.raises(ConfigError, match="does not divide"):
        WeightMap(tmp_path, 5)
    with pytest.raises(ConfigError, match=r"tensor_parallel is 'two'; it must be a whole number"):
        WeightMap(tmp_path, "two")
    with pytest.raises(ConfigError, match="it does not exist"):
        WeightMap(tmp_path / "none")


def test_a_click_selects_a_rank_and_code_does(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "gpt2"), 4)
    drive(view, type="select", rank=2)
    assert view.selected == 2
    drive(view, type="select", rank=9)
    assert view.selected is None
    view.selected = 3
    drive(view, type="select", rank=None)
    assert view.selected is None


def test_a_tower_has_no_vocabulary_and_a_large_model_is_small(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path / "clip", "clip"), 2)
    view._draw()
    assert view._picture["ranks"][0]["lines"][2] == "no vocab"
    large = WeightMap(sparse_checkpoint(tmp_path / "70b", LLAMA_70B, files=15), 8, 4)
    large._draw()
    assert [field["offered"][-1] for field in large._picture["fields"]] == [64, 32]
    assert len(large._numbers) < 2**20
    assert len(str(large._picture)) < 2**18


def test_what_stays_in_a_saved_notebook(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "llama"), 2)
    saved = view._in_html()
    assert "Weights of llama, TP 2, PP 1, vocabulary 101 padded to 102" in saved
    assert external_references(saved) == []
    assert charts.weight_map(view.plan).to_dict()["description"].startswith("Weights of llama")
