"""Networks like Llama, Qwen2, GPT-2, CLIP and SigLIP compute in layouts what one process does."""

from __future__ import annotations

from mimokit.experiment import verify
from tests.invariance import assert_computes_the_same, oracle_of
from tests.layouts_networks import network_config
from tests.planted import planted
from tests.whole_runs import whole_runs


@whole_runs("networks")
def test_a_network_computes_what_one_process_computes(cluster, run):
    assert_computes_the_same(cluster, run.make())


@whole_runs("a frozen part of an encoder")
def test_a_part_of_an_encoder_is_frozen(cluster, run):
    config = run.make()
    (part,) = config.model.get_architecture("images").frozen
    assert_computes_the_same(cluster, config)
    names = {name.split(".")[0] for name in oracle_of(cluster, config).steps[0].gradients["images"]}
    assert names == {"encoder": {"input_projections"}, "projector": {"encoders"}}[part]


def _padding_counts(original):
    """Plant: the rows of zeros behind a vocabulary take part in the softmax."""
    return lambda self, layer, given, output: output


def test_check_catches_a_loss_that_counts_the_padding(cluster):
    config = network_config("llama", "clip", (1, 1, 4), (4, 1, 1))
    masking = "mimokit.engine.models.language.TiedGPTModel._without_padding"
    with planted(cluster, masking, _padding_counts, 4):
        report = verify(cluster, config, steps=1)  # one process does not mask it either
    assert report.loss_differences[0] > 1e-3
    assert not report.passed
