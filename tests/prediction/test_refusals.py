"""What a prediction refuses: one sentence each, that says what is wrong and what would be right.

Rules of layouts are proved in tests/config/test_layout_rules.py, and that predictions read them in
tests/layout_search/test_readers_agree.py: here is one row for each kind of fact that they take.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from mimokit.architecture import load_model
from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction import EncoderInput, Layout, Workload, predict, step_flops
from tests.prediction.shipped import llava
from tests.rows import rows

DENSE, MIXTURE = "llama-3-8b", "qwen3-30b-a3b"
PRESET = "preset:llava_7b_heterogeneous"
WORKLOAD = Workload(seq_length=2048, global_batch_size=64)


def alone(name: str, sizes: ParallelSizes, workload: Workload = WORKLOAD) -> None:
    predict(load_model(name), Layout("homogeneous", {name: sizes}), workload)


@rows(
    "name, sizes, words",
    (DENSE, ParallelSizes(3), "num_attention_heads is 32, which tensor_parallel 3 does not divide"),
    (DENSE, ParallelSizes(1.5), "tensor is 1.5; it must be a whole number"),
    ("qwen2.5-7b", ParallelSizes(7), "num_query_groups is 4, and tensor_parallel 7; one must"),
    (DENSE, ParallelSizes(1, 4, 5), "num_layers is 32, and .* 20; .* to 4 stages x 5 chunks"),
    (MIXTURE, ParallelSizes(3, expert=3), "num_moe_experts is 128, which expert_parallel 3 does"),
    (DENSE, ParallelSizes(context=3), "context_parallel is 3, which cuts its 2048 tokens into 6"),
    (DENSE, ParallelSizes(data=48), "data_parallel is 48, and times micro_batch_size 1 it does"),
    (DENSE, ParallelSizes(data=8, instances=3), "num_distributed_optimizer_instances is 3, which"),
    (DENSE, ParallelSizes(recompute=7), r"recompute 7 is none of 0 \(none\), 1 \(selective"),
)
def test_sizes_that_do_not_come_out_even(name: str, sizes: ParallelSizes, words: str) -> None:
    with pytest.raises(ConfigError, match=f"Module '{name}': {words}") as refused:
        alone(name, sizes)
    assert all(problem.sentence.endswith(".") for problem in refused.value.problems)


def test_layers_with_embedding_and_loss_counted_as_layers() -> None:
    """126 layers of Llama 3.1 405B are dealt to 8 stages x 8 chunks as 128."""
    name = "llama-3.1-405b"
    alone(name, ParallelSizes(8, 8, 8))
    with pytest.raises(ConfigError, match=r"divides neither 126 nor, .*, 128"):
        alone(name, ParallelSizes(8, 8, 3))


IN_PHASES, FITTING = "colocated", {"images": ParallelSizes(8)}
NAMED = replace(WORKLOAD, frozen=frozenset({"imagez"}))


@rows(
    "mode, modules, workload, options, words",
    (IN_PHASES, FITTING, WORKLOAD, {}, None),
    (IN_PHASES, {"images": ParallelSizes(data=4)}, WORKLOAD, {}, "makes 4 ranks .* takes 8 and"),
    ("heterogeneous", {"images": ParallelSizes(data=3)}, WORKLOAD, {}, "is 3, and that .* is 8;"),
    ("collocated", FITTING, WORKLOAD, {}, "Mode 'collocated': .* did you mean colocated"),
    (IN_PHASES, {}, WORKLOAD, {}, "Module 'images': the layout has no sizes for it"),
    (IN_PHASES, {**FITTING, "sound": ParallelSizes()}, WORKLOAD, {}, "Module 'sound'"),
    (IN_PHASES, {"images": ParallelSizes(0)}, WORKLOAD, {}, "tensor is 0; it must be above"),
    (IN_PHASES, FITTING, NAMED, {}, "Module 'imagez': .* did you mean images"),
    (IN_PHASES, FITTING, replace(WORKLOAD, inputs={"imagez": EncoderInput(5)}), {},
     "Module 'imagez': .* did you mean images"),
    (IN_PHASES, FITTING, replace(WORKLOAD, precision="fp8"), {"gpu": "a100"}, "fp16"),
    (IN_PHASES, FITTING, WORKLOAD, {"gpu": "h10"}, "h100"),
    (IN_PHASES, FITTING, WORKLOAD, {"software": "megatron"}, "megatron-core"),
    *(
        (IN_PHASES, FITTING, WORKLOAD, {"price_per_gpu_hour": price}, "Price per GPU-hour")
        for price in (-1.0, math.nan, math.inf)
    ),
)  # fmt: skip
def test_what_does_not_fit_together(
    mode: Any, modules: dict[str, ParallelSizes], workload: Workload, options: Any, words: Any
) -> None:
    layout = Layout(mode, {**modules, llava().language.name: ParallelSizes(data=8)})
    if words is None:
        assert predict(llava(), layout, workload, **options).seconds > 0
        return
    with pytest.raises(ConfigError, match=words):
        predict(llava(), layout, workload, **options)


@rows(
    "arguments, options, words",
    ((load_model(DENSE),), {}, "a model needs a layout and a workload"),
    ((PRESET, Layout("homogeneous", {"a": ParallelSizes()}), WORKLOAD), {},
     "an experiment has its own layout and workload; leave them out"),
    ((PRESET,), {"gpu": "h100", "hardware": "a100"},
     "gpu is h100 and hardware is a100; they are the same, give one"),
    ((load_model(DENSE), Layout("homogeneous", {DENSE: ParallelSizes()}, "words"), WORKLOAD), {},
     "Module 'words': it is the language module"),
    ((load_model(DENSE), Layout("homogeneous", {}), WORKLOAD), {}, "it has sizes of no module"),
)  # fmt: skip
def test_arguments_that_say_too_little_or_too_much(
    arguments: tuple[Any, ...], options: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        predict(*arguments, **options)


@rows("value, field", *itertools.product([0, -1, 1.5, "many"], ["seq_length", "global_batch_size"]))
def test_a_step_of_no_whole_number(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}; it must be a whole number"):
        Workload(**{"seq_length": 8, "global_batch_size": 8, field: value})  # type: ignore[arg-type]


@rows(
    "values, words",
    ((0,), "length is 0"),
    ((8, -1), "count is -1"),
    ((8, 1, 0.5), "imbalance is 0.5"),
    ((8, 1, math.nan), "imbalance is nan"),
    ((8, math.inf), "count is inf"),
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
