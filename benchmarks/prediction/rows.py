"""Measured runs of language models, read from tables with the published columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.prediction.tables import (
    Row,
    SkippedRowError,
    described,
    filled,
    names,
    number,
    table,
    whole,
)
from mimokit.architecture import (
    LanguageModel,
    load_model,
)
from mimokit.architecture.from_config import language_of_config
from mimokit.architecture.transformer import layer_parameters
from mimokit.config.recipe import RecipeConfig
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    ParallelSizes,
)
from mimokit.prediction.hardware import hardware_names, load_hardware
from tests import networks

PRECISIONS = {
    "BF16": "bf16",
    "fp16": "fp16",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "FP8-DS": "fp8",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
}
GPT_VOCABULARY = 51200
"""GPT-2's vocabulary as Megatron pads it for 8 tensor-parallel ranks."""
LATENT_MODELS = {7168: "deepseek-v3", 5120: "deepseek-v2"}
"""Hidden size -> the published model whose latent attention the tables leave out; that of any other
model stands in the columns of `LATENT`."""
LATENT = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim")
LEFT_OUT: Mapping[int, Mapping[str, int]] = {2880: {"window": 128, "biases": 1}}
"""Hidden size -> columns, if neither a table nor models.csv has them: GPT-OSS alternates layers of
128 tokens with full ones, and all its products have biases (config.json of openai/gpt-oss-120b)."""


@dataclass(frozen=True)
class Measured:
    """One measured run.

    Attributes:
        table: the file it is from.
        workload: rows of one workload differ in layout only.
        model: what ran.
        hardware: name of the GPU.
        software: name of the training stack.
        precision: of matrix products.
        sizes: the layout.
        seq: tokens per sample.
        global_batch: samples per step.
        gpus: as printed.
        seconds: measured step time, None where only TFLOP/s are printed.
        tflops: printed model TFLOP/s per GPU, None if it was not.
        memory_gib: measured peak memory, None if it was not.
        label: the row in words.
        recipe: what is known of how it ran.
        trained: False: only adapters train (LoRA).
        stated: the table says how the stack ran; otherwise predictions suppose their defaults.
        release: of the stack; empty: not given.
        stack: the program that ran: bridge, simumax, megatron-2021 or another.
        keeps_less: activations were offloaded, which memory leaves out.
    """

    table: str
    workload: str
    model: LanguageModel
    hardware: str
    software: str
    precision: str
    sizes: ParallelSizes
    seq: int
    global_batch: int
    gpus: int
    seconds: float | None
    tflops: float | None
    memory_gib: float | None
    label: str
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    trained: bool = True
    stated: bool = True
    release: str = ""
    stack: str = "bridge"
    keeps_less: bool = False

    @property
    def published(self) -> object:
        """What two rows of one published run share; unnamed releases are runs of their own."""
        figures = (self.seconds, self.memory_gib, self.tflops)
        return (self.label, self.workload, self.recipe.model_dump_json(), *figures)

    @property
    def micro_batches(self) -> float:
        """Micro-batches per step."""
        return self.global_batch / (self.sizes.data * self.sizes.micro_batch)

    @property
    def name(self) -> str:
        """The model's name: rows are split by it."""
        return self.model.name


PUBLISHED, A100 = "published-performance.csv", "a100-measured-steps.csv"
PUBLISHED_COLUMNS = names(
    "source release task model arch layers hidden heads kv_heads head_dim ffn vocab "
    "experts topk moe_ffn shared_ffn dense_layers seq gbs mbs gpus gpu precision tp pp cp "
    "ep dp vp fsdp recompute tflops_per_gpu iter_time_s mem_gib note"
)
A100_COLUMNS = names(
    "scope precision gpus gbs mbs hidden heads layers ffn seq tp dp pp recompute iter_time_ms"
)


def read(folder: Path) -> tuple[list[Measured], dict[str, int]]:
    """Return all rows of the tables of a folder, and how many were left out, by reason.

    Raises:
        DataError: a table lacks a column.
    """
    found: list[Measured] = []
    skipped: dict[str, int] = {}
    readers: tuple[tuple[str, tuple[str, ...], Callable[[Row], Measured]], ...] = (
        (PUBLISHED, PUBLISHED_COLUMNS, _published),
        (A100, A100_COLUMNS, _a100),
    )
    models = described(folder)
    for file, columns, reader in readers:
        seen: set[object] = set()
        for row in table(folder / file, columns):
            try:
                measured = reader(filled(row, models.get(row.get("model", ""))))
                if measured.published in seen:
                    raise SkippedRowError("the same run is published twice")
                seen.add(measured.published)
                found.append(measured)
            except SkippedRowError as why:
                skipped[str(why)] = skipped.get(str(why), 0) + 1
    return found, skipped


