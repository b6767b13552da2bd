"""A sharded language model computes what Hugging Face's model computes, with a cache and without.

Ranks are threads; `test_sharded_model.py` runs on engines.
"""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mimokit.config.errors import ConfigError
from mimokit.extras.generation.network.exchange import counting_traffic, rank_of
from mimokit.extras.generation.network.generate import Continuation, GenerationRequest, generate
from mimokit.extras.generation.network.language import PaddedTokens
from mimokit.extras.generation.network.loading import load_language
from tests.extras.generation.threads import on_threads
from tests.hugging_face_weights import checkpoint
from tests.qwen_vl import KINDS, model_of, qwen_checkpoint
from tests.rows import rows

ROWS = [[1, 2, 3, 100, 5, 6, 7], [9, 50, 100]]
NAMES = ("llama", "llama_with_biases", "mistral", "qwen2", "qwen3", "phi3", "gpt2")

EXACT = 1e-12
"""Difference in fp64. In fp32 rounding alone is up to 2e-5 of the largest logit of these models."""
ROUNDED = 10
"""In fp32, how many times as far from fp64 as Hugging Face's own fp32; measured: up to 2."""


def of_hugging_face(directory: Path, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Return the logits of every row alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().to(dtype)
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0] for row in ROWS]


wanted_of = functools.cache(lambda name: of_hugging_face(checkpoint(name)))


def logits_on(
    directory: Path, group: Any, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits without a cache, and with one: a prompt of 4, then token by token."""
    model = load_language(directory, group, dtype=str(dtype).removeprefix("torch."))
    batch = PaddedTokens.of(ROWS)
    whole = model.whole_logits(model(batch))
    cache = model.new_cache(2, 8)
    parts = [batch.ids[:, :4], *batch.ids[:, 4:].split(1, dim=1)]
    cached = [model.whole_logits(model(PaddedTokens(ids, batch.padding), cache)) for ids in parts]
    return whole, torch.cat(cached, dim=1)


def difference(found: torch.Tensor, wanted: list[torch.Tensor]) -> float:
    """Return the largest difference of real tokens, relative to the largest logit."""
    return max(
        float((found[row, -len(one) :] - one).abs().max() / one.abs().max())
        for row, one in enumerate(wanted)
    )


@rows("name, ranks", *((name, ranks) for name in NAMES for ranks in (1, 4)), ("qwen2", 8))
def test_logits_are_those_of_hugging_face(name: str, ranks: int) -> None:
    """Prompts of different lengths; Qwen2, Qwen3 and Llama with biases have 2 groups."""
    for whole, cached in on_threads(ranks, lambda group: logits_on(checkpoint(name), group)):
        assert difference(whole, wanted_of(name)) < EXACT
        assert difference(cached, wanted_of(name)) < EXACT


@rows("name", *NAMES)
def test_rounding_in_fp32_is_like_that_of_hugging_face(name: str) -> None:
    rounded = torch.stack(
        [
            torch.nn.functional.pad(one, (0, 0, 7 - len(one), 0))
            for one in of_hugging_face(checkpoint(name), torch.float32)
        ]
    )
    most = ROUNDED * difference(rounded, wanted_of(name))
    for found in logits_on(checkpoint(name), None, torch.float32):
        assert difference(found, wanted_of(name)) < most < 2e-4


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 4.0, "mscale": 0.7,
    "mscale_all_dim": 0.2, "original_max_position_embeddings": 16,
}  # fmt: skip


@rows("rope", LLAMA3, YARN, {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0})
def test_rotary_scaling_is_that_of_hugging_face(rope: dict[str, Any], tmp_path: Path) -> None:
    for file in checkpoint("mistral").iterdir():  # 8 dimensions a head: all bands of llama3
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    plain, _ = logits_on(tmp_path, None)
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    whole, cached = logits_on(tmp_path, None)
    wanted = of_hugging_face(tmp_path)
    assert difference(whole, wanted) < EXACT
    assert difference(cached, wanted) < EXACT
    assert difference(plain, wanted) > 1e-2


def test_collectives_of_a_forward_pass_are_two_a_layer_and_one_for_the_embedding() -> None:
    def count(group: Any) -> tuple[int, int]:
        model = load_language(checkpoint("llama"), group)
        with counting_traffic() as traffic:
            model(PaddedTokens.of([[1, 2, 3]]))
        return traffic.calls, traffic.bytes

    assert on_threads(2, count) == [(9, 9 * 3 * 32 * 4)] * 2


def test_sampling_adds_one_collective_per_token_and_one_in_all() -> None:
    """One carries the highest scores and the wish to stop, the last one all log-probabilities."""

    def count(group: Any) -> tuple[int, Continuation]:
        model = load_language(checkpoint("llama"), group)
        steps, is_second = itertools.count(1), rank_of(group) == 1
        request = GenerationRequest(((1, 2, 3), (4, 5)), (0, 1), 5)
        with counting_traffic() as traffic:
            made = generate(model, request, stopping=lambda: next(steps) == 3 and is_second)
        return traffic.calls, made

    (calls, made), (_, other) = on_threads(2, count)
    assert calls == 3 * (9 + 1) + 1
    _, alone = count(None)
    assert made == other
    assert made.steps == 3
    assert made.tokens == [row[:3] for row in alone.tokens]
    for row, wanted in zip(made.log_probs, alone.log_probs, strict=True):
        assert row == pytest.approx(wanted[:3], abs=1e-4)


@rows("kind", *KINDS)
def test_the_language_model_of_a_qwen_vl_reads_words(kind: str) -> None:
    rows = [[1, 2, 3, 19, 5, 6, 7]]

    def logits(group: Any) -> torch.Tensor:
        model = load_language(qwen_checkpoint(kind), group)
        return model.whole_logits(model(PaddedTokens.of(rows)))

    with torch.no_grad():
        wanted = model_of(kind)(torch.tensor(rows)).logits
    for found in on_threads(2, logits):
        assert difference(found, [wanted[0]]) < 1e-5


def test_a_tower_makes_no_logits() -> None:
    with pytest.raises(ConfigError, match="'clip_vision_model', which makes no tokens"):
        load_language(checkpoint("clip_tower"), None)
