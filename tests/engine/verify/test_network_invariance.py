"""Networks like Llama, Qwen2, GPT-2, CLIP and SigLIP compute in layouts what one process does."""

from __future__ import annotations

from tests.invariance import assert_computes_the_same, oracle_of
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
