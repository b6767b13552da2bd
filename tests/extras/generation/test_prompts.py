"""Prompts that cannot be run, and what files state about the end of a text."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mimokit.config.errors import ConfigError
from mimokit.extras.generation.prompts import PromptRules, stop_tokens
from mimokit.planning.weights import WeightDirectory
from tests.rows import rows

RULES = PromptRules(vocab=101, positions=24, stop=(7,))


@rows(
    "token_ids, sentence",
    ([], "no prompt is given"),
    ([[1], []], "prompt 1 is empty"),
    ([[1], [3, 101]], "prompt 1 has the id 101; ids are 0 to 100"),
    ([-1], "prompt 0 has the id -1; ids are 0 to 100"),
    ([[1.5]], "prompt 0 has 1.5; a token id is a whole number"),
    ([[True]], "prompt 0 has True"),
    ([[1], 2], "prompt 1 is 2; give a row"),
    ("one two", "the prompts are 'one two'"),
    (5, "the prompts are 5"),
    ([[1] * 25], "prompt 0 has 25 tokens, but the model has 24 positions; shorten it"),
    ([[1] * 20], "has 20 tokens and 8 shall follow, but .* 24 positions; at most 4 can follow"),
)
def test_prompts_that_cannot_be_run_are_rejected(token_ids: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        RULES.rows(token_ids, 8)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_may_be_lists_or_arrays() -> None:
    assert RULES.rows([1, 2], 8) == ((1, 2),)
    assert RULES.rows(np.array([[1, 2], [3, 4]])) == ((1, 2), (3, 4))
    assert RULES.rows([np.array([1, 2]), (3,)]) == ((1, 2), (3,))


@rows(
    "config, generation, wanted",
    ({}, None, ()),
    ({"eos_token_id": 2}, None, (2,)),
    ({"eos_token_id": 2}, {"eos_token_id": [5, 6]}, (5, 6)),
    ({"eos_token_id": 2}, {"do_sample": True}, (2,)),
    ({"model_type": "llava", "text_config": {"eos_token_id": 3}}, None, (3,)),
    ({"eos_token_id": None}, {}, ()),
)
def test_stop_tokens_are_those_that_the_files_state(
    tmp_path: Path, config: dict[str, Any], generation: Any, wanted: tuple[int, ...]
) -> None:
    file = tmp_path / "generation_config.json"
    file.unlink(missing_ok=True)
    if generation is not None:
        file.write_text(json.dumps(generation))
    assert stop_tokens(WeightDirectory(tmp_path, config, {})) == wanted


def test_stop_tokens_that_are_none_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its eos_token_id is 'end'; write a token id"):
        stop_tokens(WeightDirectory(tmp_path, {"eos_token_id": "end"}, {}))


@rows(
    "how, options, sentence",
    ({"temperature": "hot"}, {}, "temperature is 'hot'; it must be a number of at least 0"),
    ({"top_k": 2.5}, {}, "top_k is 2.5; it must be a whole number of at least 1"),
    ({"top_p": math.nan}, {}, "top_p is nan; it must be above 0 and at most 1"),
    ({"min_p": True}, {}, "min_p is True; it must be from 0 to 1"),
    ({}, {"seed": "x"}, "seed is 'x'; it must be a whole number"),
    ({}, {"stop_tokens": [101]}, "stop_tokens has 101; ids are 0 to 100"),
    ({}, {"stop_tokens": ["end"]}, "stop_tokens has 'end'; ids are 0 to 100"),
)
def test_requests_that_mean_nothing_are_rejected(
    how: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RULES.request([[1, 2]], 4, how, **options)


def test_a_request_ends_with_the_tokens_of_the_files_unless_it_says_others() -> None:
    assert RULES.request([1, 2], 4, {}).stop == (7,)
    assert RULES.request([1, 2], 4, {}, stop_tokens=[]).stop == ()
    assert RULES.request([1, 2], 4, {}, stop_tokens=9).stop == (9,)
