"""Predicted against measured gains of colocated and heterogeneous over homogeneous layouts.

The paper gives sizes of modules in parameters only, so published models of those sizes stand in for
them. Steps in seconds are not to be compared; percentages of gain are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mimokit.architecture import (
    EncoderBranch,
    LanguageModel,
    MultimodalModel,
    Projector,
    Transformer,
    VisionEncoder,
    load_model,
)
from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.config.runtime import DeploymentMode
from mimokit.prediction import EncoderInput, Workload, costs_of, layout_cost
from mimokit.prediction.deployment_modes import LayoutCost
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.step_time import System, load_software
from tests.benchmarks.prediction.tables import Row, SkippedRowError, names, number, table, whole

FILE = "heterogeneous-parallelism-2605.27678.csv"
COLUMNS = names(
    "table mode encoder llm seq vision_pct gpus gbs num_microbatches enc_tp enc_cp enc_pp "
    "enc_dp llm_tp llm_cp llm_pp llm_dp enc_opt_instances enc_recompute llm_recompute "
    "precision gpu peak_mem_gb time_ms tokens_gain_pct_vs_H"
)
SOFTWARE = "megatron-mimo"
MODES: Mapping[str, DeploymentMode] = {
    "H": "homogeneous",
    "C": "colocated",
    "NC": "heterogeneous",
}
PATCHES = 1024
"""Of one image."""
PATCHES_PER_TOKEN = 0.5
"""What encoders compute per image token of the sequence: fitted to this table, as is the time in
which a host launches a layer of `megatron-mimo`, and nothing else."""
MICRO_BATCHES = (1, 2, 4)
"""Samples per micro-batch that runs may have had where the table does not say."""
ENCODERS = {
    "1B": (40, 1408, 16, 6144),  # EVA-CLIP-g
    "3B": (36, 2560, 20, 10240),
    "6B": (45, 3200, 25, 12800),  # InternViT-6B
}
"""Layers, width, heads and inner width."""
LANGUAGE = {"7B": "llama-2-7b", "14B": "qwen2.5-14b", "70B": "llama-3-70b"}
WIDTHS_OF_LAYERS = 80
"""Width over layers of networks whose dimensions nobody published; those of GPT-3 are 58 to 128."""
MISTRAL_LARGE = LanguageModel("120B", Transformer(88, 12288, 96, 8, 128, 28672), 32768)


@dataclass(frozen=True)
class Gain:
    """One layout against the homogeneous one of its workload.

    Attributes:
        label: the row in words.
        measured: gain in tokens per second and GPU count as printed, in percent.
        predicted: the same from predicted steps.
    """

    label: str
    measured: float
    predicted: float

    @property
    def counts(self) -> bool:
        """The measured gain is beyond what differs between two runs of the same layout."""
        return abs(self.measured) > 3

    @property
    def right(self) -> bool:
        """The sign is."""
        return (self.measured > 0) == (self.predicted > 0)


def read_gains(folder: Path) -> list[Gain]:
    """Return every gain of the table; none where the folder has no such table.

    Raises:
        DataError: a column is missing.
    """
    found: list[Gain] = []
    base: dict[tuple[str, ...], float] = {}
    for row in table(folder / FILE, COLUMNS):
        key = (row["table"], row["encoder"], row["llm"], row["seq"], row["vision_pct"], row["gbs"])
        seconds = predicted_outcome(row).seconds
        if row["mode"] == "H":
            base[key] = float(seconds)
            continue
        measured = number(row, "tokens_gain_pct_vs_H")
        if key in base and measured is not None:
            gain = 100 * (base[key] / float(seconds) - 1)
            label = f"{row['table']} {row['mode']} {row['encoder']}+{row['llm']} seq {row['seq']} "
            found.append(Gain(label + f"vision {row['vision_pct']} %", measured, gain))
    return found


def predicted_outcome(row: Row) -> LayoutCost:
    """Return what the predictor says of one row.

    Where the row does not say how many samples a micro-batch has, it is the number whose memory
    comes closest to the row's; without memory either it is 1.
    """
    given, gigabytes = whole(row, "num_microbatches", 0), number(row, "peak_mem_gb")
    if given:
        return _with_micro_batch(row, whole(row, "gbs") / whole(row, "llm_dp") / given)
    if gigabytes is None:
        return _with_micro_batch(row, MICRO_BATCHES[0])
    return min(
        (_with_micro_batch(row, size) for size in MICRO_BATCHES),
        key=lambda one: abs(math.log(float(one.memory) / (1e9 * gigabytes))),
    )


def _with_micro_batch(row: Row, micro_batch: float) -> LayoutCost:
    model = stand_in(row["encoder"], row["llm"])
    images = whole(row, "seq") * float(row["vision_pct"]) / 100 / PATCHES * PATCHES_PER_TOKEN
    workload = Workload(
        whole(row, "seq"),
        whole(row, "gbs"),
        row["precision"],
        {model.branches[0].name: EncoderInput(PATCHES, images)},
    )
    layout = Layout(MODES[row["mode"]], _sizes(row, model, micro_batch))
    hardware = load_hardware(row["gpu"].split("-")[0])
    system = System(hardware, load_software(SOFTWARE), workload.precision)
    language, encoders = costs_of(model, layout, workload, system)
    return layout_cost(layout.mode, language, encoders, workload, system)


def _sizes(row: Row, model: MultimodalModel, micro_batch: float) -> dict[str, ParallelSizes]:
    """Return the sizes of both modules.

    A colocated encoder encodes all samples of its replica in one phase, others those of one
    micro-batch of the language model; with more replicas than samples each takes a share of the
    images.
    """
    at_once = whole(row, "gbs") if row["mode"] == "C" else micro_batch * whole(row, "llm_dp")
    encoder = replace(
        _sizes_of(row, "enc", at_once / whole(row, "enc_dp")),
        instances=whole(row, "enc_opt_instances", 1),
        # With more tensor-parallel ranks, measured memory shrinks by no more than this.
        sequence_parallel=False,
    )
    language = _sizes_of(row, "llm", micro_batch)
    return {model.branches[0].name: encoder, model.language.name: language}


def _sizes_of(row: Row, prefix: str, micro_batch: float) -> ParallelSizes:
    return ParallelSizes(
        tensor=whole(row, f"{prefix}_tp"),
        context=whole(row, f"{prefix}_cp"),
        pipeline=whole(row, f"{prefix}_pp"),
        data=whole(row, f"{prefix}_dp"),
        micro_batch=micro_batch,
        recompute=RECOMPUTE_NAMES.index(row[f"{prefix}_recompute"]),
    )


def derived(size: str, widths: int = WIDTHS_OF_LAYERS) -> tuple[int, int, int, int]:
    """Return layers, width, heads and inner width of a network of 12 l h^2 parameters.

    Args:
        size: in billions, such as 12B.
        widths: width over layers.

    Raises:
        SkippedRowError: the size is none.
    """
    try:
        parameters = 1e9 * float(size.removesuffix("B"))
    except ValueError:
        raise SkippedRowError(f"size {size} is not a number of parameters") from None
    heads = max(1, round((parameters * widths / 12) ** (1 / 3) / 128))
    width = 128 * heads
    return max(1, round(parameters / 12 / width**2)), width, heads, 4 * width


def _language(size: str) -> LanguageModel:
    if size == "120B":
        return MISTRAL_LARGE
    if size in LANGUAGE:
        known = load_model(LANGUAGE[size])
        assert isinstance(known, LanguageModel)
        return known
    layers, width, heads, ffn = derived(size)
    net = Transformer(layers, width, heads, heads, 128, 2 * ffn // 3, gated=True)
    return LanguageModel(size, net, 32000)


def stand_in(encoder: str, language: str) -> MultimodalModel:
    """Return a model whose modules have about the given numbers of parameters.

    Sizes of which no published model is listed become a network of the usual shape.
    """
    layers, width, heads, ffn = ENCODERS.get(encoder) or derived(encoder)
    net = Transformer(
        layers, width, heads, heads, width // heads, ffn, gated=False, norm="layer", causal=False
    )
    vision = VisionEncoder("images", net, image_size=448, patch_size=14, positions=PATCHES)
    known = _language(language)
    hidden = known.net.hidden
    branch = EncoderBranch("images", vision, Projector((width, hidden, hidden)))
    return MultimodalModel(f"{encoder}+{language}", known, (branch,))
