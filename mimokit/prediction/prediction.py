"""Predict memory and step time of one layout, with what they are made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimokit.architecture.modules import Model
from mimokit.config.errors import refuse_if_any
from mimokit.prediction.deployment_modes import LayoutCost, colocated, heterogeneous, homogeneous
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.memory import MemoryLine
from mimokit.prediction.memory_table import memory_table
from mimokit.prediction.module_costs import (
    EncoderCost,
    LanguageCost,
    encoder_cost,
    language_cost,
)
from mimokit.prediction.pipeline import simulated_passes
from mimokit.prediction.step_time import Software, System, load_software
from mimokit.prediction.validity import check_layout, check_precision, check_price, misplaced
from mimokit.prediction.workload import (
    Workload,
    branches_of,
    language_of,
    step_flops,
)

BAND, BAND_OF_MIXTURES = 0.08, 0.14
"""Shares of the step time by which four of five measured steps of models that were not fitted were
missed at most: `python -m tests.benchmarks.prediction` measures 0.06 and 0.113. A quarter wider,
for which effects count was decided by looking at those steps, though no constant was."""


@dataclass(frozen=True)
class Prediction:
    """What a layout comes to.

    Attributes:
        layout: what was predicted.
        seconds: of one step.
        low: seconds that four of five measured layouts would not fall below.
        high: seconds that four of five measured layouts would not exceed.
        parts: what goes into `seconds`: encoder, bridge, bubble, update, and the language model's
            matrix, attention, memory, tensor, context, expert and host parts.
        lines: module -> what fills its fullest rank, each number with its formula.
        peak_memory: bytes of the fullest rank of all.
        capacity: bytes that a GPU has.
        tokens_per_second: of the language model, all GPUs together.
        tflops_per_gpu: model TFLOP/s per GPU.
        utilisation: of the peak of the precision (MFU).
        dollars_per_million_tokens: None without a price.
    """

    layout: Layout
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    lines: Mapping[str, tuple[MemoryLine, ...]]
    peak_memory: float
    capacity: float
    tokens_per_second: float
    tflops_per_gpu: float
    utilisation: float
    dollars_per_million_tokens: float | None

    @property
    def fits(self) -> bool:
        """The fullest rank has room."""
        return self.peak_memory <= self.capacity

    def __str__(self) -> str:
        peak, room = self.peak_memory / 2**30, self.capacity / 2**30
        text = (
            f"{self.layout}\n"
            f"step {self.seconds:.3g} s ({self.low:.3g} to {self.high:.3g}), "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.tflops_per_gpu:.0f} TFLOP/s per GPU, "
            f"{self.utilisation:.0%} of its peak\n"
            f"memory {peak:.1f} of {room:.1f} GiB: {'fits' if self.fits else 'does not fit'}"
        )
        if self.dollars_per_million_tokens is None:
            return text
        return f"{text}\n{self.dollars_per_million_tokens:.3g} dollars per million tokens"

    @property
    def memory(self) -> Mapping[str, Mapping[str, float]]:
        """Module -> part -> bytes on its fullest rank."""
        return {
            name: {line.part: line.bytes for line in lines} for name, lines in self.lines.items()
        }

    def memory_rows(self) -> list[dict[str, Any]]:
        """Return the memory as rows of a table: module, part, GiB, formula, numbers, source."""
        return [
            {
                "module": name,
                "part": line.part,
                "gib": line.bytes / 2**30,
                "formula": line.formula,
                "numbers": line.numbers,
                "source": line.source,
            }
            for name, lines in self.lines.items()
            for line in lines
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **{name: value for name, value in vars(self).items() if name != "lines"},
            "parts": dict(self.parts),
            "memory": {name: dict(parts) for name, parts in self.memory.items()},
            "memory_rows": self.memory_rows(),
            "layout": self.layout.to_json(),
            "fits": self.fits,
        }


def predict(
    model: Model,
    layout: Layout,
    workload: Workload,
    hardware: str | os.PathLike[str] | Hardware = "h100",
    *,
    software: str | Software = "megatron-bridge",
    price_per_gpu_hour: float | None = None,
) -> Prediction:
    """Predict one layout; pipelines of plain 1F1B are simulated event by event.

    Args:
        model: from `load_model` or `from_hf`.
        layout: how it lies on GPUs.
        workload: what one step computes.
        hardware: a name, a hardware file, or hardware.
        software: the training stack.
        price_per_gpu_hour: in dollars, for the cost per million tokens.

    Raises:
        ConfigError: unknown hardware, software or precision, a layout that cannot be built, or a
            negative price.
    """
    gpu, stack = load_hardware(hardware), load_software(software)
    check_precision(gpu, workload)
    check_layout(model, layout, workload)
    check_price(price_per_gpu_hour)
    system = System(gpu, stack, workload.precision)
    language, encoders = costs_of(model, layout, workload, gpu, stack)
    outcome = layout_cost(layout.mode, language, encoders, workload, gpu)
    seconds = float(outcome.seconds)
    exact = simulated_passes(layout, language, encoders, gpu)
    if exact is not None:
        seconds += exact - float(outcome.seconds - outcome.update)
    flops = step_flops(model, workload)
    band = BAND if language_of(model).net.moe is None else BAND_OF_MIXTURES
    tflops = flops / seconds / layout.gpus
    hours = seconds * layout.gpus / 3600
    return Prediction(
        layout=layout,
        seconds=seconds,
        low=seconds * (1 - band),
        high=seconds * (1 + band),
        parts=_parts(language, outcome, seconds),
        lines=memory_table(model, layout, workload, system, language, encoders),
        peak_memory=float(outcome.memory),
        capacity=gpu.memory_bytes,
        tokens_per_second=workload.tokens / seconds,
        tflops_per_gpu=tflops / 1e12,
        utilisation=tflops / gpu.peak_flops[workload.precision],
        dollars_per_million_tokens=(
            None
            if price_per_gpu_hour is None
            else hours * price_per_gpu_hour / (workload.tokens / 1e6)
        ),
    )


def costs_of(
    model: Model, layout: Layout, workload: Workload, hardware: Hardware, software: Software
) -> tuple[LanguageCost, list[EncoderCost]]:
    """Return the cost of all modules in a layout."""
    language, branches = language_of(model), branches_of(model)
    refuse_if_any(misplaced([branch.name for branch in branches], layout))
    trained = any(branch.name not in workload.frozen for branch in branches)
    own = layout.modules[layout.language]
    cost = language_cost(language, own, workload, hardware, software, encoders_trained=trained)
    encoders = [
        encoder_cost(
            branch, layout.modules[branch.name], workload, hardware, software, language.net.hidden
        )
        for branch in branches
    ]
    return cost, encoders


def layout_cost(
    mode: str,
    language: LanguageCost,
    encoders: list[EncoderCost],
    workload: Workload,
    hardware: Hardware,
) -> LayoutCost:
    """Return the outcome of a mode."""
    if mode == "homogeneous":
        return homogeneous(language, encoders)
    if mode == "colocated":
        return colocated(language, encoders, workload, hardware)
    return heterogeneous(language, encoders, hardware)


def _parts(language: LanguageCost, outcome: LayoutCost, seconds: float) -> dict[str, float]:
    parts = {name: float(value) for name, value in vars(language.step.work).items()}
    parts["pipeline"] = float(language.step.pipeline)
    for name in ("encoder", "bridge", "update"):
        parts[name] = float(np.asarray(getattr(outcome, name)))
    parts["bubble"] = max(0.0, seconds - sum(parts.values()))
    return parts
