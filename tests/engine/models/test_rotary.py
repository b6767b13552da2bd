"""Stretched positions rotate as those of transformers, on one axis, on three and in encoders."""

import itertools

import pytest
import torch

from mimokit.config import RopeScaling
from mimokit.engine.rotary import RotaryPositions
from mimokit.experiment.reference import single_rank
from mimokit.planning.layout import plan_checked
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.rows import rows

TOKENS, ORIGINAL, BASE = 48, 20, 500.0
STRETCHED = {
    "linear": {},
    "dynamic": {},
    "llama3": {"low_freq_factor": 1.5, "high_freq_factor": 5.0},
    "yarn": {"beta_fast": 2.0, "mscale": 0.7, "mscale_all_dim": 0.2},
    "longrope": {
        "short_factor": (1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0),
        "long_factor": (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    },
}


def _scaling(rope_type, original=ORIGINAL):
    fields = {"factor": 4.0, "original_max_position_embeddings": original, **STRETCHED[rope_type]}
    return RopeScaling(rope_type=rope_type, **fields)


def _of_hugging_face(rope_type, original=ORIGINAL, width=16):
    """Return the radians of a position, [width / 2], and the growth."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {**STRETCHED[rope_type], "factor": 4.0, "rope_theta": BASE}
    fields = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    rope = {"rope_type": rope_type, "original_max_position_embeddings": original, **fields}
    config = LlamaConfig(
        hidden_size=4 * width, num_attention_heads=4, max_position_embeddings=original,
        rope_parameters=rope,
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=TOKENS)


@rows("original, rope_type", *itertools.product([ORIGINAL, TOKENS], STRETCHED))
def test_frequencies_are_those_of_transformers(rope_type, original):
    wanted, growth = _of_hugging_face(rope_type, original)
    rotary = RotaryPositions(BASE, _scaling(rope_type, original), TOKENS)
    torch.testing.assert_close(rotary.frequencies(16), wanted)
    assert rotary.growth == pytest.approx(growth)


def _turns_of_models(config):
    """Return the angles of language model and encoder at position 1, and how both grow."""
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (
        _yarn_get_concentration_factor_from_config as growth_of,
    )

    from mimokit.engine.models.specs import multimodal_provider

    plan = plan_checked(config)
    model = multimodal_provider(config.model, plan, 1).provide(plan, wrap=False).model
    positions = model.language_model.rotary_pos_emb
    if config.model.get_architecture(LANGUAGE).mrope_section is not None:
        angles = positions(torch.ones(3, 1, 1), model.language_model.mrope_section)
    else:
        angles = positions(2)[1:]
    (encoder,) = model.modality_submodules["audio"].encoders.values()
    growths = [
        growth_of(layers[-1].self_attention.config)
        for layers in (model.language_model.decoder.layers, encoder.decoder.layers)
    ]
    turned = encoder._rotary(None)[1]
    return angles.flatten().chunk(2)[0], turned.flatten().chunk(2)[0], growths


@pytest.mark.parametrize("three_axes", [False, True])
@pytest.mark.parametrize("rope_type", STRETCHED)
def test_models_turn_so(cluster, rope_type, three_axes):
    config = multimodal_config(
        {"audio": (1, 1), LANGUAGE: (1, 1)}, "homogeneous", three_axes=three_axes
    )
    stretched = {"rotary_base": BASE, "rope_scaling": _scaling(rope_type), "kv_channels": 16}
    for name, fields in ((LANGUAGE, {}), ("audio", {"position_embedding_type": "rope"})):
        network = config.model.get_architecture(name)
        fields = {**stretched, **fields, "seq_length": TOKENS}
        config.model.module_architectures[name] = network.model_copy(update=fields)
    ((language, encoder, growths),) = cluster.run(
        _turns_of_models, single_rank(config), world_size=1
    )
    wanted, growth = _of_hugging_face(rope_type)
    torch.testing.assert_close(language, wanted)
    torch.testing.assert_close(encoder, wanted)
    assert growths == pytest.approx([growth, growth])
