"""Every refusal is one sentence that names the module, the field, the value and what is right."""

import copy
import json
from typing import Any

import pytest

import mimokit
from mimokit.config import ConfigError, Problem
from tests.config.refusals import (
    GROUPS,
    LANGUAGE,
    SENTENCES,
    changed,
    content_of,
    refusals,
    refused,
    rows_of,
)
from tests.config.sections import load, only, problems, put, sections
from tests.rows import each

FOUR = {"tensor_parallel": 4, "data_parallel": 1}


def check(name: str, row: dict[str, Any]) -> None:
    """Compare the only problem of a row with what the row says of it."""
    row = copy.deepcopy(row)
    content, world = content_of(row), row.get("world")
    found = refused(row)
    place = row.get("among", row.get("at", []))
    problem = only(tuple(one for one in found if "among" not in row or one.field == place[1]))
    assert [problem.module, problem.field, problem.value][: len(place)] == place
    assert says(problem, row.get("said", name))
    is_one_sentence(problem)
    if "fix" in row:
        assert problem.fix == dict(zip(("path", "value"), row["fix"], strict=True))
        mimokit.plan(load(put(content, *row["fix"]), world))
    if "mended" in row:
        mimokit.plan(load(changed(content, row["mended"]), world))


def says(problem: Problem, said: str | list[str]) -> bool:
    return all(words in problem.sentence for words in ([said] if isinstance(said, str) else said))


def is_one_sentence(problem: Problem) -> None:
    if isinstance(problem.value, int | str) and not isinstance(problem.value, bool):
        assert str(problem.value) in problem.sentence
    assert problem.module in problem.sentence.lower()
    assert problem.field in problem.sentence
    assert "\n" not in problem.sentence
    assert problem.sentence.endswith((".", "?"))


IN_WORDS = ("modules", "strategies")


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in IN_WORDS])
def test_is_refused_in_a_sentence(group: str, subtests: pytest.Subtests) -> None:
    each(subtests, {name: (name, row) for name, row in rows_of(group).items()}, check)


def check_words(row: dict[str, Any]) -> None:
    found = refused(row)
    assert any(says(problem, row["said"]) for problem in found), found
    assert all(problem.sentence.endswith((".", "?")) for problem in found)
    if "mended" in row:
        mimokit.plan(load(changed(content_of(row), row["mended"]), row.get("world")))


def test_modules_that_do_not_fit_are_refused_in_sentences(subtests: pytest.Subtests) -> None:
    for group in IN_WORDS:
        each(subtests, {name: (row,) for name, row in rows_of(group).items()}, check_words)


def test_every_sentence_and_fix_is_as_it_was() -> None:
    """A sentence changes on purpose only: write them anew with `python -m tests.frozen`."""
    assert refusals() == json.loads(SENTENCES.read_text())


def test_a_row_that_expects_something_else_fails() -> None:
    name, right = "begin it at rank 4", rows_of("layouts")["begin it at rank 4"]
    check(name, right)
    for wrong in (
        {"said": "begin it at rank 5"},
        {"at": ["images", "rank_offset", 3]},
        {"at": [LANGUAGE, "rank_offset", 4]},
        {"fix": ["model.module_parallelisms.images.data_parallel", 2]},
        {"mended": {"data.base_batch_size": 3}},
        {"language": {**FOUR, "rank_offset": 4}, "world": 8},
    ):
        with pytest.raises((AssertionError, ConfigError)):
            check(name, right | wrong)


def test_the_small_config_is_right() -> None:
    assert problems(sections()) == ()


def heterogeneous(language_offset: int) -> dict[str, Any]:
    return sections(dict(FOUR), {**FOUR, "rank_offset": language_offset}, "1f1b")


def test_a_gap_can_be_only_warned_of() -> None:
    content = put(heterogeneous(5), "model.allow_rank_gaps", True)
    with pytest.warns(UserWarning, match="rank 4 has no module"):
        load(content, 9)


def test_a_module_without_replicas_needs_a_world() -> None:
    content = sections({"tensor_parallel": 1}, {"tensor_parallel": 4})
    found = problems(content)
    assert [p.module for p in found] == ["images", LANGUAGE]
    assert all("--world-size" in p.sentence for p in found)
    assert problems(content, 8) == ()


def test_layers_are_cut_evenly() -> None:
    sizes = {"pipeline_parallel": 3, "data_parallel": 1}
    found = problems(sections(dict(sizes), {**sizes, "rank_offset": 3}, "1f1b"))
    assert [(p.module, p.field, p.value) for p in found] == [
        ("images", "num_layers", 4),
        (LANGUAGE, "num_layers", 4),
    ]


def test_a_special_token_within_the_vocabulary_of_a_tokenizer() -> None:
    content = put(sections(), "model.special_token_ids.images", 1023)
    put(content, "data.image_special_token_id", 1023)
    config = load(content)
    assert config.model.special_token_ids == {"images": 1023}
    assert config.data.vocab_size == 1024


def test_an_encoder_without_a_special_token() -> None:
    config = load(sections())
    config.model.special_token_ids = {}
    with pytest.raises(ConfigError, match="Module 'images': it has no entry in special_token_ids"):
        config.finalize()


def test_steps_beyond_the_last_are_no_problem_if_nothing_is_profiled() -> None:
    assert load(put(sections(), "runtime.num_iterations", 2)).runtime.profile_end_step == 8


def test_llm_rank_offset_is_the_language_modules() -> None:
    content = heterogeneous(4)
    del content["model"]["module_parallelisms"][LANGUAGE]["rank_offset"]
    config = load(put(content, "model.llm_rank_offset", 4))
    assert config.model.get_parallelism(LANGUAGE).rank_offset == 4


def test_all_problems_come_at_once() -> None:
    content = sections()
    put(content, "model.module_parallelisms.images.tensor_parallel", "1")
    put(content, f"model.module_architectures.{LANGUAGE}.num_attention_heads", 2)
    put(content, "data.image_special_token_id", 5)
    put(content, "data.workers", 5)
    put(content, "runtime.num_iterations", 0)
    found = {(p.module, p.field) for p in problems(content)}
    assert found == {
        ("images", "tensor_parallel"),
        (LANGUAGE, "num_attention_heads"),
        ("data", "image_special_token_id"),
        ("data", "workers"),
        ("runtime", "num_iterations"),
    }


def test_an_error_reads_one_sentence_a_line() -> None:
    content = put(put(sections(), "data.workers", 5), "runtime.num_iterations", 0)
    with pytest.raises(ConfigError) as caught:
        load(content)
    assert str(caught.value).splitlines() == [p.sentence for p in caught.value.problems]
    assert len(caught.value.problems) == 2


def test_names_of_modules_are_plain() -> None:
    content = sections()
    content["model"]["module_parallelisms"]["a.b"] = {"data_parallel": 4}
    with pytest.raises(ConfigError, match="letters, digits"):
        load(content)
