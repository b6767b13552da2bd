"""Mixtures of experts compute in every layout what one process computes."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import mimokit
from mimokit.engine.megatron import experts
from mimokit.experiment import verify
from tests import seams
from tests.experiment.culprit.faults.routing import (
    other_choice,
    other_gradient,
    other_scores,
    replicas_of_experts,
)
from tests.invariance import oracle_of
from tests.layouts_experts import BALANCED, experts_config, frozen_experts_config
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted, replacing
from tests.rows import rows
from tests.whole_runs import balanced_decoder_on_stages, experts_of_encoders_on_stages, in_precision


def test_a_replica_without_gradients_still_serves_the_others(cluster):
    """All of its inputs are words before frozen layers, which alone need no backward pass."""
    report = verify(cluster, frozen_experts_config(), steps=2)
    assert report.passed, report.verdict


def test_experts_that_no_token_has_chosen_get_nothing():
    group, rows = SimpleNamespace(size=lambda: 2, rank=lambda: 0), torch.zeros(0, 8)
    for exchange in (experts._gather, experts._reduce_scatter):
        assert exchange(None, rows, group, [0, 0]).shape == (0, 8)


def _verified(cluster, config, target, make):
    """Return the report of one step with a fault on every rank of a layout of two."""
    oracle = oracle_of(cluster, config)
    with planted(cluster, target, make, 2):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert not report.passed
    return report


@replacing
def _counted(original, self, *given, **options):
    """Plant: what a rank without images computes counts as tokens of its own."""
    from mimokit.engine.models.rng import computing_lengths, lengths_computed, row_computed

    lengths = lengths_computed()
    with computing_lengths(None if lengths == [0] else lengths, row_computed()):
        return original(self, *given, **options)


def test_check_catches_items_that_no_sample_has(cluster):
    config = experts_of_encoders_on_stages()
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.ROUTING, _counted, 6):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.gradient_differences[0]["qwen"] > 1e-3
    assert not report.passed


def _all_tokens(original):
    """Plant: all tokens of a sample are needed, also its padding."""
    return lambda batch, placeholders: [batch["input_ids"].shape[1]] * len(batch["input_ids"])


def test_check_catches_padding_that_the_experts_of_a_decoder_count(cluster):
    config = balanced_decoder_on_stages()
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.SAMPLE_LENGTHS, _all_tokens, 7):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.gradient_differences[0]["writer"] > 1e-3
    assert not report.passed


def test_biases_follow_the_tokens_that_chose_experts():
    from mimokit.engine.models.experts import LayoutFreeRouter

    router = SimpleNamespace(
        expert_bias=torch.tensor([0.0, 0.1, 0.2, 0.3]), weight=SimpleNamespace(requires_grad=True),
        chosen=torch.tensor([3, 5, 4, 4]), tp_dp_cp_group=None,
        config=SimpleNamespace(moe_router_bias_update_rate=0.01),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", lambda counts, group: None)
        LayoutFreeRouter.update_expert_bias(router)
    assert router.expert_bias.tolist() == pytest.approx([0.01, 0.09, 0.2, 0.3])
    assert not router.chosen.any()


@pytest.mark.parametrize(
    ("target", "fault", "chooses_others"),
    [
        (seams.TOP_K, other_choice, True),
        (seams.ROUTING, partial(other_scores, 1.05), False),
        (seams.ROUTING, partial(other_gradient, 0.9), False),
    ],
)
def test_check_in_bf16_catches_a_fault_of_a_router(cluster, target, fault, chooses_others):
    config = in_precision(replicas_of_experts(), "bf16")
    report = _verified(cluster, config, target, fault)
    assert report.yardstick.proved_steps == 1
    assert (report.rerouted.wrong > 0) == chooses_others
    assert ("of 672 choices of experts are not those of" in report.verdict) == chooses_others


def test_tokens_that_visit_other_experts_fail_however_few_they_are(cluster):
    config = in_precision(experts_config((2, 1, 2), (2, 1, 2), **BALANCED), "bf16")
    report = verify(cluster, config, steps=3, oracle=oracle_of(cluster, config, 3))
    assert report.passed, report.verdict
    assert report.yardstick.steps[-1].gradients < 0.05, (
        "it is 0.13 where processes drop other tokens"
    )
    assert 0 < report.rerouted.taken < 60
    assert report.rerouted.farthest <= report.nearly_tied < 0.2
    assert "of 2,016 choices of experts tie with those of one process but for" in report.verdict
    few = replace(report, rerouted=replace(report.rerouted, wrong=2))
    assert not few.passed
    assert not few.is_near


@rows("dispatcher", "alltoall", "allgather")
def test_tokens_travel_as_a_plan_says(dispatcher):
    from mimokit.engine.models.transformer import transformer_config

    config = experts_config((1, 1, 2), (1, 1, 2), dispatcher=dispatcher)
    execution = mimokit.plan(config).executions[LANGUAGE]
    built = transformer_config(config.model.get_architecture(LANGUAGE), execution)
    assert built.moe_token_dispatcher_type == dispatcher
    assert built.moe_router_dtype == "fp32"
