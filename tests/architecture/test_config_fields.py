"""One table pairs the fields of a network with those of a config, and is read both ways."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture import (
    LanguageModel,
    LatentAttention,
    MixtureOfExperts,
    Projector,
    Transformer,
    VisionEncoder,
)
from mimokit.architecture.config_fields import (
    EXPERTS,
    LANGUAGE,
    LATENT_ATTENTION,
    LAYERS,
    PROJECTOR,
    VISION,
    NetworkField,
    read,
    write,
)
from mimokit.config import ModuleArchitecture
from mimokit.config.layer_architecture import LayerArchitecture, ProjectorArchitecture, RopeScaling

# Fields that no row holds: names, parts, and what is derived from images, sequences or norms.
ASIDE = {
    Transformer: {"causal", "moe", "mla"},
    LanguageModel: {"name", "net", "positions"},
    VisionEncoder: {
        "name", "net", "image_size", "patch_size", "channels", "merge", "positions",
        "interpolated", "head",
    },
    Projector: {"widths", "norm", "inner_layers", "copy_norm"},
}  # fmt: skip
TABLES: dict[Any, tuple[NetworkField, ...]] = {
    Transformer: LAYERS,
    MixtureOfExperts: EXPERTS,
    LatentAttention: LATENT_ATTENTION,
    LanguageModel: LANGUAGE,
    VisionEncoder: VISION,
    Projector: PROJECTOR,
}
SIZE = st.integers(1, 64)


@pytest.mark.parametrize("record", TABLES)
def test_every_field_of_a_description_has_one_row(record: Any) -> None:
    own = [row.own for row in TABLES[record]]
    assert sorted([*own, *ASIDE.get(record, ())]) == sorted(one.name for one in fields(record))


def test_every_field_of_a_config_beyond_sizes_has_a_row() -> None:
    rows = {row.config for rows in TABLES.values() for row in rows}
    derived = {
        "multi_latent_attention", "position_embedding_type", "max_position_embeddings",
        "pooling_head", "projector", "init_method",
        "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff",
        "moe_expert_capacity_factor", "moe_router_bias_update_rate", "mtp_loss_scaling_factor",
    }  # fmt: skip
    stated = set(LayerArchitecture.model_fields)
    assert stated - rows == derived
    left = set(ProjectorArchitecture.model_fields) - {row.config for row in PROJECTOR}
    norms = {f"{which}{what}" for which in ("", "deepstack_") for what in ("normalization",)}
    assert left == {"deepstack_layers", "hidden_sizes", "norm_size", "deepstack_norm_size", *norms}


MLA = st.builds(LatentAttention, st.integers(0, 8), SIZE, SIZE, SIZE, SIZE)
MOE = st.builds(
    MixtureOfExperts, SIZE, SIZE, SIZE, st.integers(0, 8), st.integers(0, 8),
    router_bias=st.booleans(), shared_gate=st.booleans(),
)  # fmt: skip


LAYERS_WITHOUT = st.integers(0, 3) | st.just((1, 2))


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
        draw(SIZE), hidden, heads, draw(st.just(heads) | SIZE), draw(st.just(width) | SIZE) or 1,
        draw(st.just(4 * hidden) | SIZE), norm=draw(st.sampled_from(["rms", "layer"])), mla=mla,
        window=draw(st.integers(0, 3)), full_attention_layers=draw(LAYERS_WITHOUT),
        activation=draw(st.sampled_from([None, "gelu", "silu", "quick_gelu"])),
        epsilon=draw(st.sampled_from([1e-5, 1e-6])), init_std=draw(st.sampled_from([0.02, 0.1])),
        **flags,
    )  # fmt: skip


@settings(max_examples=300)
@given(networks(), MOE)
def test_what_is_written_is_read_back(net: Transformer, moe: MixtureOfExperts) -> None:
    dense = {"dense_ffn": net.ffn}
    content = {
        **write(LAYERS, net, {"mla": net.mla}),
        **write(EXPERTS, moe, dense),
        **({} if net.mla is None else write(LATENT_ATTENTION, net.mla)),
    }
    if net.mla is not None:
        content["multi_latent_attention"] = True
    config = ModuleArchitecture(seq_length=1, vocab_size=1, **content)
    assert Transformer(mla=net.mla, **read(LAYERS, config, {"mla": net.mla})) == net
    assert MixtureOfExperts(**read(EXPERTS, config, dense)) == moe
    if net.mla is not None:
        assert LatentAttention(**read(LATENT_ATTENTION, config)) == net.mla
    assert (config.head_dim, config.feed_forward_size) == (net.head_dim, net.ffn)


def test_positions_are_read_back() -> None:
    net = Transformer(2, 24, 4, 4, 6, 96)
    scaling = RopeScaling(rope_type="llama3", factor=32, original_max_position_embeddings=64)
    axes = {"rotary_sections": (1, 1, 1), "interleaved_sections": True}
    model = LanguageModel("x", net, 9, rotary_base=5e5, rope_scaling=scaling, **axes)
    content = {**write(LAYERS, net, {"mla": None}), **write(LANGUAGE, model)}
    assert content["rope_scaling"]["factor"] == 32
    config = ModuleArchitecture(seq_length=8, **content)
    assert LanguageModel("x", net, **read(LANGUAGE, config)) == model


def test_unset_fields_mean_what_the_config_says_of_them() -> None:
    config = ModuleArchitecture(
        num_layers=2, hidden_size=24, num_attention_heads=4, seq_length=8, vocab_size=9
    )
    found = read(LAYERS, config, {"mla": None})
    assert found["head_dim"] == config.head_dim == 6
    assert found["ffn"] == config.feed_forward_size == 96
    assert found["norm"] == "layer"
    assert set(write(LAYERS, Transformer(**found), {"mla": None})) == {
        "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size",
    }  # fmt: skip


def test_a_row_that_is_dropped_is_seen() -> None:
    net = Transformer(2, 24, 4, 4, 6, 96, window=3)
    fewer = tuple(row for row in LAYERS if row.own != "window")
    config = ModuleArchitecture(seq_length=8, vocab_size=9, **write(fewer, net, {"mla": None}))
    assert Transformer(**read(LAYERS, config, {"mla": None})) != net
