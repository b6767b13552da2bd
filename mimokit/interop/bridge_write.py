"""A layout as Python for Megatron-Bridge's `MegatronMIMOParallelismConfig`."""

from collections.abc import Iterator
from itertools import combinations

from mimokit.axes import MEGATRON_FIELDS, RANK_AXES, Axis, Choice
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.rules.facts import ModuleFacts, PairFacts
from mimokit.config.rules.module_rules import STAGE_RANKS, broken_rules, rounds_are_whole
from mimokit.config.rules.pair_rules import REPLICAS, broken_pair_rules
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NAMES,
    ParallelSizes,
)
from mimokit.interop.size_fields import beyond_ranks
from mimokit.prediction import Layout, Workload
from mimokit.prediction.layout import LANGUAGE, micro_batches, rank_offsets, sizes_text
from mimokit.prediction.validity import check_counts

TRANSFORMER_CHOICES = (Axis.VIRTUAL_PIPELINE, Choice.RECOMPUTE, Choice.SEQUENCE_PARALLEL)
"""The choices that are fields of a module's TransformerConfig."""

DDP_CHOICES = (Choice.OPTIMIZER_INSTANCES, Choice.DISTRIBUTED_OPTIMIZER, Choice.FULLY_SHARDED)
"""The choices that are fields of a module's DistributedDataParallelConfig."""

_HEAD = '''"""{mode} layout on {gpus} GPUs: {layout}."""

from megatron.bridge.models.megatron_mimo.megatron_mimo_config import (
    MegatronMIMOParallelismConfig,
    ModuleParallelismConfig,
)

WORLD_SIZE = {gpus}
SEQ_LENGTH = {seq}
GLOBAL_BATCH_SIZE = {batch}
MICRO_BATCH_SIZE = {micro}  # samples of a micro-batch over all replicas, as Bridge counts them
{step}
# MegatronMIMOParallelismConfig has no fields for these. Of a module's TransformerConfig:
TRANSFORMER_OVERRIDES = {transformer}
# Of its DistributedDataParallelConfig:
DDP_OVERRIDES = {ddp}


def parallelism_config() -> MegatronMIMOParallelismConfig:
    """Return the layout, checked against the world size."""
    config = MegatronMIMOParallelismConfig(
        module_parallelisms={{
'''

_TAIL = """        },
    )
    config.finalize(WORLD_SIZE)
    return config
"""


def to_bridge(layout: Layout, workload: Workload) -> str:
    """Return Python that builds the layout in Megatron-Bridge; the language module is `language`.

    Raises:
        ConfigError: Bridge rejects it: modules need separate ranks, tensor parallel sizes must be
            powers of two, replicas must divide each other, expert parallel sizes must divide the
            ranks of a stage, other modules must be encoders that read data, without experts
            (`MegatronMIMOParallelismConfig.finalize`); or Megatron-Core does: interleaved chunks
            take micro-batches in multiples of the stages.
    """
    check_counts(layout)
    refuse_if_any(
        Problem("Megatron-Bridge", "layout", str(layout), f"Megatron-Bridge: {sentence}")
        for sentence in (*bridge_problems(layout), *_broken_rounds(layout, workload))
    )
    language_sizes = layout.modules[layout.language]
    text = _HEAD.format(
        mode=layout.mode.capitalize(),
        gpus=layout.gpus,
        layout="; ".join(
            f"{_name(name, layout)} {sizes_text(sizes)}" for name, sizes in layout.modules.items()
        ),
        seq=workload.seq_length,
        batch=workload.global_batch_size,
        micro=int(language_sizes.micro_batch * language_sizes.data),
        step=_beyond_layout(layout, workload),
        transformer=_literal(_transformer_overrides(layout)),
        ddp=_literal(_overrides(layout, DDP_CHOICES)),
    )
    offsets = rank_offsets(layout)
    for name, sizes in layout.modules.items():
        text += _module(_name(name, layout), sizes, offsets[name])
    return text + _TAIL


