"""Sampling keeps the sets of Hugging Face's warpers and draws what the softmax says."""

from typing import Any

import pytest
import torch

from mimokit.config.errors import ConfigError
from mimokit.extras.generation import sample
from mimokit.extras.generation.network.sampling import Sampling, warped
from tests.rows import rows

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 50},
    {"temperature": 1.0, "top_k": 5000},
    *({"temperature": 0.8, "top_p": p} for p in (0.01, 0.5, 0.9, 0.999, 1.0)),
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.3},
]


def logits(rows: int = 48, vocab: int = 1_003) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3


def of_hugging_face(scores: torch.Tensor, ids: torch.Tensor, **how: Any) -> torch.Tensor:
    """Return what `generate` would draw from."""
    from transformers.generation import logits_process as warpers

    if "repetition_penalty" in how:
        penalty = warpers.RepetitionPenaltyLogitsProcessor(how["repetition_penalty"])
        scores = penalty(ids, scores)
    scores = warpers.TemperatureLogitsWarper(how["temperature"])(ids, scores)
    if "top_k" in how:
        scores = warpers.TopKLogitsWarper(how["top_k"])(ids, scores)
    if "top_p" in how:
        scores = warpers.TopPLogitsWarper(how["top_p"])(ids, scores)
    if "min_p" in how:
        scores = warpers.MinPLogitsWarper(how["min_p"])(ids, scores)
    return scores


@rows("how", *SETTINGS)
def test_the_scores_are_those_of_hugging_faces_warpers(how: dict[str, Any]) -> None:
    scores = logits()
    ids = torch.randint(0, 1_003, (48, 20), generator=torch.Generator().manual_seed(2))
    found, _ = warped(scores, None, Sampling(**how), ids)
    wanted = of_hugging_face(scores.clone(), ids, **how)
    assert torch.equal(found.isinf(), wanted.isinf())
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_ties_at_the_threshold_of_top_k_stay_and_greedy_takes_the_first() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0]])
    kept, _ = warped(scores, None, Sampling(temperature=1.0, top_k=3))
    assert kept.isinf().tolist() == [[True, False, False, False, False]]
    assert sample(scores, None).tolist() == [1]
    assert sample(scores, None, temperature=0).tolist() == [1]


def test_draws_fit_the_softmax() -> None:
    import scipy.stats

    row, draws = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -torch.inf]), 20_000
    drawn = sample(row.expand(draws, -1), None, temperature=0.8, seed=5)
    counts = drawn.bincount(minlength=6)
    assert counts[5] == 0
    wanted = torch.softmax(row[:5].double() / 0.8, dim=0) * draws
    assert scipy.stats.chisquare(counts[:5].numpy(), wanted.numpy()).pvalue > 1e-3
    biased = torch.softmax(row[:5].double(), dim=0) * draws  # another temperature is seen
    assert scipy.stats.chisquare(counts[:5].numpy(), biased.numpy()).pvalue < 1e-9


def test_a_draw_depends_on_seed_step_and_row_alone() -> None:
    scores = logits()
    whole = sample(scores, None, temperature=1.0, seed=7, step=3)
    for part in ([5], [40, 2, 11]):
        alone = sample(scores[part], None, temperature=1.0, seed=7, step=3, rows=part)
        assert torch.equal(alone, whole[part])
    for other in ({"seed": 8, "step": 3}, {"seed": 7, "step": 4}):
        assert not torch.equal(sample(scores, None, temperature=1.0, **other), whole)


def test_padding_is_never_drawn() -> None:
    scores = torch.zeros(200, 12)
    scores[:, 10:] = 50.0
    drawn = sample(scores, None, temperature=1.0, vocab_size=10)
    assert set(drawn.tolist()) == set(range(10))
    assert sample(scores, None, vocab_size=10).tolist() == [0] * 200


@rows(
    "arguments, sentence",
    ({"temperature": -0.1}, "temperature is -0.1; it must be a number of at least 0"),
    ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
    ({"top_p": 1.1}, "top_p is 1.1"),
    ({"top_k": 0}, "top_k is 0"),
    ({"min_p": 2.0}, "min_p is 2.0"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ({"top_k": 5}, "top_k is 5, but without a temperature .* or leave top_k out"),
    ({"temperature": 0.0, "min_p": 0.1}, "min_p is 0.1, but without a temperature"),
    ({"vocab_size": 1_004}, "vocab_size is 1004, and there are 1,003 columns in each of 1 shard"),
    ({"temperature": 1.0, "rows": [1]}, "rows names 1 row, and there are 48"),
    (
        {"repetition_penalty": 2.0, "token_ids": torch.full((48, 1), 1_003)},
        "token_ids has the id 1003, and the vocabulary ends at 1002",
    ),
)
def test_arguments_out_of_range_are_rejected(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sample(logits(), None, **arguments)


def test_logits_that_are_no_numbers_are_rejected() -> None:
    scores = logits()
    scores[3, 5] = torch.nan
    with pytest.raises(FloatingPointError, match="rank 0 are not finite in row 3"):
        sample(scores, None)
    with pytest.raises(FloatingPointError, match="No logit of row 0 is finite"):
        sample(torch.full((1, 4), -torch.inf), None, temperature=1.0)
