"""Hugging Face configs that cannot be meant are refused in a sentence."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture import from_hf
from mimokit.config import ConfigError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
DIGITS = 10**5000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
        (f'{{"hidden_size": {"9" * 5000}}}', "is not JSON"),
        ("[]", "is not a mapping"),
        ("", "is not JSON"),
    ],
    ids=["brackets", "mappings", "digits", "list", "empty"],
)
def test_files_that_are_no_config(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        from_hf(file)


TOO_LARGE = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers"), 2**30)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"intermediate_size": 2**63}, "is 9223372036854775808; it must be at most"),
        ({"num_hidden_layers": 10**39}, "it must be at most 2,147,483,647"),
        ({"num_hidden_layers": DIGITS}, r"too large to show \(int\); it must be at most"),
        ({"num_hidden_layers": [DIGITS]}, "num_hidden_layers is too large to show"),
        ({"num_hidden_layers": -1}, "it must be a whole number of at least 1"),
        ({"num_hidden_layers": True}, "it must be a whole number of at least 1"),
        ({"model_type": []}, "it does not exist"),
        ({"model_type": {}}, "it does not exist"),
        ({"model_type": [DIGITS]}, "it does not exist"),
        ({"tie_word_embeddings": [DIGITS]}, "write true or false"),
        (TOO_LARGE, r"parameters, more than the 9.0e\+15"),
    ],
)
def test_values_that_no_model_has(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        from_hf({**LLAMA, **values})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(LLAMA)), VALUES)
def test_any_value_is_read_or_refused(field: str, value: Any) -> None:
    content = {**LLAMA, field: value}
    with contextlib.suppress(ConfigError):
        assert from_hf(content).parameters > 0


@settings(max_examples=100)
@given(VALUES)
def test_any_section_is_read_or_refused(value: Any) -> None:
    content = {"model_type": "llava", "vision_config": value, "text_config": LLAMA}
    with contextlib.suppress(ConfigError):
        assert from_hf(content).parameters > 0
