"""How a layout is trained: precision, schedule, strategy and optimizer, as fields."""

from collections.abc import Mapping
from typing import Any, get_args

from mimokit.config import RuntimeConfig, strategy
from mimokit.config.field_docs import field_docs
from mimokit.config.recipe import Dispatcher, Graphs, RecipeConfig
from mimokit.config.runtime import (
    BLOCK_SCALED,
    PRECISION_OF_RUNS,
    RUNNABLE_PRECISIONS,
    PipelineOrder,
    PipelineSchedule,
)
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import with_value
from mimokit_widgets.planner.paths import Path, mapping_at, value_at

STRATEGY: Path = ("strategy",)
NAME: Path = (*STRATEGY, "name")
OPTIMIZER: Path = (*STRATEGY, "inner_optimizer", "name")
RECIPE: Path = ("runtime", "recipe")
EVERY_STEP = "simple_reduce"
"""The strategy of replicas that name none: gradients are reduced in every step."""

_OPTIMIZERS = tuple(name for name in get_args(strategy.OptimizerName) if name != "muon")

_FIELDS: tuple[tuple[Path, str, tuple[str, ...], str, Any], ...] = (
    (
        ("runtime", "precision"), "precision", (*RUNNABLE_PRECISIONS, *BLOCK_SCALED),
        PRECISION_OF_RUNS, RuntimeConfig,
    ),
    (("runtime", "pipeline_schedule"), "schedule", get_args(PipelineSchedule), "by mode",
     RuntimeConfig),
    (("runtime", "pipeline_order"), "pipeline order", get_args(PipelineOrder), "1f1b",
     RuntimeConfig),
    ((*RECIPE, "graphs"), "CUDA graphs", get_args(Graphs), "unknown", RecipeConfig),
    ((*RECIPE, "dispatcher"), "dispatcher of experts", get_args(Dispatcher), "unknown",
     RecipeConfig),
    (NAME, "strategy", strategy.BETWEEN_LAYOUTS, "none", strategy.StrategyConfig),
    ((*STRATEGY, "replicas"), "replicas", (), "1", strategy.StrategyConfig),
    ((*STRATEGY, "H"), "steps between", (), "", strategy.StrategyConfig),
    (OPTIMIZER, "optimizer", _OPTIMIZERS, "adamw", strategy.OptimizerConfig),
)  # fmt: skip


def training_inputs() -> list[dict[str, Any]]:
    """Return the fields: {path, label, options, empty, hint}; without options a number is typed."""
    return [
        {
            "path": list(path),
            "label": label,
            "options": list(options),
            "empty": empty,
            "hint": field_docs(section)[path[-1]],
        }
        for path, label, options, empty, section in _FIELDS
    ]


def training_texts(content: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands in each field, by its path with dots."""
    values = {".".join(path): value_at(content, path) for path, *_ in _FIELDS}
    return {path: "" if value is None else str(value) for path, value in values.items()}


def set_strategy(draft: Draft, path: Path, value: object) -> Draft:
    """Set a field of the strategy; a name that is taken away takes the strategy with it."""
    if path == NAME:
        return _with_name(draft, value)
    draft = with_value(draft, path, value)
    if path == OPTIMIZER and value is None:
        draft = with_value(draft, OPTIMIZER[:-1], None)
    if value_at(draft.content, NAME) is None:
        draft = with_value(draft, NAME, EVERY_STEP)
    rest = {key: each for key, each in mapping_at(draft.content, STRATEGY).items() if key != "name"}
    alone = not rest and value_at(draft.content, NAME) == EVERY_STEP
    return with_value(draft, STRATEGY, None) if alone else draft


def _with_name(draft: Draft, value: object) -> Draft:
    if value is None:
        return with_value(draft, STRATEGY, None)
    taken = (*strategy.ALWAYS, *strategy.TAKES.get(str(value), ()))
    kept = {key: each for key, each in mapping_at(draft.content, STRATEGY).items() if key in taken}
    return with_value(draft, STRATEGY, {**kept, "name": value})
