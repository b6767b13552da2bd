"""One layer's seconds: what hides collectives, what experts and gradients add, what waits."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mimokit.architecture import MixtureOfExperts
from mimokit.architecture.layer_work.collectives import layer_collectives
from mimokit.architecture.layer_work.products import layer_products
from mimokit.architecture.tensor_rows import INNER, NORMED_AGAIN, ROUTED, ROUTED_INNER
from mimokit.architecture.transformer import layer_parameters
from mimokit.axes import Axis
from mimokit.config.recipe import Graphs
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.calibration import fit_calibration
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import ModuleInput, System, load_software, module_step
from mimokit.prediction.step_time.collectives import exchange_seconds, gather, tensor_seconds
from mimokit.prediction.step_time.constants import value
from mimokit.prediction.step_time.layer import LayerWork, layer_work
from mimokit.prediction.step_time.layer_input import LayerInput
from mimokit.prediction.step_time.recipe import Recipe
from mimokit.prediction.step_time.system import HALF
from tests.networks import GPT, stack
from tests.prediction.shipped import language_model, product_seconds
from tests.prediction.test_calibration import Machine
from tests.rows import rows

H100 = load_hardware("h100")
BRIDGE = load_software("megatron-bridge")
NET = stack(32, 4096, 32, 8, 128, 14336)
EXPERTS = MixtureOfExperts(experts=64, top_k=4, ffn=1024)
TOKENS = 8192.0


def exposed(
    overlap: str, t: int, matrix: float, moe: MixtureOfExperts | None = None
) -> tuple[float, float]:
    system = System(H100, replace(BRIDGE, tensor_overlap=overlap), "bf16")
    sizes = ParallelSizes(t)
    collectives = layer_collectives(NET, moe, sizes, "forward")
    moved = exchange_seconds(collectives, moe, sizes, TOKENS, system)[Axis.TENSOR].seconds
    found = tensor_seconds(moved, moe, sizes, matrix, system)
    return float(found[0]), float(found[1])


def one_gather(t: int) -> float:
    return float(gather(H100, HALF * NET.hidden * TOKENS, t, 1))


@rows("overlap", "none", "async", "pipelined")
def test_one_rank_has_no_collectives(overlap: str) -> None:
    assert exposed(overlap, 1, 1.0) == (0, 0)


def plain(heads: int = 16, micro_batch: int = 1, t: int = 1, **changes: float) -> LayerWork:
    """Return a layer of GPT on A100 with the stack of 2021, changed."""
    net = stack(1, 64 * heads, heads, heads, 64, 256 * heads, **GPT)
    sizes = ParallelSizes(t, micro_batch=micro_batch, sequence_parallel=False)
    software = replace(load_software("megatron-2021"), **changes)  # type: ignore[arg-type]
    system = System(load_hardware("a100"), software, "fp16")
    return layer_work(LayerInput(net, None, sizes, 1024.0 * micro_batch, 512.0, system))


@rows("heads, micro_batch, t", (16, 1, 8), (6, 1, 1), (16, 1, 16))
def test_a_softmax_that_does_not_fit_its_blocks_takes_longer_to_launch(
    heads: int, micro_batch: int, t: int
) -> None:
    launch = 1.0  # long enough that nothing else counts
    uneven = plain(heads, micro_batch, t, host_layer=launch, host_softmax=0.5).forward.time
    assert float(uneven.total - uneven.tensor) == pytest.approx(1.5)
    even = plain(heads, 4 * micro_batch, t, host_layer=launch, host_softmax=0.5).forward.time
    assert float(even.total - even.tensor) == pytest.approx(1.0)


def test_collectives_come_on_top_where_the_host_does_not_launch_ahead() -> None:
    waiting = plain(t=4, host_layer=1.0, launches_ahead=False).forward.time
    ahead = plain(t=4, host_layer=1.0, launches_ahead=True).forward.time
    assert float(waiting.tensor) > 0
    assert float(waiting.total) == pytest.approx(float(ahead.total + waiting.tensor))
    assert float(ahead.total) == pytest.approx(1.0)


def test_unfused_scores_move_more_bytes_backward() -> None:
    layer = plain()
    memory = load_hardware("a100").memory_bandwidth * load_hardware("a100").efficiency.memory
    scores = 16 * 1024 * 1024
    more = float(layer.backward.time.attention - 2 * layer.forward.time.attention)
    assert more == pytest.approx((19 - 2 * 13) * scores / memory)


def test_learned_positions_turn_nothing() -> None:
    turned = plain(rotates=True).forward.time.memory - plain(rotates=False).forward.time.memory
    memory = load_hardware("a100").memory_bandwidth * load_hardware("a100").efficiency.memory
    assert float(turned) == pytest.approx(2 * HALF * 2 * 1024 * 1024 / memory)


def test_in_pieces_beside_long_products_one_piece_stays() -> None:
    forward, backward = exposed("pipelined", 4, matrix=1.0)
    assert forward == pytest.approx(4 * one_gather(4) / 4)
    assert backward == pytest.approx(2 * one_gather(4) / 4)


def test_what_products_are_too_short_for_stays_too() -> None:
    whole = 4 * one_gather(4)
    forward, _ = exposed("pipelined", 4, matrix=0.0)
    assert forward == pytest.approx(whole)
    assert exposed("async", 4, matrix=0.0) == pytest.approx((whole, 1.5 * whole))
    assert exposed("none", 4, matrix=0.0) == pytest.approx((whole, whole))


def test_products_of_four_bits_and_experts_are_not_in_pieces() -> None:
    assert not System(load_hardware("b200"), BRIDGE, "nvfp4").pipelines_tensor
    assert System(load_hardware("b200"), BRIDGE, "mxfp8").pipelines_tensor
    forward, _ = exposed("pipelined", 4, 1.0, EXPERTS)
    assert forward == pytest.approx(2 * one_gather(4))  # those around attention, whole


def test_products_visit_all_weights_once() -> None:
    for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"):
        model = language_model(name)
        for moe in (None, model.net.moe):
            found = layer_products(model.net, moe, ParallelSizes(1))
            halves = layer_products(model.net, moe, ParallelSizes(2))
            weights = sum(float(one.weights) for one in found)
            layer = layer_parameters(model.net, moe)
            idle = 0 if moe is None else layer.expert * (1 - moe.top_k / moe.experts)
            assert weights == pytest.approx(layer.total - idle, rel=1e-3)  # norms, biases aside
            assert sum(float(one.weights) for one in halves) < weights


def test_narrow_experts_move_more_per_operation() -> None:
    """A narrow expert writes as much as a wide one and multiplies less."""

    def written(moe: MixtureOfExperts | None, tensors: tuple[str, str]) -> float:
        products = layer_products(NET, moe, ParallelSizes())
        own = [product for product in products if product.of in tensors]
        outputs = sum(float(product.rows * product.outputs) for product in own)
        return outputs / sum(float(product.weights) for product in own)

    assert written(EXPERTS, (ROUTED, ROUTED_INNER)) > 2 * written(None, (NORMED_AGAIN, INNER))


@rows("precision, graphs, kernels", ("bf16", "none", 3), ("fp8", "none", 6), ("mxfp8", "full", 4.5))
def test_each_expert_of_a_rank_has_kernels_of_its_own(
    precision: str, graphs: Graphs, kernels: float
) -> None:
    """One per product, and casts, of which one backward serves two; half the time in a graph."""
    recipe = Recipe(graphs=graphs)
    system = System(load_hardware("b200"), BRIDGE, precision, recipe=recipe)
    busy = 64 * TOKENS  # so many that products take longer than they are launched
    free = replace(system, recipe=replace(recipe, fused_experts=True))
    sizes = ParallelSizes(expert=8, data=64)
    own, fused = (
        sum(float(term.seconds) for term in (*work.forward.terms, *work.backward.terms)
            if "products of experts" in term.name)
        for layer in (LayerInput(NET, EXPERTS, sizes, busy, 2048.0, one) for one in (system, free))
        for work in (layer_work(layer),)
    )  # fmt: skip
    assert own - fused == pytest.approx(2 * kernels * 8 * value("expert kernel"))


def test_adding_gradients_hides_in_products_and_not_where_weights_are_sharded() -> None:
    system = System(H100, BRIDGE, "bf16")

    def seconds(tokens: float, sharded: bool = False) -> float:
        sizes = ParallelSizes(data=64, fully_sharded=sharded)
        work = layer_work(LayerInput(NET, None, sizes, tokens, 2048.0, system)).weights
        return sum(float(term.seconds) for term in work.terms if "accumulation" in term.name)

    assert seconds(TOKENS) == 0
    moved = (
        2
        * 2
        * layer_parameters(NET, None).sharded
        / (H100.memory_bandwidth * H100.efficiency.memory)
    )
    assert seconds(1.0) == pytest.approx(moved, rel=1e-2)
    assert seconds(TOKENS, sharded=True) == seconds(1.0, sharded=True) > seconds(1.0)


def test_a_frozen_model_computes_no_gradients_of_weights() -> None:
    model = language_model("llama-3-8b")
    model = replace(model, vocab=128)  # logits and their loss count too
    system = System(H100, BRIDGE, "bf16")
    trained, frozen = (
        module_step(model, ParallelSizes(data=8), ModuleInput(4096, 1, on), system, 8)
        for on in (True, False)
    )
    products = product_seconds(model.net, ParallelSizes(data=8), 4096.0, system)
    less = float(trained.work.matrix - frozen.work.matrix)
    assert less == pytest.approx(8 * model.net.layers * float(products), rel=1e-3)


def test_hosts_of_tensor_parallel_ranks_wait_for_each_other() -> None:
    system = System(H100, replace(BRIDGE, host_layer=1e-3, host_collective=1e-3), "bf16")
    alone, together = (
        layer_work(LayerInput(NET, None, ParallelSizes(t), 64.0, 32.0, system)).forward.time.total
        for t in (1, 8)
    )
    assert float(alone) == pytest.approx(1e-3)
    assert float(together) == pytest.approx(5e-3)
    plain = ParallelSizes(np.array([8]), sequence_parallel=False)
    layer = LayerInput(NET, None, plain, 64.0, 32.0, system)
    assert float(layer_work(layer).forward.time.total[0]) == pytest.approx(3e-3)


def test_a_chip_sustains_the_same_in_all_products_that_have_it() -> None:
    for product, chip in (("gb200", "b200"), ("gb300", "b300"), ("h200", "h100")):
        rates = [
            one.peak_flops["bf16"] * one.efficiency.matrix["bf16"]
            for one in (load_hardware(product), load_hardware(chip))
        ]
        assert rates[0] == pytest.approx(rates[1], rel=1e-2)


@rows("shared", 0, 512)
def test_collectives_of_a_layer_of_experts(shared: int) -> None:
    """On 2 tensor and 4 expert parallel ranks; routed experts are reached by dispatch alone."""
    moe = replace(EXPERTS, shared_ffn=shared)
    sizes = ParallelSizes(2, data=8, expert=4, sequence_parallel=False)
    around = 2 if shared else 1  # attention, and the shared experts
    expected = {("all-reduce", 4096.0): around, ("all-to-all", 2048.0): 2}
    for recompute, ways in ((0, 1), (2, 2)):
        found: Counter[tuple[str, float]] = Counter()
        for each in layer_collectives(NET, moe, replace(sizes, recompute=recompute), "backward"):
            found[each.kind, float(each.numbers)] += int(each.count)
        assert +found == {key: ways * count for key, count in expected.items()}
    alone = layer_collectives(NET, moe, replace(sizes, expert=1), "forward")
    assert sum(each.count for each in alone if each.axis == Axis.EXPERT) == 0


@rows("width", 32, 512)
def test_narrow_products_take_as_long_as_the_calibrated_machine_does(width: int) -> None:
    """The machine needs 1 + 32 / width times as long; every matrix here is `width` wide or high."""
    machine = Machine()
    hardware = replace(fit_calibration(machine.measurements()).hardware, memory_bandwidth=1e18)
    system = System(hardware, load_software("megatron-core"), "fp32")
    system = replace(system, software=replace(system.software, matrix_share=1.0))
    net = stack(1, width, 1, 1, width, width, **GPT)
    rate = machine.peak / (1 + machine.half_width / width)
    expected = 2 * TOKENS * 6 * width**2 / rate
    assert float(product_seconds(net, ParallelSizes(), TOKENS, system)) == pytest.approx(
        expected, rel=1e-6
    )
