"""What an unset field of a network means is said once, and descriptions are written by it."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture import (
    LanguageModel,
    LatentAttention,
    MixtureOfExperts,
    Transformer,
    VisionEncoder,
)
from mimokit.architecture.from_config import language_of_config, net_of_config
from mimokit.architecture.to_config import language_network
from mimokit.config import ModuleArchitecture
from mimokit.config.layer_architecture import LayerArchitecture, RopeScaling
from mimokit.config.meaning import MEANINGS, NetworkMeanings

# Fields of descriptions that have another name in a config, or follow from several.
ASIDE = {
    Transformer: {"causal", "moe", "mla"},
    MixtureOfExperts: {"ffn", "dense_layers"},
    LatentAttention: set(),
    LanguageModel: {"name", "net", "positions"},
    VisionEncoder: {
        "name", "net", "image_size", "patch_size", "channels", "merge", "positions",
        "interpolated",
    },
}  # fmt: skip
SIZE = st.integers(1, 64)


@pytest.mark.parametrize("record", ASIDE)
def test_a_description_has_the_names_of_its_config(record: Any) -> None:
    known = {each.name for each in MEANINGS} | set(ModuleArchitecture.model_fields)
    assert {field.name for field in fields(record)} - known == ASIDE[record] - known


def test_every_field_of_a_network_that_may_be_left_out_has_a_meaning() -> None:
    derived = {
        "position_embedding_type", "max_position_embeddings", "rope_scaling",
        "projector", "init_method",
        "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff",
        "moe_expert_capacity_factor", "moe_router_bias_update_rate", "mtp_loss_scaling_factor",
    }  # fmt: skip
    assert set(LayerArchitecture.model_fields) - {each.field for each in MEANINGS} == derived


MLA = st.builds(LatentAttention, st.integers(0, 8), SIZE, SIZE, SIZE, SIZE)
MOE = st.builds(
    MixtureOfExperts, SIZE, SIZE, SIZE, st.integers(0, 8), st.integers(0, 8),
    router_bias=st.booleans(), shared_gate=st.booleans(), pre_softmax=st.booleans(),
)  # fmt: skip


@st.composite
def networks(draw: Any) -> Transformer:
    """Draw layers of any kind, values that an unset field would mean among them."""
    hidden, heads, mla = draw(SIZE), draw(SIZE), draw(st.none() | MLA)
    flags = {
        name: draw(st.booleans())
        for name in ("gated", "qkv_bias", "key_bias", "output_bias", "ffn_bias", "qk_norm")
    }
    width = hidden // heads if mla is None else mla.nope_dim + mla.rope_dim
    return Transformer(
        draw(SIZE), hidden, heads, heads if mla else draw(st.just(heads) | SIZE),
        draw(st.just(width) | SIZE) or 1, draw(st.just(4 * hidden) | SIZE),
        norm=draw(st.sampled_from(["RMSNorm", "LayerNorm"])), mla=mla, moe=draw(st.none() | MOE),
        window=draw(st.integers(0, 3)), unwindowed=draw(st.integers(0, 3) | st.just((1, 2))),
        activation=draw(st.sampled_from(["", "gelu", "silu", "quick_gelu"])),
        epsilon=draw(st.sampled_from([1e-5, 1e-6])), matrix_std=draw(st.sampled_from([0.02, 0.1])),
        **flags,
    )  # fmt: skip


def _read_back(model: LanguageModel) -> LanguageModel:
    config = ModuleArchitecture(**language_network(model, 8))
    return replace(language_of_config("x", config), vocab_multiple=model.vocab_multiple)


@settings(max_examples=300)
@given(networks())
def test_what_is_written_is_read_back(net: Transformer) -> None:
    model = LanguageModel("x", net, 9)
    assert _read_back(model) == model


def test_positions_are_read_back() -> None:
    scaling = RopeScaling(rope_type="llama3", factor=32, original_max_position_embeddings=64)
    axes = {"rotary_sections": (1, 1, 1), "interleaved_sections": True}
    net = Transformer(2, 24, 4, 4, 6, 96)
    model = LanguageModel("x", net, 9, rope_theta=5e5, rope_scaling=scaling, **axes)
    assert language_network(model, 8)["rope_scaling"]["factor"] == 32
    assert _read_back(model) == model


def test_unset_fields_mean_what_the_config_says_of_them() -> None:
    config = ModuleArchitecture(
        num_layers=2, hidden_size=24, num_attention_heads=4, seq_length=8, vocab_size=9
    )
    assert (config.head_dim, config.ffn, config.norm) == (6, 96, "LayerNorm")
    net = net_of_config(config, causal=True)
    assert set(language_network(LanguageModel("x", net, 9), 8)) == {
        "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "seq_length",
        "vocab_size", "tied_embeddings",
    }  # fmt: skip


def test_a_wrong_meaning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Transformer(2, 24, 4, 2, 6, 96, window=3)
    with monkeypatch.context() as patched:
        patched.setattr(NetworkMeanings.window, "_left_out", 3)
        content = language_network(LanguageModel("x", net, 9), 8)
    assert net_of_config(ModuleArchitecture(**content), causal=True) != net