def _published(row: Row) -> Measured:
    if "unstated" in row["vp"]:
        raise SkippedRowError("interleaved, and how many chunks a stage has is not stated")
    software = _software(row)
    old = software == "megatron-2021"
    gpu = row["gpu"].lower().split("-")[0]
    sequence_parallel = not old or "SP" in row["recompute"].replace("no SP", "")
    micro_batch = whole(row, "mbs", 1 if old else None)
    sizes = ParallelSizes(
        tensor=whole(row, "tp", 1),
        pipeline=whole(row, "pp", 1),
        virtual=whole(row, "vp", 1) or 1,
        context=whole(row, "cp", 1),
        expert=whole(row, "ep", 1),
        data=whole(row, "dp", 1),
        micro_batch=micro_batch,
        recompute=_recompute(row["recompute"]),
        sequence_parallel=sequence_parallel,
        distributed_optimizer=not old,
        fully_sharded=whole(row, "fsdp", 0) > 0,  # shards, or in some releases a mere 1
    )
    if sizes.pipeline == 1:
        sizes = replace(sizes, virtual=1)
    model = _model(row)
    gpus, seq, batch = whole(row, "gpus"), whole(row, "seq"), whole(row, "gbs")
    if int(sizes.ranks) != gpus:
        per_replica = sizes.tensor * sizes.pipeline * sizes.context
        if gpus % per_replica or batch * per_replica % gpus:
            raise SkippedRowError("the parallel sizes do not make up the GPUs")
        sizes = replace(sizes, data=gpus // per_replica)
    precision = PRECISIONS.get(row["precision"])
    if precision is None:
        raise SkippedRowError(f"precision {row['precision']} is not known")
    if gpu not in hardware_names():
        raise SkippedRowError(f"GPU {row['gpu']} is not described")
    if precision not in load_hardware(gpu).precisions:
        raise SkippedRowError(f"{row['gpu']} has no {row['precision']}")
    layout = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "vp", "cp", "ep", "dp", "mbs"))
    measured = Measured(
        table="published-performance",
        workload=f"{row['model']} {row['gpu']} {row['precision']} gpus{gpus} gbs{batch} seq{seq}",
        model=model,
        hardware=gpu,
        software=software,
        precision=precision,
        sizes=sizes,
        seq=seq,
        global_batch=batch,
        gpus=gpus,
        seconds=number(row, "iter_time_s"),
        tflops=number(row, "tflops_per_gpu"),
        memory_gib=number(row, "mem_gib"),
        label=f"{row['release']} {row['model']} {row['gpu']} {row['precision']} {layout}",
        recipe=recipe_of_row(row, model.net.moe is not None),
        trained=row["task"].lower() != "lora",
        release=row["release"],
        stack=_stack(row, software),
        keeps_less=whole(row, "offload_layers", 0) > 0,
        stated=old or "SimuMax" in row["source"] or bool((row.get("graphs") or "").strip()),
    )
    if measured.seconds is None and measured.tflops is not None:
        return replace(measured, seconds=model_tflops(measured, 1.0) / measured.tflops)
    return measured


_FLAGS = {
    "dispatch_overlap": "dispatch_overlap",
    "fused_experts": "fused_experts",
    "attention_8bit": "attention_8bit",
    "dropped": "drops_tokens",
}
"""Column -> field of a recipe."""
_OF_EXPERTS = ("dispatcher", "dispatch_overlap", "fused_experts", "dropped")


def recipe_of_row(row: Row, has_experts: bool) -> RecipeConfig:
    """Return what a row says of how its training stack ran; empty columns are unknown."""
    said: dict[str, Any] = {}
    for column in ("graphs", "dispatcher", *_FLAGS):
        text = (row.get(column) or "").strip()
        if text and (has_experts or column not in _OF_EXPERTS):
            is_flag = column in _FLAGS
            said[_FLAGS.get(column, column)] = text.lower() == "true" if is_flag else text
    modules = (row.get("recompute_modules") or "").strip()
    if modules:
        said["recompute_modules"] = modules.split("+")
    if (row.get("recompute_layers") or "").strip():
        said["recompute_layers"] = whole(row, "recompute_layers")
    if "SimuMax" in row["source"] and has_experts:
        said.setdefault("dispatcher", "alltoall")
        said.setdefault("graphs", "none")
    return RecipeConfig(**said)


def _stack(row: Row, software: str) -> str:
    """Return the program that ran; rows of one that is not described are judged apart."""
    said = (row.get("stack") or "").strip().lower()
    usual = {"megatron-2021": "megatron-2021", "megatron-core": "simumax"}
    return said or usual.get(software, "bridge")


def _software(row: Row) -> str:
    if row["arch"] == "dense-gpt":
        return "megatron-2021"
    if "SimuMax" in row["source"]:
        return "megatron-core"
    release = row["release"]
    if "tokendrop" in row["note"] or (release == "25.09" and "dropless" not in row["note"]):
        return "megatron-bridge-dropping"
    early = release.startswith("25") or release == "26.02"
    return "megatron-bridge-2025" if early else "megatron-bridge"


def _recompute(text: str) -> int:
    if text.startswith("full"):
        return RECOMPUTE_FULL
    return RECOMPUTE_SELECTIVE if text.startswith("selective") else RECOMPUTE_NONE


