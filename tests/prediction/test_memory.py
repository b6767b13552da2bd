"""Memory formulas against published ones, and against Megatron's own rules."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from mimokit.architecture import Transformer
from mimokit.architecture.layer_work.saved_activations import joining_activations, layer_activations
from mimokit.architecture.rank_parameters import rank_parameters
from mimokit.architecture.transformer import layer_parameters
from mimokit.config.sizes import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, ParallelSizes
from mimokit.planning import schedule
from mimokit.planning.schedule import plan_schedule, stage_graph
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.memory import (
    RankParameters,
    Storage,
    memory_lines,
    micro_batches_in_flight,
    micro_batches_through,
    stage_memory,
    state_bytes,
    total_bytes,
)
from mimokit.prediction.step_time import System, load_software
from tests.networks import GPT, language, stack
from tests.prediction.shipped import language_model, llava
from tests.rows import rows

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
    return stack(*gpt_sizes(layers, hidden, heads), **GPT, dropout=0.1, score_dropout=0.1)


def gpt_sizes(layers: int, hidden: int, heads: int) -> tuple[int, ...]:
    return layers, hidden, heads, heads, hidden // heads, 4 * hidden


@rows("name", *FIGURE_1)
def test_figure_1_of_korthikanti_exactly(name: str) -> None:
    layers, hidden, heads, mbs, t, p, v, states, whole, selective = FIGURE_1[name]
    net, seq = gpt(layers, hidden, heads), 2048
    sizes = ParallelSizes(
        t, p, v, micro_batch=mbs, sequence_parallel=False, distributed_optimizer=False
    )
    held = RankParameters(layer_parameters(net, None).sharded * layers / (t * p))
    assert float(total_bytes(state_bytes(held, sizes, frozen=False))) / GIB == states
    alive = float(micro_batches_in_flight(sizes, 10**6, 0)) * layers / p

    def kept(sizes: ParallelSizes) -> float:
        layer = layer_activations(net, None, sizes, mbs * seq, seq, flash=False)
        return float(layer) * alive / GIB

    assert kept(sizes) == pytest.approx(whole, abs=1e-9)
    saved = replace(sizes, recompute=RECOMPUTE_SELECTIVE, sequence_parallel=True)
    assert kept(saved) == pytest.approx(selective, abs=1e-9)


def test_in_flight_is_1f1b() -> None:
    sizes = ParallelSizes(pipeline=4)
    assert [int(micro_batches_in_flight(sizes, 8, stage)) for stage in range(4)] == [4, 3, 2, 1]
    assert int(micro_batches_in_flight(sizes, 2, 0)) == 2


@rows("micro_batches, stages", *itertools.product([1, 3, 8], [1, 2, 4]))
def test_in_flight_is_what_the_schedule_plan_holds(stages: int, micro_batches: int) -> None:
    sizes = ParallelSizes(pipeline=stages)
    pipeline = plan_schedule(stage_graph({"language": ()}, {"language": stages}), micro_batches)
    for stage in range(stages):
        alive = int(micro_batches_in_flight(sizes, micro_batches, stage))
        assert alive == most_alive(pipeline.steps(stage))


@rows("micro_batches, chunks", *itertools.product([4, 8, 32], [2, 3, 5]))
def test_in_flight_is_what_megatrons_interleaved_schedule_holds(
    chunks: int, micro_batches: int
) -> None:
    """Chunks of a stage, and micro-batches that wait before the first chunk for its gradient."""
    sizes = ParallelSizes(pipeline=4, virtual=chunks)
    graph = stage_graph({"language": ()}, {"language": 4}, {"language": chunks})
    for stage in range(4):
        steps = list(interleaved(stage, 4, chunks, micro_batches))
        ours = schedule.interleaved(graph, stage, micro_batches)
        assert [(kind, (m, place // 4)) for kind, place, m in ours] == steps
        alive = float(micro_batches_in_flight(sizes, micro_batches, stage))
        assert most_alive(steps) == pytest.approx(alive * chunks)
    first = ((kind, m) for kind, m in interleaved(0, 4, chunks, micro_batches) if m[1] == 0)
    assert most_alive(first) == int(micro_batches_through(sizes, micro_batches))


@rows("branches", {"images": 1}, {"images": 2}, {"images": 1, "sound": 2})
def test_encoders_hold_what_is_on_its_way_through_all_stages(branches: dict[str, int]) -> None:
    pipelines = {**branches, "language": 4}
    topology = dict.fromkeys(branches, ("language",)) | {"language": ()}
    graph = stage_graph(topology, pipelines)
    pipeline = plan_schedule(graph, 16)
    deepest = max(branches.values())
    for name in branches:
        first = next(s for s in graph.stages if s.module == name and s.place == 0)
        steps = [
            (action.kind, action.microbatch)
            for action in pipeline.actions(first.index)
            if action.kind in ("forward", "backward")
        ]
        sizes = ParallelSizes(pipeline=4)
        assert most_alive(steps) == int(micro_batches_through(sizes, 16)) + deepest


def most_alive(steps: Iterable[tuple[str, object]]) -> int:
    alive: set[object] = set()
    most = 0
    for kind, what in steps:
        (alive.add if kind == "forward" else alive.remove)(what)
        most = max(most, len(alive))
    return most


def interleaved(
    stage: int, stages: int, chunks: int, micro_batches: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (kind, (micro-batch, chunk)) in the order of Megatron's interleaved schedule."""
    import_module("mimokit.engine.megatron")  # opens Megatron for a CPU
    from megatron.core.pipeline_parallel.schedules import (
        get_pp_rank_microbatches,
        get_schedule_table,
    )

    group = SimpleNamespace(size=lambda: stages, rank=lambda: stage)
    peers = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=chunks)
    total, _, warmup, _ = get_pp_rank_microbatches(
        micro_batches, chunks, stages, p2p_communicator=peers
    )
    table = get_schedule_table(micro_batches, chunks, stages)
    back = [(m, chunks - 1 - chunk) for m, chunk in table]
    for index in range(total):
        yield "forward", table[index]
        if index >= warmup:
            yield "backward", back[index - warmup]
    for index in range(total - warmup, total):
        yield "backward", back[index]


