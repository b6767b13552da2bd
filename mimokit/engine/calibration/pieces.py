"""Pieces of a training step on one rank alone, while the others do the same.

The pieces are mimokit's stages over groups of one rank. They cost what they cost in training,
except communication, which `collectives` measures. Their shapes belong to no particular layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast

import torch

from mimokit.architecture.from_config import branch_of_config, language_of_config
from mimokit.config import ModuleArchitecture, RuntimeConfig
from mimokit.engine.calibration.single_rank import (
    IMAGE_TOKEN,
    IMAGES,
    Alone,
    batches_of,
    language_stage,
    vision_stage,
)
from mimokit.engine.calibration.timing import Stopwatch
from mimokit.engine.data.batch import (
    ITEMS,
    Batch,
    check_tokens,
    slice_modality,
    slice_text,
    to_device,
)
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.loss import masked_loss_sum, vocab_parallel_cross_entropy
from mimokit.engine.parallel.optimizer import MainGradAdamW
from mimokit.engine.parallel.update import MainGradUpdate
from mimokit.engine.pipeline.base_stage import ModuleStage, StageInput
from mimokit.prediction.calibration.measurements import PieceTime
from mimokit.prediction.local_cpu.module_costs import (
    Amounts,
    language_ends,
    layer_amounts,
    vision_ends,
)

HIDDEN, LAYERS, SAMPLES, LOADED = (32, 96), (1, 3), (1, 8), (1, 2, 4, 8)
HEAD_WIDTH, TOKENS, VOCABULARY = 8, 42, 16


def architectures(hidden: int, layers: int) -> tuple[ModuleArchitecture, ModuleArchitecture]:
    """Return a small language model and a small encoder of the scans of digits."""
    language = ModuleArchitecture(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // HEAD_WIDTH,
        seq_length=TOKENS,
        vocab_size=VOCABULARY,
    )
    scans = {"seq_length": 4, "vocab_size": 0, "image_size": 8, "patch_size": 4}
    return language, language.model_copy(update=scans)


@dataclass
class TimedPiece:
    """A piece that is measured once per round, see `measure_round`.

    Attributes:
        name: name of the law that is fitted to it.
        run: runs the piece, between start and stop of the watch.
    """

    name: str
    terms: Mapping[str, float]
    run: Callable[[Stopwatch], object]
    watch: Stopwatch = field(default_factory=Stopwatch)

    def time(self, uncounted: int) -> PieceTime:
        """Return the mean over the rounds after the first uncounted ones."""
        timing = self.watch.mean(uncounted)
        return PieceTime(self.name, self.terms, timing.seconds, timing.cpu_seconds)


def pieces_of_step(alone: Alone) -> tuple[list[TimedPiece], list[ModuleStage]]:
    """Return all pieces in the order of small training steps, and the stages to release at the end.

    No piece follows one of its kind, whose code would still be in the caches.
    """
    pieces: list[TimedPiece] = []
    stages: list[ModuleStage] = []
    loaded = cycle(LOADED)
    for hidden in HIDDEN:
        for layers in LAYERS:
            architecture, encoder = architectures(hidden, layers)
            language = language_stage(architecture, alone)
            images = vision_stage(encoder, architecture, alone)
            for samples in SAMPLES:
                ahead, back = _vision_passes(images, encoder, architecture, samples)
                inner = _language_passes(language, architecture, samples, alone)
                pieces += [_load(next(loaded)), ahead, *inner, back]
            pieces += [_update(stages, alone) for stages in ((language,), (images, language))]
            stages += [language, images]
    return pieces, stages


def _batches(samples: int) -> Iterator[Batch]:
    """Return batches for modules of any width and depth, on the host."""
    return batches_of(samples, *architectures(HIDDEN[0], 1))


def _batch_on_device(samples: int) -> Batch:
    return cast(Batch, to_device(next(_batches(samples)), rank_device()))


def _load(samples: int) -> TimedPiece:
    """Return the piece that reads, checks and slices a batch of strips of digits."""
    batches = _batches(samples)

    def run(watch: Stopwatch) -> None:
        watch.start()
        batch = next(batches)
        check_tokens(batch, {IMAGES: [IMAGE_TOKEN]}, {IMAGES: 4})
        batch = to_device(batch, rank_device())
        slice_text(batch, 0, samples)
        slice_modality(batch["modality_inputs"][IMAGES], 0, samples)
        watch.stop()

    return TimedPiece("load", {"batch": 1, "sample": samples}, run)


def _language_passes(
    stage: ModuleStage, architecture: ModuleArchitecture, samples: int, alone: Alone
) -> tuple[TimedPiece, TimedPiece]:
    batch = _batch_on_device(samples)
    rows = (batch["input_ids"] == IMAGE_TOKEN).sum(1).tolist()

    def forward() -> torch.Tensor:
        size = sum(rows), architecture.hidden_size
        images = torch.randn(size, device=rank_device(), requires_grad=True)
        given = StageInput(batch, {0: images}, {0: [rows]})
        logits = stage.forward(given).tensor
        losses = vocab_parallel_cross_entropy(logits, batch["labels"], alone.group)
        return masked_loss_sum(losses, batch["loss_mask"])[0]

    model = language_of_config("language", architecture)
    amounts = layer_amounts(model.net, 1, samples, TOKENS).times(architecture.num_layers)
    amounts += language_ends(model, 1, samples * TOKENS)
    return _passes("language", forward, amounts)


def _vision_passes(
    stage: ModuleStage, architecture: ModuleArchitecture, language: ModuleArchitecture, samples: int
) -> tuple[TimedPiece, TimedPiece]:
    batch = _batch_on_device(samples)
    images = int(batch["modality_inputs"][IMAGES][ITEMS].sum())

    def forward() -> torch.Tensor:
        return stage.forward(StageInput(batch, {}, {})).tensor.sum()

    branch = branch_of_config(IMAGES, architecture, language)
    amounts = layer_amounts(branch.encoder.net, 1, images, 4).times(architecture.num_layers)
    amounts += vision_ends(branch, 1, images, 4, 4)
    return _passes("encoder", forward, amounts)


def _passes(
    name: str, forward: Callable[[], torch.Tensor], amounts: Amounts
) -> tuple[TimedPiece, TimedPiece]:
    """Return forward and backward as two pieces, to run in this order."""
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
    return TimedPiece(f"{name} forward", terms, ahead), TimedPiece(f"{name} backward", terms, back)


def _update(stages: Sequence[ModuleStage], alone: Alone) -> TimedPiece:
    """Return the piece with all work of a step per gradient and weight on a rank."""
    modules = tuple((stage.wrapped, cast(HyperCommGrid, alone)) for stage in stages)
    parameters = [p for module, _ in modules for p in module.parameters()]
    optimizer = MainGradAdamW(parameters, lr=1e-3, fused=True)
    update = MainGradUpdate(modules, optimizer, RuntimeConfig())

    def run(watch: Stopwatch) -> None:
        watch.start()
        update.zero()
        for module, _ in modules:
            module.scale_gradients(1.0)
        update.clip(float(update.squared_norm()) + 2.0)
        update.step()
        watch.stop()

    numbers = sum(parameter.numel() for parameter in parameters)
    terms = {"step": 1, "module": len(modules), "tensor": len(parameters), "number": numbers}
    return TimedPiece("update", terms, run)
