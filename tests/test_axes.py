"""Every spelling of a parallel axis is written once."""

from __future__ import annotations

from dataclasses import fields

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.axes import CONFIG_FIELDS, RANK_AXES, SIZE_FIELDS, SPELLINGS, Axis, Choice
from mimokit.config import ModuleParallelismConfig


def test_every_axis_and_choice_has_one_row() -> None:
    assert set(SPELLINGS) == {*Axis, *Choice}
    for column in ("label", "size", "layout", "argument"):
        words = [word for row in SPELLINGS.values() if (word := getattr(row, column))]
        assert len(words) == len(set(words)), column


def test_the_table_names_all_fields_of_sizes_and_fields_that_configs_have() -> None:
    assert set(SIZE_FIELDS.values()) == {field.name for field in fields(ParallelSizes)}
    names = list(ModuleParallelismConfig.model_fields)
    assert set(CONFIG_FIELDS.values()) <= set(names)
    assert [CONFIG_FIELDS[axis] for axis in RANK_AXES] == names[: len(RANK_AXES)]
    left = set(names) - set(CONFIG_FIELDS.values())
    assert left == {
        "rank_offset",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    }
