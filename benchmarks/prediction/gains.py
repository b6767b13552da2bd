"""Predicted against measured gains of colocated and heterogeneous over homogeneous layouts.

The paper gives sizes of modules in parameters only, so published models of those sizes stand in for
them. Steps in seconds are not to be compared; percentages of gain are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.prediction.tables import (
    Row,
    SkippedRowError,
    described,
    names,
    number,
    table,
    whole,
)
from mimokit.architecture import (
    EncoderBranch,
    LanguageModel,
    MultimodalModel,
    Projector,
    load_model,
)
from mimokit.architecture.from_config import encoder_of_config
from mimokit.config.errors import ConfigError
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import RECOMPUTE_FULL, RECOMPUTE_NAMES, ParallelSizes
from mimokit.prediction import EncoderInput, Workload, costs_of, layout_cost
from mimokit.prediction.deployment_modes import LayoutCost
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.step_time import System, load_software
from tests import networks

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
"""Of one image; each becomes one token of the sequence. From 50 to 75 % of images, homogeneous
steps of A2's 3B encoder take 23 µs longer per image token, those of A3 6 to 9 µs: what one patch
per token takes."""
FROZEN_BESIDE = frozenset({"120B"})
"""Language models beside which encoders do not train. Eight GPUs of A4 encode 262,144 patches by 6B
parameters in 17.2 s: 8 operations per parameter would be 68 % of their peak in products alone,
without attention and norms, and more than twice that beside 12B parameters."""
FAR_ABOVE = 2.0
"""Predicted over printed memory of a run that, beyond the GPU's memory too, ran otherwise."""
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
PLAUSIBLE_WIDTHS = (50, 120)
"""Width over layers of other networks with an encoder's parameters: those of ViT-g and of ViT-22B
are 35 and 128."""
MISTRAL_LARGE = networks.language(88, 12288, 96, 8, 128, 28672, name="120B", vocab=32768)


@dataclass(frozen=True)
class Gain:
    """One layout against the homogeneous one of its workload.

    Attributes:
        label: the row in words.
        measured: gain in tokens per second and GPU count as printed, in percent.
        predicted: the same from predicted steps.
        low: the least that any plausible network of the encoder's size is predicted to gain.
        high: the most.
    """

    label: str
    measured: float
    predicted: float
    low: float = math.nan
    high: float = math.nan

    @property
    def counts(self) -> bool:
        """The measured gain is beyond what differs between two runs of the same layout."""
        return abs(self.measured) > 3

    @property
    def right(self) -> bool:
        """The sign is."""
        return (self.measured > 0) == (self.predicted > 0)


def read_gains(folder: Path) -> tuple[list[Gain], dict[str, int]]:
    """Return every gain of the table and why rows were left out; none without such a table.

    Raises:
        DataError: a column is missing.
    """
    gains: list[Gain] = []
    skipped: dict[str, int] = {}
    models = described(folder)
    base: dict[tuple[str, ...], tuple[float, ...]] = {}
    for row in table(folder / FILE, COLUMNS):
        key = (row["table"], row["encoder"], row["llm"], row["seq"], row["vision_pct"], row["gbs"])
        try:
            seconds = tuple(
                float(predicted_outcome(row, model).seconds)
                for model in plausible_models(row["encoder"], row["llm"], models)
            )
        except (SkippedRowError, ConfigError) as why:
            skipped[str(why)] = skipped.get(str(why), 0) + 1
            continue
        if row["mode"] == "H":
            base[key] = seconds
            continue
        measured = number(row, "tokens_gain_pct_vs_H")
        if key in base and measured is not None:
            each = [100 * (one / other - 1) for one, other in zip(base[key], seconds, strict=True)]
            label = f"{row['table']} {row['mode']} {row['encoder']}+{row['llm']} seq {row['seq']} "
            label += f"vision {row['vision_pct']} %"
            gains.append(Gain(label, measured, each[0], min(each), max(each)))
    return gains, skipped


def predicted_outcome(row: Row, model: MultimodalModel | None = None) -> LayoutCost:
    """Return what the predictor says of one row.

    Where the row does not say how many samples a micro-batch has, it is the number whose memory
    comes closest to the row's; without memory either it is 1. A homogeneous layout that could not
    have fitted ran with encoders that were recomputed or did not train, whichever comes closer.

    Args:
        model: that stands in for the row's; None: the most likely one.
    """
    model = model or stand_in(row["encoder"], row["llm"])
    printed = number(row, "peak_mem_gb")
    peak = None if printed is None else 1e9 * printed
    given = whole(row, "num_microbatches", 0)
    frozen = row["llm"] in FROZEN_BESIDE
    if given:
        sizes = _sizes(row, model, whole(row, "gbs") / whole(row, "llm_dp") / given)
        return _as_it_fits(row, model, sizes, peak, frozen=frozen)
    choices = MICRO_BATCHES if peak else MICRO_BATCHES[:1]
    costs = [_outcome(row, model, _sizes(row, model, size), frozen=frozen) for size in choices]
    return costs[0] if peak is None else _closest(costs, peak)


