"""`WeightMap` without a browser: sizes that are chosen, and the chart that follows."""

from pathlib import Path

import pytest

from mimokit.charts import _renderer
from mimokit.config import ConfigError
from mimokit.planning.weights import plan_weights
from mimokit_widgets import WeightMap
from tests.sparse_weights import LLAMA_70B, small_checkpoint, sparse_checkpoint


def test_the_plan_and_its_chart_follow_the_sizes(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "llama", files=2), tensor_parallel=2)
    assert view.plan == plan_weights(tmp_path, 2, 1)
    view._fields["tensor_parallel"].value = 4
    view.ask(pipeline_parallel=2)
    assert view.plan == plan_weights(tmp_path, 4, 2)
    assert [field.value for field in view._fields.values()] == [4, 2]
    spec = view._bundle()[_renderer.MIME_TYPE]
    assert spec["title"]["text"] == "Weights of llama, TP 4, PP 2"


def test_sizes_without_a_plan_get_a_sentence_and_keep_the_last_plan(tmp_path: Path) -> None:
    view = WeightMap(small_checkpoint(tmp_path, "llama"), 2)
    before = view.plan
    view.ask(tensor_parallel=3)
    assert "tensor_parallel 3 does not divide the attention heads" in view.problem
    assert view.problem in view._words.value
    assert view._fields["tensor_parallel"].value == 3
    assert view.plan is before
    view.ask(tensor_parallel=64, pipeline_parallel=4)
    assert view.problem == "Layout: there are 256 ranks; the view draws 128."
    view.ask(tensor_parallel=1, pipeline_parallel=1)
    assert view.problem == view._words.value == ""
    with pytest.raises(TypeError, match="no field 'tp'; it has tensor_parallel, pipeline_parallel"):
        view.ask(tp=2)


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [("", 5, "does not divide"), ("", "two", "tensor_parallel is 'two'; it must be a whole number"),
     ("none", 1, "it does not exist")],
)  # fmt: skip
def test_what_cannot_be_planned_is_rejected(
    tmp_path: Path, name: str, size: int, sentence: str
) -> None:
    folder = small_checkpoint(tmp_path, "llama") / name
    with pytest.raises(ConfigError, match=sentence):
        WeightMap(folder, size)


def test_sizes_that_are_offered_are_bounded(tmp_path: Path) -> None:
    large = WeightMap(sparse_checkpoint(tmp_path, LLAMA_70B, files=15), 8, 4)
    assert [field.options[-1] for field in large._fields.values()] == [64, 32]
