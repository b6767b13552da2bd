"""What an unset field of a network means is said once, and sections are written by it."""

from dataclasses import fields
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
from mimokit.config import ModuleArchitecture
from mimokit.config.layer_architecture import LayerArchitecture, RopeScaling
from mimokit.config.meaning import MEANINGS, NetworkMeanings
from tests.rows import rows

# Fields of descriptions that have another name in a config, or follow from several.
ASIDE = {
    Transformer: {"causal", "moe", "attention", "full_layers"},
    MixtureOfExperts: {"ffn", "dense_layers"},
    LatentAttention: set(),
    LanguageModel: {"name", "net", "network", "positions"},
    VisionEncoder: {"name", "net", "network", "images", "table"},
}
SIZE = st.integers(1, 64)


@rows("record", *ASIDE)
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


LATENT = st.fixed_dictionaries({
    "multi_latent_attention": st.just(True), "q_lora_rank": st.none() | SIZE, "kv_lora_rank": SIZE,
    "qk_head_dim": SIZE, "qk_pos_emb_head_dim": SIZE, "v_head_dim": SIZE,
})  # fmt: skip
EXPERTS = st.fixed_dictionaries({
    "num_moe_experts": SIZE, "moe_router_topk": SIZE, "moe_ffn_hidden_size": SIZE,
    "moe_shared_expert_intermediate_size": st.none() | SIZE,
    "first_k_dense_replace": st.integers(0, 8), "moe_router_enable_expert_bias": st.booleans(),
    "moe_shared_expert_gate": st.booleans(), "moe_router_pre_softmax": st.booleans(),
})  # fmt: skip
NONE: st.SearchStrategy[dict[str, Any]] = st.just({})


@st.composite
def networks(draw: Any) -> dict[str, Any]:
    """Draw fields of a network, values that an unset field would mean among them."""
    hidden, heads, flags = draw(SIZE), draw(SIZE), st.booleans()
    return {
        "num_layers": draw(SIZE), "hidden_size": hidden, "num_attention_heads": heads,
        "seq_length": 8, "vocab_size": 9, "num_query_groups": draw(st.just(heads) | SIZE),
        "kv_channels": draw(st.just(hidden // heads or 1) | SIZE),
        "ffn_hidden_size": draw(st.just(4 * hidden) | SIZE),
        "normalization": draw(st.sampled_from(["RMSNorm", "LayerNorm"])),
        "window_size": draw(st.none() | SIZE),
        "full_attention_layers": draw(st.integers(0, 3) | st.just([1, 2])),
        "activation_func": draw(st.sampled_from([None, "gelu", "silu", "quick_gelu"])),
        "layernorm_epsilon": draw(st.sampled_from([1e-5, 1e-6])),
        "init_std": draw(st.sampled_from([0.02, 0.1])),
        "gated_linear_unit": draw(flags), "add_qkv_bias": draw(flags), "add_key_bias": draw(flags),
        "add_attention_output_bias": draw(flags), "add_bias_linear": draw(flags),
        "qk_layernorm": draw(flags), **draw(NONE | LATENT), **draw(NONE | EXPERTS),
    }  # fmt: skip


def _read_back(network: ModuleArchitecture) -> LanguageModel:
    return language_of_config("x", ModuleArchitecture(**network.section()))


@settings(max_examples=300)
@given(networks())
def test_a_section_means_what_its_network_means(fields: dict[str, Any]) -> None:
    network = ModuleArchitecture(**fields)
    back = _read_back(network)
    assert back == language_of_config("x", network)
    for each in MEANINGS:
        assert getattr(back.network, each.name) == getattr(network, each.name), each.name


SMALL = {
    "num_layers": 2, "hidden_size": 24, "num_attention_heads": 4, "seq_length": 8, "vocab_size": 9,
}  # fmt: skip


def test_positions_are_read_back() -> None:
    scaling = RopeScaling(rope_type="llama3", factor=32, original_max_position_embeddings=64)
    network = ModuleArchitecture(
        **SMALL, rotary_base=5e5, rope_scaling=scaling, mrope_section=[1, 1, 1],
        mrope_interleaved=True,
    )  # fmt: skip
    assert network.section()["rope_scaling"]["factor"] == 32
    assert _read_back(network).network.rope_scaling == scaling
    assert _read_back(network) == language_of_config("x", network)


def test_a_section_leaves_out_what_is_meant() -> None:
    usual = {"kv_channels": 6, "normalization": "LayerNorm", "add_qkv_bias": True}
    network = ModuleArchitecture(**SMALL, **usual, frozen=True)
    assert (network.head_dim, network.ffn, network.norm) == (6, 96, "LayerNorm")
    assert network.section() == {**SMALL, "frozen": True}


def test_a_wrong_meaning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    network = ModuleArchitecture(**SMALL, window_size=3)
    with monkeypatch.context() as patched:
        patched.setattr(NetworkMeanings.window, "_left_out", 3)
        section = network.section()
    written = net_of_config(ModuleArchitecture(**section), causal=True)
    assert written != net_of_config(network, causal=True)
