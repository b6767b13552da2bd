"""A search over samples: that of `search` where all are alike, another where a tail decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mimokit.config import ConfigError
from mimokit.config_files import load_preset
from mimokit.layout_search import SearchResult, search
from mimokit.layout_search.over_samples import over_samples
from mimokit.prediction.over_samples import Policy
from mimokit.prediction.task import workload_of_config
from mimokit.workload import mix_of, named_mix

GPUS = 8
ALIKE = {"text": [4096 - 576] * 4, "images.items": [1] * 4}
TAIL = {"text": [200] * 20, "images.items": [0] * 12 + [1] * 7 + [6]}


@pytest.fixture(scope="module")
def config() -> Any:
    return load_preset("llava_7b_colocated")


def searched(config: Any, mix: Any, gpus: int = GPUS, finalists: int = 8) -> SearchResult:
    workload = replace(workload_of_config(config), mix=mix)
    return search(config, gpus=gpus, workload=workload, finalists=finalists)


def test_samples_that_are_alike_have_the_answer_of_the_search(config: Any) -> None:
    result = searched(config, mix_of(ALIKE))
    over = result.over_samples()
    assert [each.samples.layout for each in over.finalists] == [
        each.layout for each in result.finalists
    ]
    assert [each.seconds for each in over.finalists] == pytest.approx(
        [each.seconds for each in result.finalists]
    )
    assert all(each.chosen.policy == Policy() for each in over.finalists)
    assert [each.samples.layout for each in over.ties] == [each.layout for each in result.ties]
    said = over.why_not(result.finalists[-1].layout)
    assert said.endswith("No samples are larger than the others.")


def test_padded_texts_ask_for_packing_and_the_sentence_says_so(config: Any) -> None:
    result = searched(config, mix_of(TAIL))
    over = result.over_samples()
    assert over.best.chosen.policy.packing != "padded"
    assert over.best.seconds < 0.6 * result.best.seconds
    section = over.section()
    assert section.rows[0][1] == str(over.best.chosen.policy)
    assert over.to_json()["ties"] == len(over.ties)


def test_why_not_says_which_samples_make_the_difference(config: Any) -> None:
    over = searched(config, mix_of(TAIL)).over_samples()
    said = over.why_not(over.finalists[-1].samples.layout)
    assert "samples alike, it is" in said
    assert (
        "Without the largest 5% of the samples (more than 776 tokens or 1 items of images)" in said
    )
    assert "of the difference." in said


def test_what_does_not_fit_with_its_largest_samples_is_not_chosen(config: Any) -> None:
    result = searched(config, mix_of(TAIL))
    first = result.over_samples()
    chosen = first.best.chosen
    assert chosen.memory <= result.task.memory_limit
    assert all(each.fits for each in first.finalists[: len(first.ties) + 1])
    share = 0.99 * chosen.memory / result.task.hardware.memory_bytes
    tight = replace(result.task, constraints=replace(result.task.constraints, memory_share=share))
    second = over_samples(tight, result.finalists)
    assert (second.best.samples.layout, second.best.chosen.policy) != (
        first.best.samples.layout,
        chosen.policy,
    )
    fits = [each.fits for each in second.finalists]
    assert fits == sorted(fits, reverse=True)
    if not all(fits):
        assert "the largest samples do not fit." in second.section().sentences[1]


def test_a_search_without_a_mix_is_refused(config: Any) -> None:
    result = search(config, gpus=GPUS, finalists=4)
    with pytest.raises(ConfigError, match="nothing says what samples are made of"):
        result.over_samples()


def test_a_published_mix_finds_a_layout_on_64_gpus(config: Any) -> None:
    longer = replace(workload_of_config(config), seq_length=40_000, mix=named_mix("image_captions"))
    over = search(config, gpus=64, workload=longer, finalists=6).over_samples()
    assert over.best.samples.layout.gpus <= 64
