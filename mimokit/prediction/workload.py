"""What one optimizer step computes, independent of the layout, and how uneven its frames are."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from mimokit.architecture import (
    AudioEncoder,
    LanguageModel,
    Model,
    MultimodalModel,
    RowEncoder,
    TextEncoder,
    VisionEncoder,
)
from mimokit.architecture.flops import forward_flops, passes
from mimokit.architecture.modules import DecoderHead, EncoderBranch, Module
from mimokit.config import ExperimentConfig
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.graph import upstream
from mimokit.config.recipe import RecipeConfig
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL, PipelineOrder
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.memory.states import OPTIMIZER
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.workload.mix import SampleMix


@dataclass(frozen=True)
class FramePattern:
    """The frames of the samples of micro-batches, which all cost an encoder the same.

    Attributes:
        counts: for each micro-batch of a step, the frames of its samples: entry s, modulo the
            length, for sample s.
        shared: replicas share the frames of a micro-batch as `plan_frames` says.
    """

    counts: tuple[tuple[int, ...], ...]
    ordered: bool = False
    shared: bool = False

    @property
    def mean(self) -> float:
        """Frames per sample."""
        return float(np.mean([np.mean(samples) for samples in self.counts]))

    def per_replica(self, replicas: int, samples: int) -> tuple[tuple[float, ...], ...]:
        """Return the frames that replicas encode, for each micro-batch."""
        told = replicas, samples, self.ordered, self.shared
        return tuple(_per_replica(counts, *told) for counts in self.counts)

    def imbalance(self, replicas: int, samples: int) -> float:
        """Return the frames of the slowest replicas over those of the mean ones, at least 1."""
        frames = self.per_replica(replicas, samples)
        mean = sum(map(np.mean, frames))
        return float(sum(map(max, frames)) / mean) if mean else 1.0


@functools.lru_cache(maxsize=4096)
def _per_replica(
    counts: tuple[int, ...], replicas: int, samples: int, ordered: bool, shared: bool
) -> tuple[float, ...]:
    """Return the frames that replicas encode of one micro-batch; longer steps have it, too."""
    from mimokit.planning.frames.plan import plan_frames  # few workloads have frames
    from mimokit.planning.frames.routing import TOLERANCE
    from mimokit.planning.frames.samples import SampleWork, order_samples

    work = SampleWork.of(np.resize(counts, replicas * samples), replicas)
    read = work.per_replica(order_samples([work]) if ordered else range(replicas * samples))
    if not shared or replicas == 1:
        return tuple(read.tolist())
    home = np.repeat(np.arange(replicas), read.astype(np.int64))
    return plan_frames(np.ones(len(home)), replicas, home=home, tolerance=TOLERANCE).load_per_rank


def frame_pattern(config: ExperimentConfig, encoder: str, samples: int) -> FramePattern | None:
    """Return the frames that a config gives an encoder, None if it leaves them to the data set."""
    data, runtime = config.data, config.runtime
    if encoder not in data.modality_frames:
        return None
    counts = [
        tuple(data.frames_of(encoder, number, sample) or 0 for sample in range(samples))
        for number in range(data.num_microbatches)
    ]
    return FramePattern(
        tuple(counts),
        ordered=runtime.sample_order == BALANCED,
        shared=FRAME_PARALLEL in runtime.patch_type,
    )


@dataclass(frozen=True)
class EncoderInput:
    """The inputs of an encoder in one sample.

    Attributes:
        length: patches of one image, or positions of one window of audio.
        imbalance: work of the most loaded rank divided by that of the average rank; 1 is even.
        pattern: frames of every sample, from which the imbalance of a layout follows instead.
    """

    length: int
    count: float = 1.0
    imbalance: float = 1.0
    pattern: FramePattern | None = None

    def __post_init__(self) -> None:
        refuse_if_any(
            Problem(
                "workload", name, value, f"Encoder input: {name} is {value}; it must be {right}."
            )
            for name, value, least, right in (
                ("length", self.length, 1, "a number of at least 1"),
                ("count", self.count, 0, "a number of at least 0"),
                ("imbalance", self.imbalance, 1, "a number of at least 1"),
            )
            if not least <= value < inf
        )

    def imbalance_over(self, replicas: Numbers, samples: Numbers) -> Numbers:
        """Return the work of the most loaded replica divided by that of the average one."""
        if self.pattern is None:
            return self.imbalance
        pairs = np.stack(np.broadcast_arrays(replicas, np.maximum(samples, 1)), axis=-1)
        each, places = np.unique(pairs.reshape(-1, 2).astype(int), axis=0, return_inverse=True)
        imbalances = np.array([self.pattern.imbalance(*pair) for pair in each.tolist()])
        spread: np.ndarray = imbalances[places.ravel()].reshape(pairs.shape[:-1])
        return spread if spread.ndim else float(spread)

    @classmethod
    def packed(cls, lengths: Sequence[int], samples: int = 1) -> EncoderInput:
        """Return equal images that cost the same as packed images of several sizes.

        An image attends only to itself. The cost of matrix products is proportional to the sum of
        n, that of attention to the sum of n^2. Equal images of L = sum n^2 / sum n patches,
        (sum n) / L of them, have both sums. L is rounded, so that the second sum is exact within
        half a patch.

        Raises:
            ConfigError: there are no images, or one is empty.
        """
        refuse_if_any(
            Problem(
                "workload",
                "lengths",
                n,
                f"Encoder input: an image of {counted(n, 'patch')}; give 1 up.",
            )
            for n in lengths or (0,)
            if n < 1
        )
        total = sum(lengths)
        length = round(sum(n * n for n in lengths) / total)
        return cls(length, total / length / samples)


@dataclass(frozen=True)
class Workload:
    """One optimizer step.

    Attributes:
        seq_length: tokens per sample of the language model, image tokens included.
        precision: of matrix products: bf16, fp8, mxfp8, nvfp4, …
        inputs: encoder -> its inputs. The default is one input of full size.
        strategy_bytes: what a strategy between replicas keeps per parameter that trains.
        gathered_bytes: what it keeps besides where ranks of a replica have shards of weights.
        optimizer_bytes: fp32 master weight and what the optimizer keeps, likewise.
        encoder_microbatches: for which colocated encoders run at once. None: all of a step.
        recipe: how the training stack runs the model. None: unknown.
        pipeline_order: of the stages of a pipeline. None: 1F1B.
        mix: what samples are made of, for predictions over samples. None: all are alike.
    """

    seq_length: int
    global_batch_size: int
    precision: str = "bf16"
    inputs: Mapping[str, EncoderInput] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    strategy_bytes: float = 0.0
    gathered_bytes: float = 0.0
    optimizer_bytes: float = OPTIMIZER
    encoder_microbatches: int | None = None
    recipe: RecipeConfig | None = None
    pipeline_order: PipelineOrder | None = None
    mix: SampleMix | None = None

    def __post_init__(self) -> None:
        refuse_if_any(
            Problem(
                "workload",
                name,
                value,
                f"Workload: {name} is {value}; it must be a whole number of at least 1.",
            )
            for name, value in (
                ("seq_length", self.seq_length),
                ("global_batch_size", self.global_batch_size),
            )
            if not isinstance(value, int | np.integer) or value < 1
        )

    @property
    def tokens(self) -> int:
        """Tokens of the language model per step."""
        return self.seq_length * self.global_batch_size

    def micro_batches(self, sizes: ParallelSizes) -> Numbers:
        """Return the micro-batches of a step in a module of these sizes; it may be a fraction."""
        return self.global_batch_size / (sizes.data * sizes.micro_batch)

    def trains_before(self, name: str, model: Model) -> bool:
        """Return whether a module is trained whose output reaches another."""
        return any(before not in self.frozen for before in upstream(topology_of(model), name))

    def input_of(self, module: Module) -> EncoderInput:
        """Return the inputs of an encoder in one sample; of another module its sequence."""
        if not isinstance(module, EncoderBranch):
            return EncoderInput(self.seq_length)
        return self.inputs.get(module.name) or EncoderInput(module.encoder.positions)


def language_of(model: Model) -> LanguageModel:
    """Return the language model of a model."""
    if isinstance(model, MultimodalModel):
        return model.language
    if isinstance(model, VisionEncoder | AudioEncoder | TextEncoder | RowEncoder):
        sentence = (
            f"Model '{model.name}': it is only an encoder, but layouts are planned for models with "
            "a language model; join them in a MultimodalModel."
        )
        refuse_if_any([Problem("model", "language", model.name, sentence)])
    assert isinstance(model, LanguageModel)
    return model


def branches_of(model: Model) -> tuple[EncoderBranch, ...]:
    """Return the encoders of a model."""
    return model.branches if isinstance(model, MultimodalModel) else ()


def decoders_of(model: Model) -> tuple[DecoderHead, ...]:
    """Return the text decoders of a model; predictions of images are refused."""
    behind = model.decoders if isinstance(model, MultimodalModel) else ()
    return tuple(decoder for decoder in behind if isinstance(decoder, DecoderHead))


def modules_of(model: Model) -> tuple[Module, ...]:
    """Return the modules of a model: encoders, the language model, decoders."""
    return (*branches_of(model), language_of(model), *decoders_of(model))


def topology_of(model: Model) -> dict[str, tuple[str, ...]]:
    """Return module -> the modules that it feeds, for every module of a model."""
    return model.topology if isinstance(model, MultimodalModel) else {model.name: ()}


def step_flops(model: Model, workload: Workload) -> float:
    """Return the model FLOPs of a step; see `mimokit.architecture.flops`."""
    flops, graph = 0.0, topology_of(model)
    for module in modules_of(model):
        seen = workload.input_of(module)
        sequences = seen.count * workload.global_batch_size
        forward = forward_flops(module, seen.length, sequences).total
        flops += passes(module.name, workload.frozen, upstream(graph, module.name)) * forward
    return flops