def _closest(costs: Sequence[LayoutCost], peak: float) -> LayoutCost:
    return min(costs, key=lambda cost: abs(math.log(float(cost.memory) / peak)))


def _as_it_fits(
    row: Row,
    model: MultimodalModel,
    sizes: Mapping[str, ParallelSizes],
    peak: float | None,
    *,
    frozen: bool,
) -> LayoutCost:
    cost = _outcome(row, model, sizes, frozen=frozen)
    memory = float(cost.memory)
    fits = peak is None or memory < max(FAR_ABOVE * peak, _hardware(row).memory_bytes)
    if peak is None or fits or row["mode"] != "H":
        return cost
    name = model.branches[0].name
    recomputed = {**sizes, name: replace(sizes[name], recompute=RECOMPUTE_FULL)}
    others = (
        _outcome(row, model, recomputed, frozen=frozen),
        _outcome(row, model, sizes, frozen=True),
    )
    return _closest((cost, *others), peak)


def _hardware(row: Row) -> Hardware:
    return load_hardware(row["gpu"].split("-")[0])


def _outcome(
    row: Row, model: MultimodalModel, sizes: Mapping[str, ParallelSizes], *, frozen: bool
) -> LayoutCost:
    name = model.branches[0].name
    share = number(row, "vision_pct")
    if share is None:
        raise SkippedRowError("vision_pct is not given")
    images = whole(row, "seq") * share / 100 / PATCHES
    workload = Workload(
        whole(row, "seq"),
        whole(row, "gbs"),
        row["precision"],
        {name: EncoderInput(PATCHES, images)},
        frozen=frozenset({name} if frozen else ()),
    )
    if row["mode"] not in MODES:
        raise SkippedRowError(f"mode {row['mode']} is none of {', '.join(MODES)}")
    layout = Layout(MODES[row["mode"]], sizes)
    system = System(_hardware(row), load_software(SOFTWARE), workload.precision)
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
        recompute=_recompute(row[f"{prefix}_recompute"]),
    )


def _recompute(text: str) -> int:
    if text not in RECOMPUTE_NAMES:
        raise SkippedRowError(f"recompute {text} is none of {', '.join(RECOMPUTE_NAMES)}")
    return RECOMPUTE_NAMES.index(text)


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
    return networks.language(layers, width, heads, heads, 128, 2 * ffn // 3, name=size, vocab=32000)


def plausible_models(
    encoder: str, language: str, models: Mapping[str, Row] | None = None
) -> tuple[MultimodalModel, ...]:
    """Return models with modules of the given sizes, the most likely one first.

    Args:
        models: size -> dimensions that the folder gives.
    """
    known = {} if models is None else models
    own = _described(known[language]) if language in known else None
    if encoder in known:
        net = _described(known[encoder]).net
        shape = (net.layers, net.hidden, net.heads, net.ffn)
        return (stand_in(encoder, language, shape, own),)
    others = [derived(encoder, widths) for widths in PLAUSIBLE_WIDTHS]
    return tuple(stand_in(encoder, language, shape, own) for shape in (None, *others))


def _described(row: Row) -> LanguageModel:
    hidden, heads = whole(row, "hidden"), whole(row, "heads")
    return networks.language(
        whole(row, "layers"), hidden, heads, whole(row, "kv_heads", heads),
        whole(row, "head_dim", hidden // heads), whole(row, "ffn", 4 * hidden),
        name=row["model"], vocab=whole(row, "vocab", 32000),
    )  # fmt: skip


def stand_in(
    encoder: str,
    language: str,
    shape: tuple[int, int, int, int] | None = None,
    own: LanguageModel | None = None,
) -> MultimodalModel:
    """Return a model whose modules have about the given numbers of parameters.

    Sizes of which no published model is listed become a network of the usual shape.

    Args:
        shape: layers, width, heads and inner width of the encoder; None: as usual.
        own: the language model; None: one of the given size.
    """
    layers, width, heads, ffn = shape or ENCODERS.get(encoder) or derived(encoder)
    images = {"image_size": 32 * 14, "patch_size": 14, "num_channels": 3}
    sizes = layers, width, heads, heads, width // heads, ffn
    tower = networks.network(*sizes, **networks.GPT, **images, seq_length=PATCHES)
    vision = encoder_of_config("images", tower)
    known = own or _language(language)
    hidden = known.net.hidden
    branch = EncoderBranch("images", vision, Projector((width, hidden, hidden)))
    return MultimodalModel(f"{encoder}+{language}", known, (branch,))