def _model(row: Row) -> LanguageModel:
    kind, hidden = row["arch"], whole(row, "hidden")
    layers, heads = whole(row, "layers"), whole(row, "heads")
    if kind.startswith("moe-mla"):
        return _latent(row, hidden, layers)
    if not kind.startswith(("dense", "moe")):
        raise SkippedRowError(f"architecture {kind} is not described")
    gpt = kind == "dense-gpt"
    experts = _experts(row, 0) if kind.startswith("moe") else {}
    known = LEFT_OUT.get(hidden, {})
    biases = whole(row, "biases", known.get("biases", 0)) > 0
    window = whole(row, "window", known.get("window", 0))
    return networks.language(
        name=row["model"],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=whole(row, "kv_heads", heads),
        head_dim=whole(row, "head_dim", hidden // heads),
        ffn=whole(row, "ffn", 4 * hidden),
        **(networks.GPT if gpt else networks.LLAMA) | {"ffn_bias": biases},
        **experts,
        window=window or None,
        unwindowed=whole(row, "full_attention_layers", layers // 2 if window else 0),
        vocab=whole(row, "vocab"),
        tied=gpt,
        positions=whole(row, "seq") if gpt else 0,
    )


def _experts(row: Row, dense_layers: int) -> dict[str, int]:
    return {
        "experts": whole(row, "experts"),
        "top_k": whole(row, "topk"),
        "expert_ffn": whole(row, "moe_ffn"),
        "shared_ffn": whole(row, "shared_ffn", 0) or None,
        "leading_dense": whole(row, "dense_layers", dense_layers),
    }


def _latent(row: Row, hidden: int, layers: int) -> LanguageModel:
    """Return a model with latent attention, whose ranks the tables do not give.

    The further-token layer is left out where the row says so, and where layers were cut away.
    """
    known = LATENT_MODELS.get(hidden)
    if known is None and not (row.get("kv_rank") or "").strip():
        raise SkippedRowError(f"latent attention: {', '.join(LATENT)} are not given")
    published = load_model(known or "deepseek-v3")
    assert isinstance(published, LanguageModel)
    assert published.net.moe is not None
    given = LATENT if (row.get("kv_rank") or "").strip() else ()
    without = "w/o MTP" in row["note"] or "DeepSeek" not in row["model"]
    changed = {
        "layers": layers, "heads": whole(row, "heads"), "hidden": hidden,
        "ffn": whole(row, "ffn", published.net.ffn), "vocab": whole(row, "vocab"),
        **{name: whole(row, name) for name in given},
        **_experts(row, published.net.moe.dense_layers),
        "next_token_layers": whole(
            row, "further_layers", 0 if without else published.next_token_layers
        ),
    }  # fmt: skip
    network = networks.changed(published.network, **changed)
    return language_of_config(row["model"], network)


def _a100(row: Row) -> Measured:
    hidden, heads, layers = whole(row, "hidden"), whole(row, "heads"), whole(row, "layers")
    scope, seq = row["scope"], whole(row, "seq")
    name = f"GPT {layers} x {hidden}"
    model = networks.language(
        layers, hidden, heads, heads, hidden // heads, whole(row, "ffn"), **networks.GPT,
        name=name, vocab=GPT_VOCABULARY, tied=True, positions=seq,
    )  # fmt: skip
    sizes = ParallelSizes(
        tensor=whole(row, "tp"),
        pipeline=whole(row, "pp"),
        data=whole(row, "dp"),
        micro_batch=whole(row, "mbs"),
        recompute=_recompute(row["recompute"]),
        sequence_parallel=False,
        distributed_optimizer=False,
    )
    gpus, batch = whole(row, "gpus"), whole(row, "gbs")
    seconds = number(row, "iter_time_ms")
    layout = " ".join(f"{key}{row[key]}" for key in ("tp", "pp", "dp", "mbs"))
    return Measured(
        table=f"a100-measured-steps ({scope}-node)",
        workload=f"{name} gpus{gpus} gbs{batch}",
        model=model,
        hardware="a100-4nic" if scope == "multi" else "a100",
        software="megatron-2021",
        precision=PRECISIONS.get(row["precision"], "fp16"),
        sizes=sizes,
        seq=seq,
        global_batch=batch,
        gpus=gpus,
        seconds=None if seconds is None else seconds / 1000,
        tflops=None,
        memory_gib=None,
        label=f"{name} {layout}",
        stack="megatron-2021",
    )


def model_tflops(row: Measured, seconds: float) -> float:
    """Return model TFLOP/s per GPU as Megatron-Bridge counts them.

    6 per parameter that a token visits, and the causal half of attention; no embedding look-up.
    """
    net = row.model.net
    table = float(row.model.padded_vocab(row.sizes.tensor)) * net.hidden
    mixed = net.layers - net.dense_layers
    visited = net.dense_layers * layer_parameters(net, None).active
    visited += mixed * layer_parameters(net, net.moe).active
    visited += table * (1 + row.model.next_token_layers)
    core = net.layers * net.heads * (net.qk_dim + net.v_dim) * row.seq / 2
    tokens = row.global_batch * row.seq
    return 6 * (visited + core) * tokens / seconds / row.gpus / 1e12
