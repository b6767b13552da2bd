"""What trains from weights computes what Hugging Face does; every planted error is named."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mimokit.architecture.huggingface import ENCODER, LANGUAGE
from mimokit.cluster import EngineCluster
from mimokit.engine.weights.conversion import convert_to_layout
from mimokit.experiment import check_weights
from mimokit.extras.generation.check.inputs import PROJECTOR_PART
from mimokit.extras.generation.check.weight_check import WeightCheck
from tests.hugging_face_weights import checkpoint
from tests.llava import IMAGE_TOKEN, llava_checkpoint
from tests.rows import rows

Shard = Mapping[str, torch.Tensor]

LAYERS = tuple(f"decoder.layers.{number}" for number in range(4))
WORDS = ("embedding", *LAYERS, "decoder.final_layernorm", "output_layer")
LAYER = LAYERS[2]
QKV = f"{LAYER}.self_attention.linear_qkv.weight"
PROJ = f"{LAYER}.self_attention.linear_proj"
FC1, FC2 = f"{LAYER}.mlp.linear_fc1.weight", f"{LAYER}.mlp.linear_fc2.weight"
RANKS = 2


@rows(
    "name, ranks",
    ("llama", 2),
    ("llama_with_biases", 2),
    ("mistral", 4),
    ("qwen2", 4),
    ("qwen3", 4),
    ("phi3", 2),
    ("mimo", 2),
    ("gpt2", 2),
    ("clip_tower", 4),
    ("siglip_tower", 4),
    ("siglip", 1),
    ("clip", 1),
)
def test_a_module_computes_what_its_weights_compute(
    cluster: EngineCluster, name: str, ranks: int
) -> None:
    """Qwen2 and Qwen3 have 2 groups; their ranks share them."""
    found = check_weights(cluster, checkpoint(name), tensor_parallel=ranks)
    assert found.passed, found.verdict
    assert found.oracle == "transformers"
    assert all(layer.name in str(found) for layer in found.layers)
    wanted = WORDS if name[:4] not in ("clip", "sigl") else (WORDS[0], *LAYERS, WORDS[-1])
    if name == "mimo":
        layers = (f"decoder.layers.{number}" for number in range(8))
        wanted = (WORDS[0], *layers, *WORDS[-2:])
        assert "Not computed: " in found.verdict
    assert tuple(layer.name for layer in found.layers) == wanted
    assert 0 < max(layer.max_difference for layer in found.layers) < 2e-5


@rows("variant, layers", ("clip", 3), ("clip_full", 2), ("siglip", 4))
def test_a_llava_is_checked_in_all_its_parts(
    cluster: EngineCluster, variant: str, layers: int
) -> None:
    """Its tower has 4 layers, of which those behind its vision_feature_layer do nothing."""
    asked = WeightCheck.of(llava_checkpoint(variant), RANKS)
    assert not any(IMAGE_TOKEN in row for row in asked.inputs.rows)
    found = asked.run(cluster)
    assert found.passed, found.verdict
    assert [layer.name for layer in found.layers] == [
        *(f"{ENCODER}{part}" for part in ("embedding", *LAYERS[:layers])),
        PROJECTOR_PART,
        *(f"{LANGUAGE}{part}" for part in WORDS),
    ]


def test_a_layout_is_compared_with_one_process_where_transformers_reads_nothing(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    convert_to_layout(checkpoint("qwen2"), tmp_path / "layout", 2, 1)
    found = check_weights(cluster, tmp_path / "layout", tensor_parallel=4)
    assert found.passed, found.verdict
    assert found.oracle == "one process"


def query_key_value_one_after_another(rank: int, shard: Shard) -> None:
    fused = shard[QKV].view(2, 4, -1, 32)  # groups, 2 queries + key + value, width, hidden
    parts = (fused[:, :-2], fused[:, -2], fused[:, -1])
    shard[QKV].copy_(torch.cat([part.reshape(-1, 32) for part in parts]))


def up_above_gate_on_rank_1(rank: int, shard: Shard) -> None:
    shard[FC1].copy_(shard[FC1].roll(rank * len(shard[FC1]) // 2, dims=0))


def one_shard_on_all_ranks(rank: int, shard: Shard) -> None:
    torch.distributed.broadcast(shard[FC2].data, 0)


def a_part_that_is_missing_on_rank_1(rank: int, shard: Shard) -> None:
    shard[FC2].mul_(1 - rank)


def a_bias_that_every_rank_adds(rank: int, shard: Shard) -> None:
    shard[f"{PROJ}.bias"].mul_(RANKS)


def tail_of(name: str) -> Callable[[int, Shard], None]:
    def change(rank: int, shard: Shard) -> None:
        if rank == RANKS - 1:
            shard[name][101 // RANKS - 1 :] = 0

    return change


def entry(name: str, add: float = 1.0) -> Callable[[int, Shard], None]:
    def change(rank: int, shard: Shard) -> None:
        if rank == 1:
            shard[name].view(-1)[3] += add

    return change


@rows(
    "name, fault, part",
    ("llama", query_key_value_one_after_another, LAYER),
    ("llama", up_above_gate_on_rank_1, LAYER),
    ("llama", one_shard_on_all_ranks, LAYER),
    ("llama", a_part_that_is_missing_on_rank_1, LAYER),
    ("llama_with_biases", a_bias_that_every_rank_adds, LAYER),
    ("llama", tail_of("embedding.word_embeddings.weight"), "embedding"),
    ("llama", tail_of("output_layer.weight"), "output_layer"),
    ("llama", entry("decoder.final_layernorm.weight", 1e-2), "decoder.final_layernorm"),
    ("gpt2", entry(FC2, torch.nan), LAYER),
    ("siglip_tower", entry(FC1), LAYER),
    ("mistral", entry(FC1), LAYER),
    ("llava", entry(f"{ENCODER}position_embedding"), f"{ENCODER}embedding"),
    ("llava", entry(f"{ENCODER}{LAYERS[1]}.mlp.linear_fc1.weight"), f"{ENCODER}{LAYERS[1]}"),
    ("llava", entry(f"{PROJECTOR_PART}.encoder.linear_fc2.weight"), PROJECTOR_PART),
    ("llava", entry(f"{LANGUAGE}{QKV}"), f"{LANGUAGE}{LAYER}"),
)
def test_a_planted_error_is_found_and_its_part_named(
    cluster: EngineCluster, name: str, fault: Callable[[int, Shard], None], part: str
) -> None:
    directory = llava_checkpoint("clip") if name == "llava" else checkpoint(name)
    found = check_weights(cluster, directory, tensor_parallel=RANKS, change=fault)
    assert not found.passed
    assert found.first_wrong is not None
    assert found.first_wrong.name == part
    assert f"{part} is the first part that differs" in found.verdict
    stated = found.to_json()
    assert not stated["passed"]
    assert next(each["name"] for each in stated["layers"] if not each["passed"]) == part


@rows(
    "field, value, part",
    ("layernorm_epsilon", 1e-2, LAYERS[0]),
    ("activation_func", "gelu", LAYERS[0]),
    ("rotary_base", 500, LAYERS[0]),
)
def test_another_function_between_the_matrices_is_found(
    cluster: EngineCluster, field: str, value: object, part: str
) -> None:
    asked = WeightCheck.of(checkpoint("llama"))
    setattr(asked.config.model.get_architecture("language_module"), field, value)
    found = asked.run(cluster).first_wrong
    assert found is not None
    assert found.name == part


def test_the_ranks_that_differ_are_named(cluster: EngineCluster) -> None:
    def found(fault: Callable[[int, Shard], None]) -> tuple[int, ...]:
        wrong = check_weights(
            cluster, checkpoint("llama"), tensor_parallel=RANKS, change=fault
        ).first_wrong
        assert wrong is not None
        return wrong.ranks

    assert found(entry("decoder.final_layernorm.weight")) == (1,)
    assert found(a_part_that_is_missing_on_rank_1) == (0, 1)


def test_a_fault_that_bf16_tolerates_is_named(cluster: EngineCluster) -> None:
    fault = entry("decoder.final_layernorm.weight", 1e-2)
    right = check_weights(cluster, checkpoint("mistral"), tensor_parallel=RANKS)
    found = check_weights(cluster, checkpoint("mistral"), tensor_parallel=RANKS, change=fault)
    assert right.first_beyond_rounding is None
    assert right.to_json()["arithmetic"] == "float32"
    assert found.passed
    assert found.tolerance == 1e-2
    assert found.to_json()["first_beyond_rounding"] == "decoder.final_layernorm"
    assert "of decoder.final_layernorm on rank 1, which are tolerated." in found.verdict
    several = replace(found.layers[0], ranks=(0, 1)).where
    assert several == "on ranks 0–1, which add up their parts"
