"""Where a field is in the nested mapping of a config, and what it is called for short."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mimokit.axes import CONFIG_FIELDS, RANK_AXES, SPELLINGS, Axis, Choice
from mimokit.config import (
    DataConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    PredictionConfig,
)

Path = tuple[str, ...]

SIZES: Path = ("model", "module_parallelisms")
ALL_MODULES = "*"
"""In place of a module's name in a path."""
NETWORKS: Path = ("model", "module_architectures")
TOKENS: Path = ("model", "special_token_ids")
LENGTHS: Path = ("data", "modality_seq_lengths")
PREDICTION: Path = ("prediction",)
"""What predictions and searches suppose."""
OF_DATA: tuple[Path, ...] = (
    LENGTHS,
    ("data", "modality_presence"),
    ("data", "modality_frames"),
    ("prediction", "inputs"),
)
"""What the data section, and the one for predictions, say per encoder."""

SIZE_FIELDS = tuple(ModuleParallelismConfig.model_fields)
SIZE_INPUTS = (*(CONFIG_FIELDS[axis] for axis in RANK_AXES), "rank_offset")
"""The sizes that the planner has an input for; the others it keeps and shows as they stand."""
NETWORK_FIELDS = tuple(ModuleArchitecture.model_fields)
DATA_FIELDS = tuple(DataConfig.model_fields)
PREDICTION_FIELDS = tuple(PredictionConfig.model_fields)
WORLD_FIELDS = ("world_size", "ranks_per_node")
"""Fields of the planner that are in no section of a config."""

_SHORTENED = (
    *RANK_AXES,
    Axis.VIRTUAL_PIPELINE,
    Axis.EXPERT_TENSOR,
    Choice.RECOMPUTE,
    Choice.OPTIMIZER_INSTANCES,
    Choice.SEQUENCE_PARALLEL,
    Choice.DISTRIBUTED_OPTIMIZER,
    Choice.FULLY_SHARDED,
)
_SHORT = {
    **{CONFIG_FIELDS[axis]: SPELLINGS[axis].label for axis in _SHORTENED},
    "rank_offset": "offset",
    "base_batch_size": "micro-batch size",
    "num_microbatches": "micro-batches",
    "gpu": "GPU",
    "price_per_gpu_hour": "price",
}


def short_name(field: str) -> str:
    """Return what a field is called on a button: TP, offset, micro-batches."""
    return _SHORT.get(field, field.replace("_", " "))


def sizes_beyond_inputs(sizes: Mapping[str, Any]) -> str:
    """Return what a module's sizes say beyond their inputs: "VPP 4 · SP · recompute full"."""
    return " · ".join(
        _said(field, sizes[field])
        for field in SIZE_FIELDS
        if field not in SIZE_INPUTS and sizes.get(field) is not None
    )


def _said(field: str, value: object) -> str:
    name = short_name(field)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value}"


def value_at(content: Mapping[str, Any], path: Iterable[str]) -> Any:
    """Return the value at a path, None where there is none."""
    current: Any = content
    for key in path:
        if not isinstance(current, Mapping) or key not in current:
            return None
        current = current[key]
    return current


def mapping_at(content: Mapping[str, Any], path: Iterable[str]) -> Mapping[str, Any]:
    """Return the mapping at a path, an empty one where there is none."""
    section = value_at(content, path)
    return section if isinstance(section, Mapping) else {}


def module_names(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a config lists, as far as they can be read."""
    return tuple(str(name) for name in mapping_at(content, SIZES))


def modules_at(content: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the modules whose size is at a path: one, or all for ALL_MODULES."""
    return module_names(content) if path[2] == ALL_MODULES else (path[2],)


def differences(before: Any, now: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yield each field that differs, with both values; None where there is none."""
    if before == now:
        return
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        yield path, before, now
        return
    for key in dict.fromkeys((*before, *now)):
        yield from differences(before.get(key), now.get(key), (*path, str(key)))


MOST_LETTERS = 14


def shown(value: object) -> str:
    """Return a value as a button says it."""
    if value is None:
        return "auto"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def change_text(path: Path, before: object, now: object) -> str:
    """Return a change as a button says it: "DP 1 → 2"."""
    return f"{short_name(path[-1])} {shown(before)} → {shown(now)}"
