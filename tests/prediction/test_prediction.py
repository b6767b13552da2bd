"""Predictions as a whole: what every mode says, and what is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_preset
from mimokit.prediction import Layout, Workload, predict
from mimokit.prediction.module_costs import encoder_cost, load_of
from mimokit.prediction.task import task_of
from mimokit.prediction.workload import branches_of
from tests.prediction.shipped import llava
from tests.rows import rows

WORKLOAD = Workload(seq_length=2048, global_batch_size=64)


def layout(mode: str, encoder: ParallelSizes, language: ParallelSizes) -> Layout:
    return Layout(mode, {"images": encoder, llava().language.name: language})  # type: ignore[arg-type]


@rows(
    "chosen, gpus",
    (layout("homogeneous", ParallelSizes(2, data=4), ParallelSizes(2, data=4)), 8),
    (layout("colocated", ParallelSizes(data=8), ParallelSizes(4, data=2)), 8),
    (layout("heterogeneous", ParallelSizes(data=2), ParallelSizes(2, 2, data=4)), 18),
)
def test_parts_make_up_the_step(chosen: Layout, gpus: int) -> None:
    found = predict(llava(), chosen, WORKLOAD, "h100", price_per_gpu_hour=2.0)
    assert chosen.gpus == gpus
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.low < found.seconds < found.high
    assert found.fits
    assert 0 < found.utilisation < 1
    hours = found.seconds / 3600 * gpus
    cost = hours * 2.0 / (WORKLOAD.tokens / 1e6)
    assert found.dollars_per_million_tokens == pytest.approx(cost)


def test_a_frozen_encoder_computes_backward_for_no_less_than_no_time() -> None:
    config = load_preset("three_encoders_7b_heterogeneous")
    task = task_of(config)
    count = np.arange(1, 400)
    for branch in branches_of(task.model):
        sizes = ParallelSizes(2 ** (count % 4), 1 + count % 3, data=count)
        frozen = replace(task.workload, frozen=frozenset([branch.name]))
        load = load_of(branch, task.model, sizes, frozen, task.system)
        cost = encoder_cost(branch, load, frozen)
        assert (np.asarray(cost.backward) >= 0).all()  # rounding made some -2.9e-17 s


@rows("mode, context", *itertools.product(["homogeneous", "colocated", "heterogeneous"], [1, 2]))
def test_memory_lines_add_up_to_the_fullest_rank(mode: str, context: int) -> None:
    """Modules that share ranks fill the same one; each line is the product of its factors."""
    language = ParallelSizes(2, 2, context=context, data=4 // context)
    own = ParallelSizes(2, context=context, data=4 // context)
    encoder = own if mode == "homogeneous" else ParallelSizes(data=16)
    found = predict(llava(), layout(mode, encoder, language), WORKLOAD)
    for lines in found.lines.values():
        for line in lines:
            assert math.prod(line.factors.values()) == pytest.approx(line.bytes)
    sums = [sum(parts.values()) for parts in found.memory.values()]
    fullest = max(sums) if mode == "heterogeneous" else sum(sums)
    assert found.peak_memory == pytest.approx(fullest)


def test_every_number_has_its_formula() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(4, data=2))
    rows = {
        (row["module"], row["part"]): row
        for row in predict(llava(), chosen, WORKLOAD).memory_rows()
    }
    optimizer = rows[llava().language.name, "optimizer"]
    assert optimizer["formula"] == "bytes × parameters on the rank × share after sharding"
    assert optimizer["numbers"].startswith("12 × ")
    assert optimizer["numbers"].endswith("× 0.5")
    kept = rows["images", "activations"]
    assert "micro-batches in flight" in kept["formula"]
    assert "2205.05198" in kept["source"]


def test_a_prediction_says_what_it_is() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(4, data=2))
    text = str(predict(llava(), chosen, WORKLOAD, price_per_gpu_hour=2.0))
    assert "tokens/s" in text
    assert "GiB: fits" in text
    assert "dollars per million tokens" in text
    assert "dollars" not in str(predict(llava(), chosen, WORKLOAD))
