"""Predictions as a whole: what every mode says, and what is refused."""

from __future__ import annotations

import pytest

from mimokit.config import ConfigError
from mimokit.plan.architecture import MultimodalModel, load_model
from mimokit.plan.prediction import Layout, Workload, predict
from mimokit.plan.sizes import ParallelSizes

WORKLOAD = Workload(seq_length=2048, global_batch=64)


def llava() -> MultimodalModel:
    model = load_model("llava-1.5-7b")
    assert isinstance(model, MultimodalModel)
    return model


def layout(mode: str, encoder: ParallelSizes, language: ParallelSizes) -> Layout:
    return Layout(mode, {"images": encoder, llava().language.name: language})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [
        (layout("homogeneous", ParallelSizes(2, data=4), ParallelSizes(2, data=4)), 8),
        (layout("colocated", ParallelSizes(data=8), ParallelSizes(4, data=2)), 8),
        (layout("heterogeneous", ParallelSizes(data=2), ParallelSizes(2, 2, data=4)), 18),
    ],
    ids=str,
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


def test_a_missing_module_is_named() -> None:
    alone = Layout("colocated", {llava().language.name: ParallelSizes(data=8)})
    with pytest.raises(ConfigError, match="Module 'images': the layout has no sizes for it"):
        predict(llava(), alone, WORKLOAD)


def test_unknown_hardware_offers_the_nearest() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(data=8))
    with pytest.raises(ConfigError, match="h100"):
        predict(llava(), chosen, WORKLOAD, "h10")


def test_a_precision_the_hardware_lacks_is_refused() -> None:
    chosen = layout("colocated", ParallelSizes(data=8), ParallelSizes(data=8))
    with pytest.raises(ConfigError, match="fp16"):
        predict(llava(), chosen, Workload(2048, 64, precision="fp8"), "a100")
