"""Stretched positions rotate as plain torch has it, on one axis and on three."""

from __future__ import annotations

import pytest
import torch

from mimokit.architecture.huggingface.functions import NetworkFunctions, RotaryScaling
from mimokit.config import RopeScaling
from mimokit.experiment.reference import plan_of_one, single_rank
from tests.layouts_multimodal import LANGUAGE, multimodal_config


def _angles_of_a_position(config):
    """Return the angles of a language model at position 1, [width of a head / 2]."""
    from mimokit.engine.models.specs import multimodal_provider

    plan = plan_of_one(config)
    model = (
        multimodal_provider(config.model, plan, 1).provide(plan, wrap=False).model.language_model
    )
    positions = model.rotary_pos_emb
    if config.model.get_architecture(LANGUAGE).mrope_section is not None:
        angles = positions(torch.ones(3, 1, 1), model.mrope_section)
    else:
        given = positions(2)
        angles = (given[0] if isinstance(given, tuple) else given)[1:]
    return angles.flatten().chunk(2)[0]


@pytest.mark.parametrize("three_axes", [False, True])
@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope_type": "llama3"}, RotaryScaling("llama3", 4.0, original_positions=64)),
        (
            {"rope_type": "yarn", "beta_fast": 2.0},
            RotaryScaling("yarn", 4.0, original_positions=64, fast=2.0),
        ),
    ],
)
def test_stretched_positions_are_those_of_plain_torch(cluster, three_axes, fields, scaling):
    from mimokit.engine.inference.layers import frequencies

    config = multimodal_config(
        {"qwen": (1, 1), LANGUAGE: (1, 1)}, "homogeneous", three_axes=three_axes
    )
    network = config.model.get_architecture(LANGUAGE)
    stretched = RopeScaling(factor=4.0, original_max_position_embeddings=64, **fields)
    network.rope_scaling = stretched
    (found,) = cluster.run(_angles_of_a_position, single_rank(config), world_size=1)
    wanted = frequencies(network.head_dim, NetworkFunctions("silu", 1e-5, 10_000.0, scaling))
    torch.testing.assert_close(found, wanted)
    assert not torch.equal(wanted, frequencies(network.head_dim, NetworkFunctions("silu", 1e-5)))