def test_an_encoder_in_front_of_chunks_holds_twice_as_many() -> None:
    model = llava()
    held = {}
    for chunks in (1, 2):
        own = ParallelSizes(2, 4, chunks, data=2)
        layout = Layout(
            "homogeneous", {"images": ParallelSizes(2, data=2), model.language.name: own}
        )
        found = predict(model, layout, Workload(2048, 64))
        held[chunks] = found.memory["images"]["activations"]
    assert held[2] == 2 * held[1]


def test_a_shallow_encoder_waits_for_the_deepest() -> None:
    model = llava()
    second = replace(model.branches[0], name="more")
    both = replace(model, branches=(model.branches[0], second))
    held = {}
    for depth in (1, 2):
        layout = Layout(
            "heterogeneous",
            {
                "images": ParallelSizes(data=2),
                "more": ParallelSizes(pipeline=depth, data=2),
                model.language.name: ParallelSizes(2, 4, data=2),
            },
        )
        found = predict(both, layout, Workload(2048, 64))
        held[depth] = found.memory["images"]["activations"]
    assert held[2] == pytest.approx(held[1] * 6 / 5)


def test_weights_in_8_bits() -> None:
    """Matrices of layers alone: embedding, output layer and norms stay in 16 bits."""
    model = language_model("llama-3-8b")
    sizes = ParallelSizes(2, data=2)
    plain = stage_memory(model, sizes, 4096, 8, 0)["weights"]
    short = stage_memory(model, sizes, 4096, 8, 0, storage=Storage(2, 1.0, 1.0))["weights"]
    layer = layer_parameters(model.net, None)
    assert float(plain - short) == model.net.layers * layer.sharded / 2
    (line,) = (
        line
        for line in memory_lines(model, sizes, 4096, 8, 0, storage=Storage(2, 1.0, 1.0))
        if line.part == "weights"
    )
    assert math.prod(line.factors.values()) == pytest.approx(float(short))
    assert 1 < line.factors["bytes"] < 1.2


