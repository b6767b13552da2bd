"""What a prediction refuses: one sentence each, that says what is wrong and what would be right."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mimokit.architecture import MultimodalModel, load_model
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.config import ConfigError
from mimokit.prediction import EncoderInput, Layout, Workload, predict, step_flops

DENSE, MIXTURE, IMAGES = "llama-3-8b", "qwen3-30b-a3b", "llava-1.5-7b"
WORKLOAD = Workload(seq_length=2048, global_batch_size=64)


def llava() -> MultimodalModel:
    model = load_model(IMAGES)
    assert isinstance(model, MultimodalModel)
    return model


def alone(name: str, sizes: ParallelSizes, workload: Workload = WORKLOAD) -> None:
    predict(load_model(name), Layout("homogeneous", {name: sizes}), workload)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        (DENSE, ParallelSizes(3), "tensor 3 does not divide its 32 attention heads; choose a div"),
        (DENSE, ParallelSizes(1.5), "tensor is 1.5; it must be a whole number"),
        ("qwen2.5-7b", ParallelSizes(7), "tensor 7 and its 4 key and value heads do not divide"),
        ("qwen2.5-0.5b", ParallelSizes(7), "tensor 7 and its 2 key and value heads"),
        (DENSE, ParallelSizes(1, 3), "pipeline 3 and 1 chunks per stage cannot share its 32 lay"),
        (DENSE, ParallelSizes(1, 64), "pipeline 64 and 1 chunks"),
        (DENSE, ParallelSizes(1, 4, 5), "pipeline 4 and 5 chunks per stage cannot share"),
        (DENSE, ParallelSizes(1, 1, 4), "virtual 4 asks for several chunks per stage, but there"),
        (DENSE, ParallelSizes(expert=8, data=8), "expert 8 is for experts, and it has none"),
        (MIXTURE, ParallelSizes(3, expert=3), "expert 3 does not divide its 128 experts"),
        (MIXTURE, ParallelSizes(expert=8, data=4), "expert 8 does not divide the 4 ranks"),
        (DENSE, ParallelSizes(context=3), "context 3 does not divide the 2048 tokens"),
        (DENSE, ParallelSizes(data=48), "data 48 times micro_batch 1 does not divide the 64"),
        (DENSE, ParallelSizes(data=128), "data 128 times micro_batch 1 does not divide the 64"),
        (DENSE, ParallelSizes(data=8, instances=3), "instances 3 does not divide its 8 data x"),
        (DENSE, ParallelSizes(recompute=7), r"recompute 7 is none of 0 \(none\), 1 \(selective"),
    ],
    ids=str,
)
def test_sizes_that_do_not_come_out_even(name: str, sizes: ParallelSizes, words: str) -> None:
    with pytest.raises(ConfigError, match=f"Module '{name}': {words}") as refused:
        alone(name, sizes)
    assert all(problem.sentence.endswith(".") for problem in refused.value.problems)


def test_layers_with_embedding_and_loss_counted_as_layers() -> None:
    """126 layers of Llama 3.1 405B are dealt to 8 stages x 8 chunks as 128."""
    name = "llama-3.1-405b"
    alone(name, ParallelSizes(8, 8, 8))
    with pytest.raises(ConfigError, match="cannot share its 126 layers, nor 128"):
        alone(name, ParallelSizes(8, 8, 3))


@pytest.mark.parametrize(
    ("mode", "encoder", "words"),
    [
        ("colocated", ParallelSizes(data=4), "makes up 4 ranks, but it shares all 8"),
        ("heterogeneous", ParallelSizes(data=3), "data 3 and 8 of '.*' do not divide each other"),
        ("colocated", ParallelSizes(8), None),
        ("sideways", ParallelSizes(data=8), "Mode 'sideways': there is no such mode"),
        ("collocated", ParallelSizes(data=8), "did you mean colocated"),
    ],
    ids=str,
)
def test_modules_that_do_not_fit_together(
    mode: str, encoder: ParallelSizes, words: str | None
) -> None:
    layout = Layout(mode, {"images": encoder, llava().language.name: ParallelSizes(data=8)})  # type: ignore[arg-type]
    if words is None:
        assert predict(llava(), layout, WORKLOAD).seconds > 0
        return
    with pytest.raises(ConfigError, match=words):
        predict(llava(), layout, WORKLOAD)


@pytest.mark.parametrize(
    "workload",
    [
        replace(WORKLOAD, frozen=frozenset({"imagez"})),
        replace(WORKLOAD, inputs={"imagez": EncoderInput(5)}),
    ],
    ids=["frozen", "inputs"],
)
def test_unknown_modules_of_a_step_offer_the_nearest(workload: Workload) -> None:
    layout = Layout(
        "colocated",
        {"images": ParallelSizes(data=8), llava().language.name: ParallelSizes(data=8)},
    )
    with pytest.raises(ConfigError, match=r"Module 'imagez': .* did you mean images"):
        predict(llava(), layout, workload)


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
def test_a_price_below_nothing(price: float) -> None:
    layout = Layout("homogeneous", {DENSE: ParallelSizes(8)})
    with pytest.raises(ConfigError, match="Price per GPU-hour"):
        predict(load_model(DENSE), layout, WORKLOAD, price_per_gpu_hour=price)


@pytest.mark.parametrize("value", [0, -1, 1.5, "many"])
@pytest.mark.parametrize("field", ["seq_length", "global_batch_size"])
def test_a_step_of_no_whole_number(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}; it must be a whole number"):
        Workload(**{"seq_length": 8, "global_batch_size": 8, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0,), "length is 0"),
        ((8, -1), "count is -1"),
        ((8, 1, 0.5), "imbalance is 0.5"),
        ((8, 1, math.nan), "imbalance is nan"),
        ((8, math.inf), "count is inf"),
    ],
    ids=str,
)
def test_bad_encoder_inputs(values: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EncoderInput(*values)


def test_packed_images_keep_both_sums() -> None:
    """Matrix products go with the sum of n, attention with the sum of n^2."""
    images = [256, 1024, 4096, 1000]
    packed = EncoderInput.packed(images, samples=2)
    tokens = 2 * packed.count * packed.length
    assert tokens == pytest.approx(sum(images))
    squares = 2 * packed.count * packed.length**2
    assert squares == pytest.approx(sum(n * n for n in images), rel=0.5 / packed.length)
    assert EncoderInput.packed([576, 576]) == EncoderInput(576, 2.0)
    for bad in ([], [5, 0]):
        with pytest.raises(ConfigError, match="an image of 0 patches"):
            EncoderInput.packed(bad)


def test_one_large_image_costs_more_than_small_ones_of_as_many_patches() -> None:
    small = replace(WORKLOAD, inputs={"images": EncoderInput.packed([1024] * 4)})
    large = replace(WORKLOAD, inputs={"images": EncoderInput.packed([4096])})
    net = llava().branches[0].encoder.net
    more = 3 * 2 * net.layers * net.heads * 2 * net.head_dim * (4096 - 1024) * 4096 * 64
    assert step_flops(llava(), large) - step_flops(llava(), small) == pytest.approx(more)


def test_frozen_modules_pass_gradients_only_to_what_is_trained() -> None:
    """6, 4 or 2 per parameter: trained, frozen behind something trained, frozen with all."""
    model, language = llava(), llava().language.name
    encoder = frozenset({"images"})
    flops = {
        frozen: step_flops(model, replace(WORKLOAD, frozen=frozen))
        for frozen in (frozenset(), encoder, frozenset({language}), encoder | {language})
    }
    own = (flops[frozenset()] - flops[frozenset({language})]) * 3
    branch = (flops[frozenset()] - flops[encoder]) * 3 / 2
    assert own + branch == pytest.approx(flops[frozenset()])
    assert flops[encoder | {language}] == pytest.approx((own + branch) / 3)
