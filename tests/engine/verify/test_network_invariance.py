"""Networks like Llama, Qwen2, GPT-2, CLIP and SigLIP compute in layouts what one process does."""

from __future__ import annotations

import pytest

from mimokit.experiment import verify
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts_networks import network_config
from tests.planted import planted

# Language model and tower, (tensor, pipeline, data) of tower and language model, separate ranks.
LAYOUTS = [
    ("llama", "clip", (2, 1, 2), (2, 1, 2), False),
    ("llama", "clip", (1, 1, 4), (4, 1, 1), False),
    ("llama", "clip", (1, 2, 1), (2, 2, 1), True),
    ("qwen2", "siglip", (2, 1, 1), (2, 1, 1), False),
    ("qwen2", "siglip", (1, 1, 4), (4, 1, 1), False),
    ("qwen2", "siglip", (2, 1, 1), (1, 2, 1), True),
    ("gpt2", "siglip", (2, 1, 1), (2, 1, 1), False),
    ("gpt2", "siglip", (2, 1, 2), (4, 1, 1), False),
    ("gpt2", "siglip", (1, 2, 1), (2, 2, 1), True),
    ("geglu", "clip", (1, 1, 2), (2, 1, 1), False),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: " ".join(map(str, one)))
def test_a_network_computes_what_one_process_computes(cluster, layout):
    *network, apart = layout
    assert_computes_the_same(cluster, network_config(*network, apart=apart))


@pytest.mark.parametrize(
    ("part", "layout"),
    [
        ("encoder", ((1, 1, 2), (2, 1, 1), False)),
        ("projector", ((1, 2, 1), (2, 1, 1), True)),
    ],
)
def test_a_part_of_an_encoder_is_frozen(cluster, part, layout):
    *sizes, apart = layout
    config = network_config("geglu", "clip", *sizes, apart=apart)
    networks = config.model.module_architectures
    networks["images"] = networks["images"].model_copy(update={"frozen": [part]})
    assert_computes_the_same(cluster, config)
    names = {name.split(".")[0] for name in oracle_of(cluster, config).steps[0].gradients["images"]}
    assert names == {"encoder": {"input_projections"}, "projector": {"encoders"}}[part]


def _padding_counts(original):
    """Plant: the rows of zeros behind a vocabulary take part in the softmax."""
    return lambda self, layer, given, output: output


def test_check_catches_a_loss_that_counts_the_padding(cluster):
    config = network_config("llama", "clip", (1, 1, 4), (4, 1, 1))
    oracle = oracle_of(cluster, config)
    masking = "mimokit.engine.models.language.TiedGPTModel._without_padding"
    with planted(cluster, masking, _padding_counts, 4):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] > 1e-3
    assert not report.passed
