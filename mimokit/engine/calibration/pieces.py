"""Pieces of a training step on one rank alone, while the others do the same.

The pieces are mimokit's own stages over groups of one rank: what they cost is what they cost in
training, without the communication, which `collectives` measures. Their shapes are those of no
layout in particular.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from mimokit.config import ModuleArchitecture
from mimokit.engine.calibration.alone import (
    IMAGE_TOKEN,
    IMAGES,
    LANGUAGE,
    Alone,
    language_stage,
    vision_stage,
)
from mimokit.engine.calibration.clock import Stopwatch
from mimokit.engine.calibration.collectives import Collective, Ledger
from mimokit.engine.data.batch import ITEMS, Batch, get_batch, slice_modality, slice_text, to_device
from mimokit.engine.data.digits import DigitCollate, DigitStrips
from mimokit.engine.device import rank_device
from mimokit.engine.gradients import (
    clip_gradients,
    squared_norm_share,
    trainable_parameters,
    zero_grad_buffer_for_multimodule,
)
from mimokit.engine.loss import masked_loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.monitor import PerformanceMonitor
from mimokit.engine.optimizer import MainGradAdamW
from mimokit.engine.pipeline.stages import ModuleStage, StageInput
from mimokit.engine.steps import Step
from mimokit.plan.calibration.measurements import PieceTime
from mimokit.plan.shared_cores.amounts import Amounts, language_ends, layer_amounts, vision_ends

HIDDEN, LAYERS, SAMPLES = (32, 96), (1, 3), (1, 8)
HEADS, TOKENS, VOCABULARY = 4, 42, 16
ROUNDS, UNCOUNTED = 9, 2
"""Rounds through all pieces, of which the first are not counted."""
STEPS, STEP_PAUSE = 40, 0.03
"""Empty steps that the cost around a step is measured over, and seconds between them: figures of
steps that follow each other at once would be sent together."""
EXECUTED_STEPS = 8
"""Named steps that a training step yields per micro-batch, about."""


def language_architecture(hidden: int, layers: int) -> ModuleArchitecture:
    """Return a small language model."""
    return ModuleArchitecture(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=HEADS,
        seq_length=TOKENS,
        vocab_size=VOCABULARY,
    )


def vision_architecture(hidden: int, layers: int) -> ModuleArchitecture:
    """Return a small encoder of the scans of digits."""
    return ModuleArchitecture(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=HEADS,
        seq_length=4,
        vocab_size=0,
        image_size=8,
        patch_size=4,
    )


@dataclass
class Piece:
    """A piece that is measured once per round.

    Attributes:
        name: of the law that it is fitted to.
        terms: of that law.
        run: does the piece, between start and stop of the watch.
        watch: its laps.
    """

    name: str
    terms: Mapping[str, float]
    run: Callable[[Stopwatch], object]
    watch: Stopwatch = field(default_factory=Stopwatch)

    def time(self) -> PieceTime:
        """Return the mean over the rounds."""
        timing = self.watch.mean(UNCOUNTED)
        return PieceTime(self.name, self.terms, timing.seconds, timing.cpu_seconds)


def piece_times(
    alone: Alone, collectives: Sequence[Collective], emit: Callable[[dict[str, Any]], None]
) -> tuple[list[PieceTime], float]:
    """Measure all pieces on this rank, and collectives between them. Collective over the world.

    Rounds go through all pieces in turn, with a collective after each: as in training, no piece
    finds the caches as it left them, the ranks never begin one together and never wait for long.

    Args:
        alone: groups of one.
        collectives: of all groups of this rank; they keep what they took.
        emit: what a training step sends its figures with.

    Returns:
        The pieces, and the seconds of a round by the wall clock.
    """
    pieces = [_load(samples) for samples in (1, 4, 8)]
    stages: list[ModuleStage] = []
    for hidden in HIDDEN:
        for layers in LAYERS:
            architecture = language_architecture(hidden, layers)
            encoder = vision_architecture(hidden, layers)
            language = language_stage(architecture, alone)
            images = vision_stage(encoder, architecture, alone)
            for samples in SAMPLES:
                pieces += _language_passes(language, architecture, samples, alone)
                pieces += _vision_passes(images, encoder, architecture, samples)
            pieces += [_update(stage, alone) for stage in (language, images)]
            stages += [language, images]
    ledger, begun = Ledger(), []
    for _ in range(ROUNDS):
        begun.append(time.perf_counter())
        for piece, collective in zip_longest(pieces, collectives):
            if piece is not None:
                piece.run(piece.watch)
            if collective is not None:
                ledger.call(collective)
    ledger.close()
    begun.append(time.perf_counter())
    for stage in stages:
        stage.wrapped.release()
    found = [step_time(emit), *(piece.time() for piece in pieces)]
    return found, (begun[-1] - begun[UNCOUNTED]) / (ROUNDS - UNCOUNTED)


def _batches(samples: int) -> Iterator[Batch]:
    strips = DigitStrips("train", "read", size=4096)
    indices = (list(range(i * samples, (i + 1) * samples)) for i in range(4096 // samples))
    collate = DigitCollate(TOKENS, IMAGE_TOKEN, 4)
    return iter(DataLoader(strips, batch_sampler=list(indices), collate_fn=collate))


def _load(samples: int) -> Piece:
    """Return reading, checking and slicing a batch of strips of digits."""
    batches = _batches(samples)

    def run(watch: Stopwatch) -> None:
        watch.start()
        batch = get_batch(batches, {IMAGES: IMAGE_TOKEN}, {IMAGES: 4})
        batch = to_device(batch, rank_device())
        slice_text(batch, 0, samples)
        slice_modality(batch["modality_inputs"][IMAGES], 0, samples)
        watch.stop()

    return Piece("load", {"batch": 1, "sample": samples}, run)


def step_time(emit: Callable[[dict[str, Any]], None]) -> PieceTime:
    """Measure what a step costs around its work: the monitor, and sending its figures."""
    monitor = PerformanceMonitor([IMAGES, LANGUAGE], 1)
    wall, cpu = time.perf_counter(), time.process_time()
    for iteration in range(STEPS):
        monitor.start_step()
        for number in range(EXECUTED_STEPS):
            monitor.observe(Step("forward", LANGUAGE, number))
        row = monitor.end_step(iteration, samples=1, language_tokens=1, loss=0.0, grad_norm=0.0)
        emit({"kind": "calibration-step", "time": time.time(), **row})
        time.sleep(STEP_PAUSE)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return PieceTime("step", {"step": 1}, wall / STEPS, cpu / STEPS)


def _language_passes(
    stage: ModuleStage, architecture: ModuleArchitecture, samples: int, alone: Alone
) -> list[Piece]:
    batch = next(_batches(samples))
    rows = (batch["input_ids"] == IMAGE_TOKEN).sum(1).tolist()

    def forward() -> torch.Tensor:
        images = torch.randn(sum(rows), architecture.hidden_size, requires_grad=True)
        given = StageInput(batch, {0: images.to(rank_device())}, {0: rows})
        logits = stage.forward(given).tensor
        losses = vocab_parallel_cross_entropy(logits, batch["labels"], alone.group)
        return masked_loss_sum(losses, batch["loss_mask"])[0]

    amounts = layer_amounts(architecture, 1, samples, TOKENS).times(architecture.num_layers)
    amounts += language_ends(architecture, 1, samples * TOKENS)
    return _passes("language", forward, amounts)


def _vision_passes(
    stage: ModuleStage, architecture: ModuleArchitecture, language: ModuleArchitecture, samples: int
) -> list[Piece]:
    batch = next(_batches(samples))
    images = int(batch["modality_inputs"][IMAGES][ITEMS].sum())

    def forward() -> torch.Tensor:
        return stage.forward(StageInput(batch, {}, {})).tensor.sum()

    amounts = layer_amounts(architecture, 1, images, 4).times(architecture.num_layers)
    amounts += vision_ends(architecture, language, 1, images)
    return _passes("encoder", forward, amounts)


def _passes(name: str, forward: Callable[[], torch.Tensor], amounts: Amounts) -> list[Piece]:
    """Return forward and backward as two pieces, the second of which follows the first."""
    outputs: list[torch.Tensor] = []

    def ahead(watch: Stopwatch) -> None:
        watch.start()
        outputs.append(forward())
        watch.stop()

    def back(watch: Stopwatch) -> None:
        output = outputs.pop()
        watch.start()
        output.backward()  # type: ignore[no-untyped-call]
        watch.stop()

    terms = amounts.terms()
    return [Piece(f"{name} forward", terms, ahead), Piece(f"{name} backward", terms, back)]


def _update(stage: ModuleStage, alone: Alone) -> Piece:
    """Return all that a step does once with every gradient and weight."""
    modules = ((stage.wrapped, cast(HyperCommGrid, alone)),)
    parameters = trainable_parameters(modules)
    optimizer = MainGradAdamW(parameters, lr=1e-3, fused=True)

    def run(watch: Stopwatch) -> None:
        watch.start()
        zero_grad_buffer_for_multimodule(modules)
        stage.wrapped.scale_gradients(1.0)
        norm = float(squared_norm_share(*modules[0]))
        clip_gradients(modules, norm + 2.0, 1.0)
        optimizer.step()
        watch.stop()

    numbers = sum(parameter.numel() for parameter in parameters)
    return Piece("update", {"module": 1, "tensor": len(parameters), "number": numbers}, run)
