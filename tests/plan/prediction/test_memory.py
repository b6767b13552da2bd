"""Memory formulas against published ones, and against Megatron's own rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mimokit.plan.architecture import LanguageModel, MultimodalModel, Transformer, load_model
from mimokit.plan.architecture.parameters import dense_layer
from mimokit.plan.memory import (
    Held,
    layer_activations,
    micro_batches_in_flight,
    stage_memory,
    state_bytes,
    total_bytes,
)
from mimokit.plan.memory.held import held_parameters
from mimokit.plan.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    ParallelSizes,
)

GIB = 2**30

# arXiv 2205.05198, table 3 and figure 1: layers, hidden, heads, mbs, t, p, v and the GiB of
# weights with optimizer, of activations without any saving, and with selective recompute and
# sequence parallelism.
FIGURE_1 = {
    "22B": (48, 6144, 64, 4, 8, 1, 1, 45.5625, 59.25, 9.5625),
    "175B": (96, 12288, 96, 1, 8, 8, 3, 45.5625, 66.84375, 12.3515625),
    "530B": (105, 20480, 128, 1, 8, 35, 3, 31.640625, 114.0234375, 23.076171875),
    "1T": (128, 25600, 160, 1, 8, 64, 1, 32.958984375, 131.25, 26.5625),
}


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(
        layers, hidden, heads, heads, hidden // heads, 4 * hidden, gated=False, norm="layer"
    )


@pytest.mark.parametrize("name", FIGURE_1)
def test_figure_1_of_korthikanti_exactly(name: str) -> None:
    layers, hidden, heads, mbs, t, p, v, states, whole, selective = FIGURE_1[name]
    net, seq = gpt(layers, hidden, heads), 2048
    sizes = ParallelSizes(
        t, p, v, micro_batch=mbs, sequence_parallel=False, distributed_optimizer=False
    )
    held = Held(dense_layer(net).sharded * layers / (t * p))
    assert float(total_bytes(state_bytes(held, sizes, frozen=False))) / GIB == states
    alive = float(micro_batches_in_flight(sizes, 10**6, 0)) * layers / p

    def kept(sizes: ParallelSizes) -> float:
        layer = layer_activations(net, None, sizes, mbs * seq, seq, flash=False, dropout=True)
        return float(layer) * alive / GIB

    assert kept(sizes) == pytest.approx(whole, abs=1e-9)
    saved = replace(sizes, recompute=RECOMPUTE_SELECTIVE, sequence_parallel=True)
    assert kept(saved) == pytest.approx(selective, abs=1e-9)


def test_in_flight_is_1f1b() -> None:
    sizes = ParallelSizes(pipeline=4)
    assert [int(micro_batches_in_flight(sizes, 8, stage)) for stage in range(4)] == [4, 3, 2, 1]
    assert int(micro_batches_in_flight(sizes, 2, 0)) == 2


@pytest.mark.parametrize(
    ("sizes", "per_parameter"),
    [
        (ParallelSizes(data=8, distributed_optimizer=False), 18.0),
        (ParallelSizes(data=8), 6 + 12 / 8),
        (ParallelSizes(data=8, context=2), 6 + 12 / 16),
        (ParallelSizes(data=8, instances=4), 6 + 12 * 4 / 8),
        (ParallelSizes(data=8, fully_sharded=True), 18 / 8),
    ],
)
def test_state_bytes(sizes: ParallelSizes, per_parameter: float) -> None:
    states = state_bytes(Held(1000), sizes, frozen=False)
    assert float(total_bytes(states)) == pytest.approx(1000 * per_parameter)
    assert float(total_bytes(state_bytes(Held(1000), ParallelSizes(), frozen=True))) == 2000


def test_full_recompute_keeps_the_inputs() -> None:
    net = gpt(2, 64, 4)
    sizes = ParallelSizes(tensor=4, recompute=RECOMPUTE_FULL, sequence_parallel=False)
    assert float(layer_activations(net, None, sizes, 10, 10)) == 2 * 10 * 64
    cut = replace(sizes, sequence_parallel=True)
    assert float(layer_activations(net, None, cut, 10, 10)) == 2 * 10 * 64 / 4


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v2", "qwen3-30b-a3b"])
def test_stages_hold_the_whole_model_together(name: str) -> None:
    model = load_model(name)
    assert isinstance(model, LanguageModel)
    for pipeline in (1, 2, 4):
        held = [
            held_parameters(model, ParallelSizes(pipeline=pipeline), i) for i in range(pipeline)
        ]
        padding = (float(held_parameters(model, ParallelSizes(), 0).total)) - model.parameters
        total = sum(float(one.total) for one in held)
        assert total == pytest.approx(model.parameters + padding, abs=1)
        assert 0 <= padding < 2 * 128 * model.net.hidden


def test_an_array_of_layouts_is_each_of_them() -> None:
    model = load_model("qwen3-30b-a3b")
    assert isinstance(model, LanguageModel)
    tensor, pipeline = np.array([1, 2, 4]), np.array([1, 2, 4])
    many = ParallelSizes(tensor, pipeline, expert=4, data=8, micro_batch=2)
    together = total_bytes(stage_memory(model, many, 4096, 16, 0))
    for index in range(3):
        one = total_bytes(stage_memory(model, many.take(index), 4096, 16, 0))
        assert float(together[index]) == pytest.approx(float(one))


def test_a_frozen_encoder_holds_its_weights() -> None:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    branch = model.branches[0]
    parts = stage_memory(branch, ParallelSizes(data=8), 577, 1, 0, frozen=True)
    assert float(total_bytes(parts)) == 2 * branch.parameters


def test_a_colocated_encoder_holds_every_micro_batch() -> None:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    branch, sizes = model.branches[0], ParallelSizes(data=8)
    pipelined = stage_memory(branch, sizes, 577, 16, 0)
    colocated = stage_memory(branch, sizes, 577, 16, 0, held_for=16)
    assert float(colocated["activations"]) == 16 * float(pipelined["activations"])


def test_layer_of_grouped_queries_and_swiglu() -> None:
    """Flash attention, no dropout: s b / t (8 h + 4 d (a + k) + 6 f) with sequence parallelism."""
    model = load_model("llama-3-70b")
    assert isinstance(model, LanguageModel)
    layer = layer_activations(model.net, None, ParallelSizes(tensor=4), 8192, 8192)
    expected = 8192 / 4 * (8 * 8192 + 4 * 128 * (64 + 8) + 6 * 28672)
    assert float(layer) == expected