def test_tokens_further_on_are_kept_on_the_last_stage() -> None:
    """Each has the activations of a layer of the model, those of its joining, and logits."""
    plain = language(*gpt_sizes(4, 64, 4), **GPT, vocab=1024)
    sizes = ParallelSizes(pipeline=2)
    both = plain, replace(plain, next_token_layers=2)
    first, last = (
        [stage_memory(model, sizes, 128, 1, stage) for model in both] for stage in (0, 1)
    )
    assert first[0] == first[1]
    assert last[1]["logits"] == 3 * last[0]["logits"]
    joining = joining_activations(plain.net, sizes, 128, 2, 2)
    assert last[1]["activations"] == 2 * (last[0]["activations"] + joining)


def test_who_keeps_weights_in_8_bits() -> None:
    """Megatron-Bridge's fp8 recipes of dense models; mixtures keep a transposed copy."""
    h100 = load_hardware("h100")
    for software, precision, each in (
        ("megatron-bridge", "fp8", 1.0),
        ("megatron-bridge", "bf16", 2.0),
        ("megatron-core", "fp8", 2.0),
    ):
        system = System(h100, load_software(software), precision)
        assert system.storage.matrix_weight == each
    mixture = language_model("qwen3-30b-a3b")
    eight = System(h100, load_software("megatron-bridge"), "fp8").storage
    found = stage_memory(mixture, ParallelSizes(expert=8, data=8), 4096, 8, 0, storage=eight)
    half = stage_memory(mixture, ParallelSizes(expert=8, data=8), 4096, 8, 0)
    assert float(found["weights"]) == float(half["weights"])


@rows(
    "sizes, per_parameter",
    (ParallelSizes(data=8, distributed_optimizer=False), 18.0),
    (ParallelSizes(data=8), 6 + 12 / 8),
    (ParallelSizes(data=8, context=2), 6 + 12 / 16),
    (ParallelSizes(data=8, instances=4), 6 + 12 * 4 / 8),
    (ParallelSizes(data=8, fully_sharded=True), 18 / 8),
)
def test_state_bytes(sizes: ParallelSizes, per_parameter: float) -> None:
    states = state_bytes(RankParameters(1000), sizes, frozen=False)
    assert float(total_bytes(states)) == pytest.approx(1000 * per_parameter)
    assert (
        float(total_bytes(state_bytes(RankParameters(1000), ParallelSizes(), frozen=True))) == 2000
    )


def test_fp32_training_has_numbers_of_twice_the_width_and_no_second_weight() -> None:
    model, seq = language(*gpt_sizes(2, 64, 4), **GPT, vocab=256), 128
    half, full = (
        System(load_hardware("h100"), load_software("megatron-core"), precision).storage
        for precision in ("bf16", "fp32")
    )
    sizes = ParallelSizes(distributed_optimizer=False, sequence_parallel=False)
    own, other = (stage_memory(model, sizes, seq, 1, 0, storage=each) for each in (half, full))
    assert float(other["activations"]) == 2 * float(own["activations"])
    assert float(other["weights"]) == 2 * float(own["weights"])
    assert (half.optimizer, full.optimizer) == (12, 8)
    assert (half.gradient, full.gradient) == (4, 4)


def test_full_recompute_keeps_the_inputs() -> None:
    net = gpt(2, 64, 4)
    sizes = ParallelSizes(tensor=4, recompute=RECOMPUTE_FULL, sequence_parallel=False)
    assert float(layer_activations(net, None, sizes, 10, 10)) == 2 * 10 * 64
    cut = replace(sizes, sequence_parallel=True)
    assert float(layer_activations(net, None, cut, 10, 10)) == 2 * 10 * 64 / 4


