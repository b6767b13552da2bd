"""Planned collectives of tensor parallel groups: numbers that were counted on ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import mimokit
from mimokit.config import ExperimentConfig
from mimokit.config.data import ModalityPresence
from mimokit.prediction.tensor_collectives import CollectiveSpan, may_lack_items, tensor_collectives
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_experts import BALANCED, SHARED, experts_config
from tests.rows import rows
from tests.whole_runs import (
    LATENT_ATTENTION,
    cut_along_sequences,
    in_rows,
    latent_config,
    predicting,
)

LANGUAGE = "language_module"


def counted(config: ExperimentConfig, rank: int = 0) -> dict[str, int]:
    planned = tensor_collectives(config, mimokit.plan(config), rank)
    assert all(span.least == span.most for span in planned.values())
    return {name: span.most for name, span in planned.items()}


def changed(config: ExperimentConfig, name: str, **fields: Any) -> ExperimentConfig:
    """Return the config with other fields of a network."""
    networks = config.model.module_architectures
    networks[name] = networks[name].model_copy(update=fields)
    return config


on_two_ranks = partial(experts_config, (1, 1, 2), (2, 1, 1))
LATENT = {**LATENT_ATTENTION, "q_lora_rank": 10, "num_query_groups": None}


def recomputing(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    config = make()
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = "full"
    return config.finalize()


def frozen_on_two_ranks(**fields: Any) -> ExperimentConfig:
    return experts_config((1, 1, 1), (2, 1, 1), True, 2, frozen=True, **fields)


@rows(
    "encoder, language, found",
    ((2, 1), (2, 1), {"images": 18}),  # a shared group: 6 of the encoder
    ((1, 4), (2, 2), {LANGUAGE: 12}),
    ((4, 1), (2, 2), {"images": 6, LANGUAGE: 12}),
    ((2, 2), (4, 1), {"images": 6, LANGUAGE: 12}),
    ((1, 2), (1, 2), {}),
)
def test_modules_on_shared_ranks(
    encoder: tuple[int, int], language: tuple[int, int], found: dict[str, int]
) -> None:
    for count in (1, 3):
        config = digits_config(encoder, language, num_microbatches=count)
        assert counted(config) == {name: count * one for name, one in found.items()}


def test_slices_of_a_sequence() -> None:
    config = cut_along_sequences(digits_config((2, 1), (2, 1), 3))
    # Every micro-batch: 14 of the encoder (4 + 6 of its layer, 2 of the projector, 2 around its
    # slices) and 27 of the language model. Every step: a sum of gradients of each.
    assert counted(config) == {"images": 3 * (14 + 27) + 2}


@rows(
    "slices, recomputed, found",
    (False, None, 32),
    (True, None, 72),
    (False, "full", 42),
    (True, "full", 92),
)
def test_further_tokens(slices: bool, recomputed: Any, found: int) -> None:
    config = predicting(digits_config((1, 2), (2, 1)), 2)
    config = cut_along_sequences(config) if slices else config
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = recomputed
    assert counted(config.finalize()) == {LANGUAGE: found}


@rows("further, gathers", (0, 2 * 2 + 1), (2, 4 * 2 + 3 + 2 * 2))
def test_slices_that_frozen_matrices_take(further: int, gathers: int) -> None:
    """Nothing is gathered again backward: for layers, outputs, and where tokens are joined."""
    config = cut_along_sequences(predicting(apart_config((1, 1, 1), (2, 1, 1), 3), further))
    trained = counted(config, 1)[LANGUAGE]
    frozen = changed(config, LANGUAGE, frozen=True)
    assert counted(frozen, 1) == {LANGUAGE: trained - 1 - 3 * gathers}


def test_norms_of_heads() -> None:
    """Ranks have other heads: the gradients of their norms are summed once per step."""
    config = changed(digits_config((1, 4), (2, 2), num_microbatches=3), LANGUAGE, qk_layernorm=True)
    assert counted(config) == {LANGUAGE: 3 * 12 + 1}


@rows(
    "config, found",
    # An expert with a capacity: ranks gather scores, samples, and which tokens count.
    (experts_config((2, 1, 2), (2, 1, 2), **SHARED, **BALANCED), {"images": 53}),
    (experts_config((1, 1, 4), (2, 1, 2), dispatcher="allgather", **SHARED), {LANGUAGE: 35}),
    (
        experts_config(
            (1, 1, 4),
            (2, 1, 2),
            count=2,
            expert_tensor_parallel=2,
            moe_router_load_balancing_type="seq_aux_loss",
            moe_aux_loss_coeff=0.2,
        ),
        {LANGUAGE: 63},
    ),
    # 2 layers: an all-reduce of a loss, 3 gathers for a capacity.
    (experts_config((1, 1, 2), (2, 1, 1), expert_parallel=1, **BALANCED), {LANGUAGE: 27}),
    (
        experts_config((1, 1, 2), (2, 1, 1), expert_parallel=1, expert_tensor_parallel=2),
        {LANGUAGE: 32},
    ),
)
def test_experts_whose_groups_are_those_of_tensors(
    config: ExperimentConfig, found: dict[str, int]
) -> None:
    assert counted(config) == found


@rows(
    "make, found",
    (on_two_ranks, 32),
    # Again in 2 layers: 2 around attention, how many tokens there are, 3 of a dispatch.
    (partial(recomputing, on_two_ranks), 44),
    # 39, and again 2 around attention (4), around a dense layer and shared experts (4), and for
    # a capacity and a dispatch (3 + 4). The loss is computed in the backward pass alone.
    (partial(recomputing, partial(on_two_ranks, **SHARED, **BALANCED)), 54),
    (partial(on_two_ranks, moe_router_enable_expert_bias=True), 34),  # a bias of 2 layers
    # Samples in a row: 39 without, and how many tokens a rank has.
    (lambda: in_rows(on_two_ranks(dispatcher="allgather", **SHARED, **BALANCED)), 40),
)
def test_experts_of_tensor_parallel_ranks(make: Callable[[], ExperimentConfig], found: int) -> None:
    assert counted(make()) == {LANGUAGE: found}


@rows(
    "make, rank, found",
    # Backward, all-reduces of compressed queries, of keys and values, and of the rotary key.
    (latent_config, 0, {"images": 18 + 2 * 2}),
    # 2 layers: 3 gathers in place of 1, 3 reduce-scatters in place of 1, 1 more again.
    (partial(on_two_ranks, **LATENT), 0, {LANGUAGE: 32 + 2 * 5}),
    # Again in 2 layers: 4 around attention, how many tokens there are, 3 of a dispatch.
    (partial(recomputing, partial(on_two_ranks, **LATENT)), 0, {LANGUAGE: 42 + 2 * 8}),
    # Backward a layer gathers no inputs again: 3 scatters, 1 gather of attention, 3 dispatched;
    # besides one each of embedding and output. Forward: 8 of a layer, 4 others.
    (partial(frozen_on_two_ranks, **LATENT), 1, {LANGUAGE: 2 * (2 * 8 + 4 + 2 * 7 + 2)}),
)
def test_latent_attention(
    make: Callable[[], ExperimentConfig], rank: int, found: dict[str, int]
) -> None:
    assert counted(make(), rank) == found


@rows(
    "fields, found",
    # 2 layers gather what they project, and biases; backward they scatter the gradients.
    ({}, 12 + 2 * 2 + 2 * 2),
    ({"frozen": True}, 12 + 2 * 2 + 2),  # of frozen biases there is no gradient
    ({"add_key_bias": True}, 12 + 2 * 2),
)
def test_biases_of_groups_fewer_than_ranks(fields: dict[str, Any], found: int) -> None:
    config = digits_config((1, 4), (4, 1))
    few = {"num_query_groups": 2, "add_key_bias": False}
    assert counted(changed(config, LANGUAGE, **{**few, **fields})) == {LANGUAGE: found}


def test_modules_with_groups_of_their_own_on_shared_ranks() -> None:
    """What overlaps its reduction shares no group: 6 of an encoder's layer and projector, 12."""
    config = digits_config((2, 1), (2, 1))
    for module in config.model.module_parallelisms.values():
        module.overlap_grad_reduce = True
    assert counted(config) == {"images": 6, LANGUAGE: 12}


