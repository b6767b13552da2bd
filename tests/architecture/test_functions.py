"""Activation, epsilon, rotary positions and windows of Hugging Face configs, old and new."""

from typing import Any

import pytest

from mimokit.architecture import LanguageModel, from_hf, longest_sequence, obstacles
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import computed_fields
from mimokit.architecture.huggingface.language import language_fields
from mimokit.config import RopeScaling
from mimokit.config.errors import ConfigError
from tests.networks import network
from tests.rows import rows

LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


SIZES = {
    "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 4, "vocab_size": 9,
    "intermediate_size": 16,
}  # fmt: skip


def test_rotary_positions_are_found_in_old_and_new_places() -> None:
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    older = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}
    new = {**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}}
    scaling = RopeScaling(rope_type="llama3", **LLAMA3)
    for config in (old, older, new):
        computed = computed_fields(Fields(config), "llama")
        assert computed["activation_func"] == "silu"
        assert computed["layernorm_epsilon"] == 1e-5
        assert computed["rotary_base"] == 5e5
        assert computed["rope_scaling"] == scaling
        assert longest_sequence(config) == 131072


@pytest.mark.parametrize(
    ("config", "obstacle"),
    [
        ({"rope_scaling": {"type": "longrope"}}, "its rotary scaling is 'longrope'; linear"),
        (
            {"rope_scaling": {"type": "yarn", "attention_factor": 2, "truncate": False}},
            "it sets attention_factor and truncate: false",
        ),
        ({"partial_rotary_factor": 0.5}, "it sets partial_rotary_factor"),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "it sets scale_attn_weights: false"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_named(config: dict[str, Any], obstacle: str) -> None:
    ((_, found),) = obstacles({**LLAMA, **config})
    assert obstacle in found


@rows(
    "config",
    {"hidden_act": "gelu_new"},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
)
def test_what_can_run_has_no_obstacle(config: dict[str, Any]) -> None:
    assert not list(obstacles({**LLAMA, **config}))


@rows(
    "config, sentence",
    ({"hidden_act": "relu2"}, "its activation is 'relu2'; silu, gelu,"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; it must be a number above 0"),
)
def test_what_cannot_be_read_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_hf({**LLAMA, **SIZES, **config})


SLIDING = {"use_sliding_window": True, "sliding_window": 64}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


@rows(
    "config, window, windowed",
    ({"model_type": "mistral", "sliding_window": 4096}, 4096, {1, 2, 3, 4}),
    ({"model_type": "mistral", "sliding_window": None}, 0, set()),
    ({"model_type": "qwen2", **SLIDING, "use_sliding_window": False}, 0, set()),
    ({"model_type": "qwen2", **SLIDING}, 0, set()),
    ({"model_type": "qwen2", **SLIDING, "max_window_layers": 3}, 64, {4}),
    ({"model_type": "qwen3", **SLIDING, "layer_types": MIXED}, 64, {1, 3}),
)
def test_windows_are_those_of_its_layers(
    config: dict[str, Any], window: int, windowed: set[int]
) -> None:
    model = from_hf({**SIZES, **config})
    assert isinstance(model, LanguageModel)
    assert {n: reach for n, reach in enumerate(model.network.reaches, 1) if reach} == dict.fromkeys(
        windowed, window
    )


@rows(
    "family, field, sentence",
    (
        "qwen2", {"layer_types": ["linear_attention"]},
        "write a list of full_attention and sliding_attention",
    ),
    ("mimo", {}, "use_sliding_window is True; only full attention is"),
)  # fmt: skip
def test_windows_that_no_layer_can_have(family: str, field: dict[str, Any], sentence: str) -> None:
    fields = Fields({"model_type": family, **SLIDING, **field})
    language_fields(fields, family)
    with pytest.raises(ConfigError, match=sentence):
        fields.check()


def test_a_number_of_layers_without_a_window_is_spread() -> None:
    """Qwen2.5-VL's 4 of 32 and Gemma 2's every other layer; the last of a part has none."""
    for layers, without, windowed in (
        (32, 4, {*range(1, 33)} - {8, 16, 24, 32}),
        (4, 2, {1, 3}),
        (4, [1], {2, 3, 4}),
        (2, None, {1, 2}),
    ):
        windows = {"window": 64, "full_attention_layers": without}
        known = network(layers, 8, 2, 2, 4, 16, **windows)
        assert {n for n, reach in enumerate(known.reaches, 1) if reach} == windowed
        assert known.full_layers == layers - len(windowed)
