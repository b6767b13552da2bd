"""The same experiment in another layout."""

import pytest

from mimokit.config import ConfigError, ModuleParallelismConfig
from tests.config.sections import load, sections
from tests.rows import rows

LANGUAGE = "language_module"
HOMOGENEOUS = sections(
    {"tensor_parallel": 2, "data_parallel": 4},
    {"tensor_parallel": 2, "data_parallel": 4},
    "homogeneous",
)


def test_on_shared_ranks_replicas_follow_from_the_ranks() -> None:
    config = load(HOMOGENEOUS)
    other = config.with_layout("colocated", images={"tensor_parallel": 1})
    assert other.model.deployment_mode == "colocated"
    assert other.runtime.pipeline_schedule == "colocated"
    assert other.model.get_parallelism("images").data_parallel == 8
    assert other.model.get_parallelism(LANGUAGE) == config.model.get_parallelism(LANGUAGE)
    assert other.data == config.data
    assert config == load(HOMOGENEOUS), "the config itself stays as it is"


def test_separate_ranks_lie_one_after_another() -> None:
    config = load(HOMOGENEOUS)
    other = config.with_layout("heterogeneous", images={"data_parallel": 2}, language_module={})
    language = other.model.get_parallelism(LANGUAGE)
    assert (language.rank_offset, language.data_parallel) == (4, 2)  # 4 of 8 ranks are left
    back = other.with_layout("homogeneous", images={})
    assert back.model == config.model


def test_sizes_as_a_record() -> None:
    sizes = ModuleParallelismConfig(tensor_parallel=4, data_parallel=2)
    other = load(HOMOGENEOUS).with_layout("colocated", language_module=sizes)
    assert other.model.get_parallelism(LANGUAGE) == sizes


@rows(
    "mode, modules, words",
    ("colocatd", {}, "choose one of homogeneous, colocated, heterogeneous"),
    ("colocated", {"image": {}}, "the modules are images, language_module"),
    ("colocated", {"images": {"tensor": 1}}, "unknown key tensor"),
    ("heterogeneous", {"images": {}, LANGUAGE: {}}, "give it for all of them but one"),
)
def test_what_cannot_work_is_one_sentence(mode: str, modules: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        load(HOMOGENEOUS).with_layout(mode, **modules)
    assert len(refused.value.problems) == 1