def bridge_problems(layout: Layout) -> Iterator[str]:
    """Yield the reasons why Megatron-Bridge rejects a layout."""
    if layout.mode != "heterogeneous":
        yield (
            "its config takes only modules on separate ranks that tile the world, and this "
            f"layout is {layout.mode}; choose a heterogeneous one."
        )
    apart = dict.fromkeys(name for fed in layout.feeds.values() for name in fed)
    for name in (name for name in apart if name != layout.language):
        yield (
            f"module '{name}' takes what another one computes, and beside the language module its "
            "config has encoders that read data alone; leave the module out."
        )
    for name, sizes in layout.modules.items():
        if int(sizes.tensor).bit_count() != 1:
            yield (
                f"tensor_parallel of module '{name}' is {sizes.tensor}; it must be a power of two."
            )
        if name != layout.language and sizes.expert > 1:
            yield (
                f"expert_parallel of module '{name}' is {sizes.expert}; encoders are dense, so "
                "set it to 1."
            )
        facts = ModuleFacts(name, is_language=name == layout.language)
        for problem in broken_rules(sizes, facts, (STAGE_RANKS,)):
            yield problem.sentence
    for (other, two), (name, earlier) in combinations(layout.modules.items(), 2):
        between = PairFacts("heterogeneous", name, other)
        for problem in broken_pair_rules(earlier, two, between, (REPLICAS,)):
            yield problem.sentence


def _broken_rounds(layout: Layout, workload: Workload) -> Iterator[str]:
    """Yield chunks for which Megatron-Core takes other numbers of micro-batches."""
    count = micro_batches(layout, workload)
    for name, sizes in layout.modules.items():
        if not rounds_are_whole(count, sizes):
            yield (
                f"module '{name}' has {sizes.virtual} chunks per stage, which take micro-batches "
                f"in multiples of its {sizes.pipeline} stages there, and a step has {count}; "
                "change that, or leave the chunks out."
            )


def _name(name: str, layout: Layout) -> str:
    return LANGUAGE if name == layout.language else name


def _module(name: str, sizes: ParallelSizes, offset: int) -> str:
    written = [axis for axis in RANK_AXES if axis is not Axis.DATA]
    if sizes.expert_tensor > 1:
        written.append(Axis.EXPERT_TENSOR)
    values = {MEGATRON_FIELDS[axis]: int(sizes.size(axis)) for axis in (*written, Axis.DATA)}
    lines = [f"                {field}={value}," for field, value in values.items()]
    lines.append(f"                rank_offset={offset},")
    return "\n".join(
        [f'            "{name}": ModuleParallelismConfig(', *lines, "            ),\n"]
    )


def _transformer_overrides(layout: Layout) -> dict[str, dict[str, object]]:
    overrides = _overrides(layout, TRANSFORMER_CHOICES)
    granularity = MEGATRON_FIELDS[Choice.RECOMPUTE]
    for fields in overrides.values():
        if fields.get(granularity) == RECOMPUTE_NAMES[RECOMPUTE_FULL]:
            fields |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    return overrides


def _overrides(layout: Layout, choices: tuple[Axis | Choice, ...]) -> dict[str, dict[str, object]]:
    overrides: dict[str, dict[str, object]] = {}
    for name, sizes in layout.modules.items():
        for choice, value in beyond_ranks(sizes).items():
            if choice in choices:
                overrides.setdefault(_name(name, layout), {})[MEGATRON_FIELDS[choice]] = value
    return overrides


def _beyond_layout(layout: Layout, workload: Workload) -> str:
    text = ""
    if workload.precision != Workload.precision:
        text += f'PRECISION = "{workload.precision}"  # of matrix products\n'
    if workload.frozen:
        frozen = sorted(_name(name, layout) for name in workload.frozen)
        text += f"FROZEN_MODULES = [{', '.join(map(_quoted, frozen))}]\n"
    return text


def _literal(value: dict[str, dict[str, object]]) -> str:
    if not value:
        return "{}"
    lines = [f"    {_quoted(name)}: {{{_pairs(fields)}}}," for name, fields in value.items()]
    return "\n".join(["{", *lines, "}"])


def _pairs(fields: dict[str, object]) -> str:
    return ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in fields.items())


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