def test_stages_of_a_pipeline() -> None:
    config = apart_config((2, 2, 1), (2, 2, 1), 2)
    assert [counted(config, rank) for rank in (0, 3)] == [{"images": 16}, {"images": 20}]
    assert [counted(config, rank) for rank in (4, 7)] == [{LANGUAGE: 18}, {LANGUAGE: 22}]
    further = predicting(config, 2)
    assert [counted(further, rank) for rank in (4, 7)] == [{LANGUAGE: 18}, {LANGUAGE: 62}]


@rows(
    "name, fields, found",
    ("images", {"frozen": True}, 15),
    ("images", {"frozen": ["encoder"]}, 16),
    ("images", {"frozen": ["projector"]}, 18),
    (LANGUAGE, {"frozen": True}, 18),  # the gradient of the encoder passes it
    (LANGUAGE, {"num_query_groups": 1}, 22),
    (LANGUAGE, {"num_query_groups": 2}, 18),
)
def test_what_is_frozen_and_groups_fewer_than_ranks(
    name: str, fields: dict[str, Any], found: int
) -> None:
    config = changed(digits_config((2, 1), (2, 1)), name, **fields)
    assert counted(config) == {"images": found}


def test_micro_batches_that_may_lack_items() -> None:
    config = digits_config((4, 1), (2, 2))
    assert not may_lack_items(config)
    config.data.modality_presence = {"images": ModalityPresence(samples=[True, False])}
    assert may_lack_items(config) == {"images"}
    plan = mimokit.plan(config)
    planned = tensor_collectives(config, plan, 0, may_lack_items(config))
    assert planned == {"images": CollectiveSpan(0, 6), LANGUAGE: CollectiveSpan(12, 12)}
    assert (5 in planned["images"], 7 in planned["images"]) == (True, False)
    assert str(planned["images"]) == "0 to 6"
    changed(config, LANGUAGE, frozen=True)
    assert tensor_collectives(config, plan, 0, ["images"])[LANGUAGE] == CollectiveSpan(7, 12)
