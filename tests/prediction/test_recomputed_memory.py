"""What a recipe recomputes is not kept: layers whole, and modules by Megatron's names."""

from typing import Any

import pytest

from mimokit.architecture.layer_work.saved_activations import layer_activations, saved_tensors
from mimokit.architecture.layers_on_stage import StageLayers
from mimokit.config.recipe import RecipeConfig
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import Layout, Prediction, Workload, predict
from mimokit.prediction.memory import Storage, stage_memory
from tests.prediction.shipped import language_model
from tests.rows import rows

SEQ, STAGES, TENSOR = 4096, 4, 2


def predicted(name: str, **facts: Any) -> Prediction:
    sizes = ParallelSizes(TENSOR, STAGES, data=2)
    work = Workload(SEQ, 64, recipe=RecipeConfig(**facts))
    layout = Layout("homogeneous", {name: sizes})
    return predict(language_model(name), layout, work, gpu="h100")


def part(name: str, which: str = "activations", **facts: Any) -> float:
    """Return bytes of the first stage, which holds as many micro-batches as there are stages."""
    expert = 1 if language_model(name).net.moe is None else 2
    sizes = ParallelSizes(TENSOR, STAGES, data=2, expert=expert)
    parts = stage_memory(language_model(name), sizes, SEQ, 32, 0, storage=Storage(**facts))
    return float(parts[which])


@rows("layers", 0, 1, 3, 8, 50)
def test_layers_that_are_recomputed_keep_their_input(layers: int) -> None:
    """8 layers are on a stage, of 4 micro-batches at a time on the first one."""
    name, net = "llama-3-8b", language_model("llama-3-8b").net
    each = float(layer_activations(net, None, ParallelSizes(TENSOR), SEQ, SEQ))
    inputs = 2 * net.hidden * SEQ / TENSOR
    freed = min(layers, 8) * STAGES * (each - inputs)
    assert part(name) - part(name, recompute_layers=layers) == pytest.approx(freed)
    rebuilt = part(name, "buffers", recompute_layers=layers) - part(name, "buffers")
    assert rebuilt == pytest.approx(each if layers else 0.0)
    before, after = predicted(name), predicted(name, recompute_layers=layers)
    assert (after.seconds > before.seconds) == (after.peak_memory < before.peak_memory)
    assert (after.seconds > before.seconds) == bool(layers)


FREED = {
    ("llama-3-8b", "mlp"): 3 * 14336 / TENSOR,
    ("llama-3-8b", "layernorm"): 2 * 4096 / TENSOR,
    ("llama-3-8b", "core_attn"): 0.0,
    ("llama-3-8b", "moe_act"): 0.0,
    ("qwen3-30b-a3b", "moe_act"): 8 * 768 / TENSOR,
    ("qwen3-30b-a3b", "mlp"): 0.0,
    ("qwen3-30b-a3b", "moe"): (8 * (3 * 768 + 2 * 2048) + 2 * 128) / TENSOR,
    ("deepseek-v3", "mla_up_proj"): 128 * (2 * 192 + 128) / TENSOR,
    ("deepseek-v3", "shared_experts"): 3 * 2048 / TENSOR,
}
"""Numbers of 16 bits per token of a layer (of experts, where there are), by hand."""


@rows("name, module", *FREED)
def test_modules_that_are_recomputed_are_not_kept(name: str, module: str) -> None:
    net = language_model(name).net
    sizes = ParallelSizes(TENSOR)
    kept, left = (
        float(layer_activations(net, net.moe, sizes, SEQ, SEQ, without=without))
        for without in ((), (module,))
    )
    assert kept - left == pytest.approx(2 * SEQ * FREED[name, module])
    again = {"recompute_modules": (module,)}
    fewer = part(name) - part(name, **again)
    assert (fewer > 0) == (FREED[name, module] > 0)
    rebuilt = part(name, "buffers", **again) - part(name, "buffers")
    assert rebuilt == pytest.approx(kept - left)


def test_unfused_scores_are_not_kept_where_the_core_is_recomputed() -> None:
    net = language_model("llama-3-8b").net
    kept, left, fused = (
        float(layer_activations(net, None, ParallelSizes(), SEQ, SEQ, flash=flash, without=without))
        for flash, without in ((False, ()), (False, ("core_attn",)), (True, ()))
    )
    assert left == fused < kept


def test_all_modules_together_free_no_more_than_a_layer() -> None:
    names = ("layernorm", "mla_up_proj", "moe", "moe_act", "shared_experts", "mlp", "core_attn")
    for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"):
        net = language_model(name).net
        left = float(layer_activations(net, net.moe, ParallelSizes(TENSOR), SEQ, 0, without=names))
        assert 2 * net.hidden * SEQ / TENSOR < left
        freed = {
            each for saved in saved_tensors(net, net.moe, ParallelSizes()) for each in saved.again
        }
        assert freed <= set(names)


def test_dense_layers_come_first() -> None:
    layers = StageLayers(3, 5)
    assert [vars(layers.first(count)) for count in (0, 2, 4, 9)] == [
        {"dense": 0, "expert": 0}, {"dense": 2, "expert": 0},
        {"dense": 3, "expert": 1}, {"dense": 3, "expert": 5},
    ]  # fmt: skip
