"""The check passes for right shards, and names the layer of every error that can be planted.

Ranks are threads, and the oracle is Hugging Face's model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mimokit.architecture.huggingface.functions import NetworkFunctions
from mimokit.engine.inference.checking import (
    checked_shard,
    compared,
    hugging_face,
    one_process,
    parts_on_rank,
)
from mimokit.engine.weights.reading import read_shard
from mimokit.experiment.inference.weight_check import CheckReport, layers_of
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.running import TOLERANCES, check_input, loading_dtype
from tests.engine.inference.threads import on_threads
from tests.hugging_face_weights import checkpoint

Fault = Callable[[Any, int], object]
"""Changes the shard of a rank."""

LAYER = "decoder.layers.2"
QKV = f"{LAYER}.self_attention.linear_qkv.weight"
PROJ = f"{LAYER}.self_attention.linear_proj"
FC1, FC2 = f"{LAYER}.mlp.linear_fc1.weight", f"{LAYER}.mlp.linear_fc2"
EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
RANKS = 2


@functools.cache
def given_and_wanted(name: str, ranks: int) -> tuple[Any, Any, str]:
    planner = WeightPlanner(checkpoint(name), ranks)
    given, dtype = check_input(planner, 2, 16, 0), loading_dtype(planner, None)
    return given, hugging_face(checkpoint(name), given, dtype), dtype


def report(name: str, fault: Fault | None = None, ranks: int = RANKS) -> CheckReport:
    """Check a layout whose shards a fault has changed."""
    given, wanted, dtype = given_and_wanted(name, ranks)

    def rank(group: Any) -> Any:
        shard = checked_shard(checkpoint(name), group, dtype)
        if fault is not None:
            fault(shard, 0 if group is None else group.rank())
        return compared(shard, given, parts_on_rank(shard, given), wanted)

    found = layers_of(on_threads(ranks, rank))
    return CheckReport(f"TP {ranks}", "transformers", dtype, TOLERANCES[dtype], found)


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama_with_biases",
        "mistral",
        "qwen2",
        "mimo",
        "gpt2",
        "clip_tower",
        "siglip",
        "clip",
    ],
)
def test_right_shards_pass(name: str) -> None:
    found = report(name, ranks=4)
    assert found.passed, found.verdict
    assert repr(found) == f"<CheckReport: {found.verdict}>"
    assert all(layer.name in str(found) for layer in found.layers)
    layers = [f"decoder.layers.{number}" for number in range(8 if name == "mimo" else 4)]
    wanted = ["embedding", *layers, "decoder.final_layernorm", "output_layer"]
    assert [one.name for one in found.layers] == wanted
    assert max(one.max_difference for one in found.layers) > 0  # not compared with itself
    said = replace(found, left_out=2).verdict
    assert said == f"{found.verdict} Not computed: 2 layers that predict further tokens."


def test_one_process_is_an_oracle_too() -> None:
    given, wanted, dtype = given_and_wanted("qwen2", RANKS)
    alone = one_process(checkpoint("qwen2"), given, dtype)
    assert alone.keys() == wanted.keys()
    scale = wanted["output_layer"].abs().max()
    padding = 16 - len(given.rows[1])
    torch.testing.assert_close(
        alone["output_layer"][1, padding:] / scale, wanted["output_layer"][1, padding:] / scale,
        rtol=0, atol=1e-5,
    )  # fmt: skip


# What the source document gets wrong, as it would be in a shard.


def whole(name: str, shard: Any) -> torch.Tensor:
    """Return a parameter of the checkpoint that the shard is of, in the dtype that it has."""
    model = "llama" if shard.dtype == torch.float64 else "mistral"
    return read_shard(checkpoint(model), dtype=shard.dtype)[name]


def slices_of_query_key_value_one_after_another(shard: Any, rank: int) -> None:
    fused = whole(QKV, shard).view(4, 4, -1, 32)  # groups, queries + key + value, width, hidden
    parts = (fused[:, :-2], fused[:, -2], fused[:, -1])
    shard.parameters[QKV] = torch.cat([one.reshape(-1, 32) for one in parts]).chunk(RANKS)[rank]


def a_slice_of_gate_above_up(shard: Any, rank: int) -> None:
    shard.parameters[FC1] = whole(FC1, shard).chunk(RANKS)[rank]


def rows_where_columns_are_cut(shard: Any, rank: int) -> None:
    name = f"{PROJ}.weight"
    shard.parameters[name] = whole(name, shard).T.chunk(RANKS, dim=1)[rank]


def one_shard_on_all_ranks(shard: Any, rank: int) -> None:
    shard.parameters[f"{FC2}.weight"] = whole(f"{FC2}.weight", shard).chunk(RANKS, dim=1)[0]


def the_norm_of_other_networks(shard: Any, rank: int) -> None:
    net = replace(shard.layers.net, norm="layer")
    shard.parameters |= {
        name.replace("weight", "bias"): torch.zeros(32, dtype=shard.dtype)
        for name in list(shard.parameters)
        if "norm" in name
    }
    shard.layers = replace(shard.layers, net=net)


def a_tail_of_the_vocabulary_that_is_not_embedded(shard: Any, rank: int) -> None:
    if rank == RANKS - 1:
        shard.parameters[EMBEDDING][101 // RANKS - 1 :] = 0


def a_tail_of_the_vocabulary_without_logits(shard: Any, rank: int) -> None:
    if rank == RANKS - 1:
        shard.parameters[HEAD][101 // RANKS - 1 :] = 0


def shards_scaled_by_the_ranks(shard: Any, rank: int) -> None:
    shard.parameters[FC1] *= RANKS**0.5


def a_bias_that_every_rank_adds(shard: Any, rank: int) -> None:
    shard.parameters[f"{PROJ}.bias"] *= RANKS


def an_all_reduce_that_is_missing(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters[f"{FC2}.weight"].zero_()


def with_functions(**changed: Any) -> Fault:
    def change(shard: Any, rank: int) -> None:
        functions: NetworkFunctions = replace(shard.layers.functions, **changed)
        shard.layers = replace(shard.layers, functions=functions)

    return change


def a_norm_that_differs_on_one_rank(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters["decoder.final_layernorm.weight"][3] += 1e-2


def one_entry(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters[FC1][0, 0] += 1.0


def not_a_number(shard: Any, rank: int) -> None:
    if rank == 1:
        shard.parameters[FC2 + ".weight"][0, 0] = torch.nan


@pytest.mark.parametrize(
    ("fault", "model", "part"),
    [
        (slices_of_query_key_value_one_after_another, "llama", LAYER),
        (a_slice_of_gate_above_up, "llama", LAYER),
        (rows_where_columns_are_cut, "llama", LAYER),
        (one_shard_on_all_ranks, "llama", LAYER),
        (the_norm_of_other_networks, "llama", "decoder.layers.0"),
        (a_tail_of_the_vocabulary_that_is_not_embedded, "llama", "embedding"),
        (a_tail_of_the_vocabulary_without_logits, "llama", "output_layer"),
        (shards_scaled_by_the_ranks, "llama", LAYER),
        (a_bias_that_every_rank_adds, "llama_with_biases", LAYER),
        (an_all_reduce_that_is_missing, "llama", LAYER),
        (with_functions(activation="gelu"), "llama", "decoder.layers.0"),
        (with_functions(epsilon=1e-2), "llama", "decoder.layers.0"),
        (with_functions(activation="gelu"), "gpt2", "decoder.layers.0"),
        (a_norm_that_differs_on_one_rank, "llama", "decoder.final_layernorm"),
        (one_entry, "siglip_tower", LAYER),
        (one_entry, "qwen2", LAYER),
        (not_a_number, "gpt2", LAYER),
    ],
)
def test_a_planted_error_is_found_and_its_layer_named(fault: Fault, model: str, part: str) -> None:
    found = report(model, fault)
    assert not found.passed
    assert found.first_wrong is not None
    assert found.first_wrong.name == part
    assert f"{part} is the first part that differs" in found.verdict
    stated = found.to_json()
    assert not stated["passed"]
    assert next(one["name"] for one in stated["layers"] if not one["passed"]) == part


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (slices_of_query_key_value_one_after_another, LAYER),
        (a_slice_of_gate_above_up, LAYER),
        (one_shard_on_all_ranks, LAYER),
        (the_norm_of_other_networks, "decoder.layers.0"),
        (a_tail_of_the_vocabulary_that_is_not_embedded, "embedding"),
        (a_tail_of_the_vocabulary_without_logits, "output_layer"),
        (shards_scaled_by_the_ranks, LAYER),
        (an_all_reduce_that_is_missing, LAYER),
        (with_functions(activation="gelu"), "decoder.layers.0"),
        (with_functions(epsilon=1e-2), "decoder.layers.0"),
        (one_entry, LAYER),
    ],
)
def test_a_planted_error_is_found_in_bf16(fault: Fault, part: str) -> None:
    found = report("mistral", fault)
    assert found.tolerance == 1e-2
    assert found.first_wrong is not None
    assert found.first_wrong.name == part
    assert "bfloat16 computed in float32" in found.verdict


def test_no_single_rank_is_blamed_for_what_all_have_added_up() -> None:
    found = report("mistral", one_shard_on_all_ranks)  # wrong on rank 1 alone
    assert found.first_wrong is not None
    assert found.first_wrong.ranks == (0, 1)
    assert "on ranks 0–1, which add up their parts" in found.verdict


def test_a_fault_that_bf16_tolerates_is_named() -> None:
    right, found = report("mistral"), report("mistral", a_norm_that_differs_on_one_rank)
    assert right.first_beyond_rounding is None
    assert right.to_json()["arithmetic"] == "float32"
    assert found.passed
    assert found.to_json()["first_beyond_rounding"] == "decoder.final_layernorm"
    assert "of decoder.final_layernorm on rank 1, which are tolerated." in found.verdict


def test_the_rank_that_differs_is_named() -> None:
    found = report("llama", a_norm_that_differs_on_one_rank)
    assert found.first_wrong is not None
    assert found.first_wrong.ranks == (1,)