@rows("name", "llama-3-70b", "deepseek-v2", "qwen3-30b-a3b")
def test_stages_hold_the_whole_model_together(name: str) -> None:
    model = language_model(name)
    for pipeline in (1, 2, 4):
        held = [
            rank_parameters(model, ParallelSizes(pipeline=pipeline), i) for i in range(pipeline)
        ]
        padding = (float(rank_parameters(model, ParallelSizes(), 0).total)) - model.parameters
        total = sum(float(one.total) for one in held)
        assert total == pytest.approx(model.parameters + padding, abs=1)
        assert 0 <= padding < 2 * 128 * model.net.hidden


def test_an_array_of_layouts_is_each_of_them() -> None:
    model = language_model("qwen3-30b-a3b")
    tensor, pipeline = np.array([1, 2, 4]), np.array([1, 2, 4])
    many = ParallelSizes(tensor, pipeline, expert=4, data=8, micro_batch=2)
    together = total_bytes(stage_memory(model, many, 4096, 16, 0))
    for index in range(3):
        one = total_bytes(stage_memory(model, many.take(index), 4096, 16, 0))
        assert float(together[index]) == pytest.approx(float(one))


def test_a_frozen_encoder_holds_its_weights() -> None:
    model = llava()
    branch = model.branches[0]
    parts = stage_memory(branch, ParallelSizes(data=8), 577, 1, 0, frozen=True)
    assert float(total_bytes(parts)) == 2 * branch.parameters


def test_a_frozen_language_model_passes_gradients_to_its_encoder() -> None:
    """Neither gradients nor optimizer; of activations what the gradient of its input takes."""
    model = llava()
    sizes, name = ParallelSizes(data=8), model.language.name
    layout = Layout("colocated", {"images": sizes, name: sizes})
    frozen = Workload(2048, 64, frozen=frozenset({name}))
    found = predict(model, layout, frozen)
    assert not {"gradients", "optimizer"} & set(found.memory[name])
    net = model.language.net
    inputs = 2 * (2 * net.hidden + net.ffn) * 2048 * net.layers
    whole = predict(model, layout, Workload(2048, 64)).memory[name]
    assert whole["activations"] - found.memory[name]["activations"] == pytest.approx(inputs)
    nothing = Workload(2048, 64, frozen=frozenset({name, "images"}))
    assert set(predict(model, layout, nothing).memory[name]) == {"weights", "logits"}
    total = sum(sum(parts.values()) for parts in found.memory.values())
    assert found.peak_memory == pytest.approx(total)


@rows("tensor, context, sequence_parallel", *itertools.product([1, 2, 8], [1, 4], [False, True]))
def test_all_rows_of_korthikantis_table_2(
    tensor: int, context: int, sequence_parallel: bool
) -> None:
    """arXiv 2205.05198, table 2: s b h times what follows; s / c with context parallelism."""
    net, b, s = gpt(1, 1024, 16), 2, 2048
    h, a, t = net.hidden, net.heads, tensor
    scores = 5 * a * s / (h * t)
    ends = 10 / t if sequence_parallel else 10
    rows = (ends + 24 / t + scores, ends + 24 / t, 2 / t if sequence_parallel else 2)
    for recompute, row in enumerate(rows):
        sizes = ParallelSizes(
            t, context=context, recompute=recompute, sequence_parallel=sequence_parallel
        )
        kept = layer_activations(net, None, sizes, b * s / context, s, flash=False)
        assert float(kept) == pytest.approx(s / context * b * h * row)


def test_a_colocated_encoder_holds_every_micro_batch() -> None:
    model = llava()
    branch, sizes = model.branches[0], ParallelSizes(data=8)
    pipelined = stage_memory(branch, sizes, 577, 16, 0)
    colocated = stage_memory(branch, sizes, 577, 16, 0, held_for=16)
    assert float(colocated["activations"]) == 16 * float(pipelined["activations"])


def test_layer_of_grouped_queries_and_swiglu() -> None:
    """Flash attention, no dropout: s b / t (8 h + 4 d (a + k) + 6 f) with sequence parallelism."""
    model = language_model("llama-3-70b")
    layer = layer_activations(model.net, None, ParallelSizes(tensor=4), 8192, 8192)
    expected = 8192 / 4 * (8 * 8192 + 4 * 128 * (64 + 8) + 6 * 28672)
    assert float(layer) == expected
