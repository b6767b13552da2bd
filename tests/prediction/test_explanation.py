"""What an expert checks by hand: the figures of an explanation, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mimokit.architecture import LanguageModel, MultimodalModel, load_model
from mimokit.architecture.parallel_sizes import RECOMPUTE_FULL, ParallelSizes
from mimokit.config.errors import ConfigError
from mimokit.config.runtime import DeploymentMode
from mimokit.prediction import EncoderInput, Layout, Prediction, Workload, predict
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.layout import in_first_stage
from mimokit.prediction.step_time import System, load_software
from mimokit.prediction.step_time.collectives import bandwidth
from mimokit.prediction.step_time.layer import layer_time

H100 = load_hardware("h100")
WORKLOAD = Workload(2048, 64, inputs={"images": EncoderInput(577)})
HIGHEST_SHARE = 0.83
"""Of peak arithmetic that any product of a layer reaches (docs/predictor.md)."""


def llava() -> MultimodalModel:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    return model


def predicted(
    own: ParallelSizes,
    encoder: ParallelSizes | None = None,
    mode: DeploymentMode = "homogeneous",
    workload: Workload = WORKLOAD,
) -> Prediction:
    sizes = {"images": encoder or in_first_stage(own), llava().language.name: own}
    return predict(llava(), Layout(mode, sizes), workload, gpu="h100")


@pytest.mark.parametrize(
    "own",
    [
        ParallelSizes(data=8),
        ParallelSizes(2, data=4, recompute=RECOMPUTE_FULL),
        ParallelSizes(2, 4, data=2),
        ParallelSizes(4, context=2, data=2),
    ],
    ids=str,
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
    assert all(seconds > 0 for seconds in step)


def test_every_product_is_operations_over_a_rate_that_products_reach() -> None:
    rows = predicted(ParallelSizes(2, data=4)).explain().rows
    products = [row for row in rows if row.what.startswith("product with")]
    assert len(products) == 2 * 3 * 4  # of each module: forward, gradients of inputs and weights
    for row in products:
        assert row.seconds == pytest.approx(row.count * row.operations / row.rate)
        assert row.rate <= HIGHEST_SHARE * H100.peak_flops["bf16"]
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
    net = load_model("llama-3-8b")
    assert isinstance(net, LanguageModel)
    software = replace(load_software("megatron-bridge"), tensor_overlap="none")
    system, tokens, t = System(H100, software), 2.0**20, 2
    alone, cut = (
        float(layer_time(net.net, None, ParallelSizes(n), tokens, 2048.0, system).forward.total)
        for n in (1, t)
    )
    ring = 4 * 2 * net.net.hidden * tokens * (t - 1) / t / float(bandwidth(H100, t, 1))
    assert cut - alone / t == pytest.approx(ring, rel=0.01)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_cutting_a_vision_layer_adds_launches_and_bytes_alone(t: int) -> None:
    """A ViT-L: at most 100 microseconds for each collective, and the time of its bytes."""
    net = llava().branches[0].encoder.net
    system = System(H100, load_software("megatron-bridge"))
    sizes = [ParallelSizes(n, sequence_parallel=False) for n in (1, t)]
    alone, cut = (layer_time(net, None, one, 577.0, 577.0, system) for one in sizes)
    more = sum(
        float(getattr(cut, way).total - getattr(alone, way).total)
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
    assert first.of("images") == second.of("images")


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("gpu", ["h100", "gb200"])
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
SLOWEST_SHARE, LONGEST_LAUNCH = 0.3, 100e-6
"""Of arithmetic, memory and links that anything long reaches; seconds of a launch on Grace."""


@pytest.mark.parametrize("own", SIZES, ids=str)
@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b"])
def test_no_line_takes_longer_than_its_operations_bytes_launches_and_messages(
    name: str, own: ParallelSizes
) -> None:
    model = load_model(name)
    assert isinstance(model, LanguageModel)
    if model.net.moe is None:
        own = replace(own, expert=1)
    layout = Layout("homogeneous", {name: own})
    rows = predict(model, layout, Workload(4096, 64), gpu="h100").explain().rows
    speeds = {"tensor parallel": H100.domain.bandwidth, "context parallel": H100.network.bandwidth}
    counted = [row for row in rows if row.operations or row.bytes or row.launches]
    for row in counted:
        bandwidth = speeds.get(row.part, H100.memory_bandwidth)
        if row.part == "expert dispatch":
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
    assert all(row.way == "step" or row.what.startswith("ends of the stage") for row in rest)
