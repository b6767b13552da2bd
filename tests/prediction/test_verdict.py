"""The numbers that layouts are compared by, and their changes in words."""

from dataclasses import replace

import pytest

import mimokit
from mimokit.prediction.verdict import Verdict, verdict_lines
from tests.rows import rows


def verdict(preset: str) -> Verdict:
    return mimokit.predict(f"preset:{preset}", gpu="h100").verdict


@rows(
    "preset, held",
    ("llava_7b_colocated", ["images", "language_module"]),
    ("llava_7b_heterogeneous", ["language_module"]),
)
def test_the_fullest_gpu_is_one_bar(preset: str, held: list[str]) -> None:
    prediction = mimokit.predict(f"preset:{preset}", gpu="h100")
    found = prediction.verdict
    assert [*found.memory] == held
    assert found.peak == pytest.approx(prediction.peak_memory)
    assert found.fits == prediction.fits
    assert found.tokens_per_gpu * prediction.layout.gpus == prediction.tokens_per_second


def test_changes_say_before_after_and_share_and_only_tokens_and_fit_are_judged() -> None:
    before = replace(verdict("llava_7b_colocated"), seconds=2.36, tokens_per_gpu=1000, idle=0.1)
    now = replace(before, seconds=2.25, tokens_per_gpu=900, idle=0.1, capacity=2**30)
    lines = {line.key: line for line in verdict_lines(now, before)}
    assert (lines["seconds"].change, lines["seconds"].better) == ("2.36 → 2.25 s (−5 %)", None)
    assert (lines["tokens"].change, lines["tokens"].better) == ("1,000 → 900 (−10 %)", False)
    assert (lines["idle"].change, lines["idle"].better) == ("", None)
    assert lines["memory"].note == "of 1 GiB: does not fit"
    more = replace(before, memory={name: 1.2 * held for name, held in before.memory.items()})
    assert {line.key: line.better for line in verdict_lines(more, before)}["memory"] is None
    small = replace(more, capacity=1.1 * before.peak)
    assert {line.key: line.better for line in verdict_lines(small, before)}["memory"] is False
    assert {line.key: line.better for line in verdict_lines(before, small)}["memory"] is True
    assert "dollars" not in lines
    priced = verdict_lines(replace(now, dollars=1234.0))
    assert priced[-1].value == "$1,234"
