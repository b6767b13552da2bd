"""Activation, epsilon, rotary positions and windows of Hugging Face configs, old and new."""

from __future__ import annotations

from typing import Any

import pytest

from mimokit.architecture.huggingface.functions import NetworkFunctions, RotaryScaling, functions_of
from mimokit.config.errors import ConfigError

LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def test_rotary_positions_are_found_in_old_and_new_places() -> None:
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    older = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}
    new = {**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}}
    wanted = NetworkFunctions(
        "silu", 1e-5, 5e5, RotaryScaling("llama3", 8.0, 1.0, 4.0, 4096), positions=131072
    )
    assert functions_of(old) == functions_of(older) == functions_of(new) == wanted
    assert not wanted.obstacles


@pytest.mark.parametrize(
    ("config", "obstacle"),
    [
        ({"hidden_act": "relu2"}, "its activation is 'relu2'; silu, gelu,"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "its rotary scaling is 'yarn'; linear"),
        ({"partial_rotary_factor": 0.5}, "it sets partial_rotary_factor"),
        ({"model_type": "mistral", "sliding_window": 4096}, "a sliding window of 4,096 tokens"),
        (
            {
                "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64,
                "max_window_layers": 2, "num_hidden_layers": 4,
            },
            "a sliding window of 64 tokens",
        ),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "it sets scale_attn_weights: false"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_named(config: dict[str, Any], obstacle: str) -> None:
    (found,) = functions_of({**LLAMA, **config}).obstacles.values()
    assert obstacle in found


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "sliding_window": 131072},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False},
        {"hidden_act": "gelu_new"},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
)
def test_what_can_run_has_no_obstacle(config: dict[str, Any]) -> None:
    assert not functions_of({**LLAMA, **config}).obstacles


def test_a_field_of_the_wrong_type_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"rms_norm_eps is '1e-5'; it must be a number above 0"):
        functions_of({**LLAMA, "rms_norm_eps": "1e-5"})
