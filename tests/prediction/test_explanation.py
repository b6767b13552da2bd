"""What an expert checks by hand: the figures of an explanation, and what follows from them."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mimokit.architecture import load_model
from mimokit.config.errors import ConfigError
from mimokit.config.recipe import RecipeConfig
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import RECOMPUTE_FULL, ParallelSizes
from mimokit.prediction import EncoderInput, Layout, Prediction, Workload, predict
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import System, load_software
from mimokit.prediction.step_time.collectives import bandwidth
from mimokit.prediction.step_time.layer import layer_work
from mimokit.prediction.step_time.layer_input import LayerInput
from tests.prediction.shipped import language_model, llava
from tests.rows import rows

H100 = load_hardware("h100")
WORKLOAD = Workload(2048, 64, inputs={"images": EncoderInput(577)})
HIGHEST_SHARE = 0.83
"""Of peak arithmetic that any product of a layer reaches (docs/predictor.md)."""


def predicted(
    own: ParallelSizes,
    encoder: ParallelSizes | None = None,
    mode: DeploymentMode = "homogeneous",
    workload: Workload = WORKLOAD,
) -> Prediction:
    sizes = {"images": encoder or own.in_first_stage, llava().language.name: own}
    return predict(llava(), Layout(mode, sizes), workload, gpu="h100")


@rows(
    "own",
    ParallelSizes(data=8),
    ParallelSizes(2, data=4, recompute=RECOMPUTE_FULL),
    ParallelSizes(2, 4, data=2),
    ParallelSizes(4, context=2, data=2),
)
def test_rows_add_up_to_the_module(own: ParallelSizes) -> None:
    found = predicted(own)
    language = found.explain().of(llava().language.name)
    parts = {row.part for row in language}
    assert {"matrix products", "attention", "elementwise kernels"} <= parts
    step = [row.seconds for row in language if row.way == "step"]
    passes = sum(row.seconds for row in language if row.way != "step")
    own_parts = ("matrix", "attention", "memory", "tensor", "context", "expert", "host")
    assert passes == pytest.approx(sum(found.parts[name] for name in own_parts), rel=1e-6)
    assert all(seconds >= 0 for seconds in step)
    assert sum(step) > 0


def test_every_product_is_operations_over_a_rate_that_products_reach() -> None:
    rows = predicted(ParallelSizes(2, data=4)).explain().rows
    products = [row for row in rows if row.what.startswith("product with")]
    assert len(products) == 2 * 3 * 4  # of each module: forward, gradients of inputs and weights
    for row in products:
        (piece,) = row.pieces
        assert piece.amount == row.operations
        assert row.seconds == pytest.approx(row.count * row.operations * piece.each)
        assert 1 / piece.each <= HIGHEST_SHARE * H100.peak_flops["bf16"]
        assert "fitted" in row.assumed
    language = [row for row in products if "32" not in row.module]
    assert language


def test_the_text_names_each_module_and_what_nobody_stated() -> None:
    found = predicted(ParallelSizes(2, data=4)).explain()
    text = str(found)
    assert "Not stated in runtime.recipe: attention_8bit, graphs" in text
    assert "images: " in text
    assert "gathers and scatters of tensor parallelism" in text
    assert found.to_json()["rows"][0]["module"] == "images"


def test_a_prediction_made_by_hand_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="make it with predict"):
        replace(predicted(ParallelSizes(data=8)), work=None).explain()


def test_tensor_parallelism_costs_its_ring_time_with_many_tokens() -> None:
    """The products, norms and scores of both ranks take as long as those of one."""
    net = language_model("llama-3-8b")
    software = replace(load_software("megatron-bridge"), tensor_overlap="none")
    system, tokens, t = System(H100, software), 2.0**20, 2
    alone, cut = (
        float(
            layer_work(LayerInput(net.net, None, each, tokens, 2048.0, system)).forward.time.total
        )
        for each in (ParallelSizes(1), ParallelSizes(t))
    )
    ring = 4 * 2 * net.net.hidden * tokens * (t - 1) / t / float(bandwidth(H100, t, 1))
    assert cut - alone / t == pytest.approx(ring, rel=0.01)


@rows("t", 2, 4, 8)
def test_cutting_a_vision_layer_adds_launches_and_bytes_alone(t: int) -> None:
    """A ViT-L: at most 100 microseconds for each collective, and the time of its bytes."""
    net = llava().branches[0].encoder.net
    system = System(H100, load_software("megatron-bridge"))
    sizes = [ParallelSizes(n, sequence_parallel=False) for n in (1, t)]
    alone, cut = (layer_work(LayerInput(net, None, one, 577.0, 577.0, system)) for one in sizes)
    more = sum(
        float(getattr(cut, way).time.total - getattr(alone, way).time.total)
        for way in ("forward", "backward")
    )
    bytes_moved = 2 * 2 * 2 * 2 * net.hidden * 577.0 * (t - 1) / t
    assert more <= 2 * 2 * 100e-6 + bytes_moved / float(bandwidth(H100, t, 1))


def test_an_encoder_does_not_depend_on_the_sizes_of_another_module() -> None:
    encoder = ParallelSizes(data=8)
    first, second = (
        predicted(own, encoder, "colocated").explain()
        for own in (ParallelSizes(2, data=4), ParallelSizes(4, 2, data=1, micro_batch=2))
    )
    alike = [
        [row for row in each.of("images") if row.part != "bridges"] for each in (first, second)
    ]
    assert alike[0] == alike[1]
    assert len(alike[0]) == len(first.of("images")) - 1


@rows("name, gpu", *itertools.product(["llama-3-8b", "qwen3-30b-a3b"], ["h100", "gb200"]))
def test_twice_the_samples_never_take_less_time(name: str, gpu: str) -> None:
    model = load_model(name)
    for samples in (8, 32, 128):
        once, twice = (
            predict(
                model,
                Layout(
                    "homogeneous", {name: ParallelSizes(data=8, expert=8 if "a3b" in name else 1)}
                ),
                Workload(2048, many),
                gpu=gpu,
            ).seconds
            for many in (samples, 2 * samples)
        )
        assert once < twice <= 2 * once


SIZES = (
    ParallelSizes(data=16),
    ParallelSizes(8, data=2, micro_batch=2),
    ParallelSizes(2, 2, context=2, data=2),
    ParallelSizes(data=16, expert=8),
)
UPDATES = ("reduction of gradients", "gathering of weights")
SLOWEST_SHARE, LONGEST_LAUNCH = 0.3, 100e-6
"""Of arithmetic, memory and links that anything long reaches; seconds of a launch on Grace."""


@rows("own, name", *itertools.product(SIZES, ["llama-3-8b", "qwen3-30b-a3b"]))
def test_no_line_takes_longer_than_its_operations_bytes_launches_and_messages(
    name: str, own: ParallelSizes
) -> None:
    model = language_model(name)
    if model.net.moe is None:
        own = replace(own, expert=1)
    layout = Layout("homogeneous", {name: own})
    rows = predict(model, layout, Workload(4096, 64), gpu="h100").explain().rows
    speeds = {"tensor parallel": H100.domain.bandwidth, "context parallel": H100.network.bandwidth}
    counted = [row for row in rows if row.operations or row.bytes or row.launches]
    for row in counted:
        bandwidth = speeds.get(row.part, H100.memory_bandwidth)
        if row.part in ("expert dispatch", "sends between stages") or row.what in UPDATES:
            bandwidth = H100.network.bandwidth
        work = row.operations / H100.peak_flops["bf16"] + row.bytes / bandwidth
        longest = work / SLOWEST_SHARE + row.launches * LONGEST_LAUNCH
        assert row.seconds <= row.count * longest, row
    waits = [row for row in rows if row.part == "host"]
    done = [row for row in rows if row.way == "forward" and row.launches]
    launches = sum(row.launches for row in done)
    for row in waits:
        assert row.seconds <= row.count * launches * LONGEST_LAUNCH, row
    rest = [row for row in rows if row.seconds and row not in counted and row not in waits]
    assert {row.what for row in rest} <= {"waits for other stages"}


def alone(
    name: str, sizes: ParallelSizes, precision: str = "bf16", software: str = "", **facts: Any
) -> Prediction:
    work = Workload(4096, 64, precision, recipe=RecipeConfig(**facts))
    gpu = "a100" if software == "megatron-2021" else "h100" if precision != "mxfp8" else "gb200"
    layout = Layout("homogeneous", {name: sizes})
    return predict(load_model(name), layout, work, gpu=gpu, software=software or None)


CASES: dict[str, Callable[[], Prediction]] = {
    "dense": lambda: alone("llama-3-8b", ParallelSizes(data=16)),
    "tensor": lambda: alone("llama-3-8b", ParallelSizes(8, 2, virtual=4, data=2)),
    "no sequence parallelism": lambda: alone(
        "llama-3-8b", ParallelSizes(4, data=2, sequence_parallel=False), graphs="full"
    ),
    "context": lambda: alone("llama-3-8b", ParallelSizes(2, context=4, data=2), "fp8"),
    "full shards": lambda: alone("llama-3-8b", ParallelSizes(data=16, fully_sharded=True)),
    "all recomputed": lambda: alone("llama-3-8b", ParallelSizes(2, data=4, recompute=2)),
    "scores recomputed": lambda: alone("llama-3-8b", ParallelSizes(2, data=4, recompute=1)),
    "some recomputed": lambda: alone(
        "llama-3-8b", ParallelSizes(2, data=4), recompute_layers=4, recompute_modules=["layernorm"]
    ),
    "eager experts": lambda: alone("qwen3-30b-a3b", ParallelSizes(data=16, expert=8), "fp8",
                                   graphs="none"),
    "overlapped dispatch": lambda: alone(
        "qwen3-30b-a3b", ParallelSizes(2, data=16, expert=16), "mxfp8",
        dispatch_overlap=True, dispatcher="alltoall", graphs="full",
    ),
    "fused experts": lambda: alone(
        "qwen3-30b-a3b", ParallelSizes(data=16, expert=8), "mxfp8", fused_experts=True
    ),
    "further tokens": lambda: alone("deepseek-v3", ParallelSizes(4, 4, data=16, expert=16), "fp8"),
    "unfused": lambda: alone(
        "llama-3-8b", ParallelSizes(2, 4, data=2, sequence_parallel=False), "fp16",
        "megatron-2021",
    ),
    "megatron-core": lambda: alone(
        "qwen3-30b-a3b", ParallelSizes(2, 2, data=8, expert=8), "bf16", "megatron-core"
    ),
    "colocated": lambda: predicted(
        ParallelSizes(4, data=2), ParallelSizes(data=8, micro_batch=1), "colocated"
    ),
    "heterogeneous": lambda: predicted(
        ParallelSizes(2, 2, data=2), ParallelSizes(2, data=2), "heterogeneous"
    ),
    "frozen": lambda: predicted(
        ParallelSizes(4, data=2), ParallelSizes(data=8), "colocated",
        replace(WORKLOAD, frozen=frozenset(["images"])),
    ),
}  # fmt: skip


@rows("case", *CASES)
def test_every_row_is_the_sum_of_what_it_prints(case: str) -> None:
    """The pieces less what is hidden, as often as the row says; by its text to three digits."""
    found = CASES[case]()
    for row in found.explain().rows:
        pieces = sum(piece.amount * piece.each for piece in row.pieces)
        assert row.pieces or not row.seconds + row.hidden, row
        assert row.seconds == pytest.approx(row.count * (pieces - row.hidden), rel=1e-9, abs=1e-12)
        assert row.hidden >= -1e-12, row
        assert row.seconds >= -1e-12, row
        for unit, counted in (("operations", row.operations), ("launches", row.launches)):
            amounts = [piece.amount for piece in row.pieces if piece.unit == unit]
            assert not amounts or sum(amounts) == pytest.approx(counted), row
        if row.seconds:
            assert row.assumed, row
    for line in str(found.explain()).splitlines():
        _reconcile(line)


UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0}


def _reconcile(line: str) -> None:
    """Compute the right side of a line as a reader does."""
    read = re.match(r"  .*: ([\d.]+) (\S+) = ([\d.e+]+) x \((.*)\) \[", line)
    if read is None:
        assert " = " not in line, line
        return
    said, unit, count, inside = read.groups()
    hidden = re.search(r" - ([\d.]+) (\S+) overlaps other work$", inside)
    left = 0.0
    if hidden is not None:
        left, inside = float(hidden[1]) * UNITS[hidden[2]], inside[: hidden.start()]
    whole = 0.0
    for piece in inside.split(" + "):
        amount = float(piece.split()[0])
        rate = re.search(r" / ([\d.e+]+) per second$", piece)
        each = re.search(r" x ([\d.]+) (\S+)$", piece)
        if rate is not None:
            whole += amount / float(rate[1])
        else:
            assert each is not None, piece
            whole += amount * float(each[1]) * UNITS[each[2]]
    seconds, rounded = float(said) * UNITS[unit], 1e-3 * float(count) * whole
    assert float(count) * (whole - left) == pytest.approx(seconds, rel=1e-3, abs=rounded)


def test_a_row_names_group_size_message_and_basis() -> None:
    rows = CASES["context"]().explain().rows
    tensor = next(row for row in rows if row.part == "tensor parallel")
    ring = next(row for row in rows if row.part == "context parallel")
    assert (tensor.ranks, ring.ranks) == (2, 4)
    assert tensor.assumed == ring.assumed == "measured"
    text = str(CASES["context"]().explain())
    assert re.search(r"tensor parallelism \(2 ranks, [\d.]+ \S+ each\)", text)
    assert re.search(r"optimizer: .* bytes .*\[fitted to published steps\]", text)
    other = alone("llama-3-8b", ParallelSizes(data=8), "bf16")
    on_a6000 = predict(
        load_model("llama-3-8b"), other.layout, Workload(4096, 64), gpu="a6000"
    ).explain()
    products = [row for row in on_a6000.rows if row.what.startswith("product with")]
    assert {row.assumed for row in products} == {"from the GPU's file"}
