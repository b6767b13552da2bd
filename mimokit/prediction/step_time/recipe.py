"""The recipe of a prediction: what a user states of it, and named defaults for the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.recipe import Dispatcher, Graphs, RecipeConfig
from mimokit.prediction.step_time.constants import chip_of

NARROW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
OF_EXPERTS = frozenset({"dispatcher", "dispatch_overlap", "fused_experts", "drops_tokens"})
"""Facts that matter for models with experts alone."""


@dataclass(frozen=True)
class Recipe:
    """What a training stack does; the fields of `RecipeConfig`, all of them decided.

    Attributes:
        default: name of the defaults that stand for what is unknown.
        unknown: fields that nobody stated.
    """

    graphs: Graphs = "none"
    dispatcher: Dispatcher = "alltoall"
    dispatch_overlap: bool = False
    fused_experts: bool = False
    attention_8bit: bool = False
    drops_tokens: bool = False
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int = 0
    default: str = "eager"
    unknown: frozenset[str] = frozenset()


_EAGER = Recipe()
_DEFAULTS: Mapping[str, Recipe] = {
    "eager": _EAGER,
    "hopper": replace(_EAGER, dispatcher="deepep", default="hopper"),
    "blackwell": replace(
        _EAGER, dispatcher="hybridep", graphs="part+attention", default="blackwell"
    ),
}
"""Name -> what Megatron-Bridge's public recipes for experts choose most often on such GPUs. Of
dense models they capture nothing, apart from the smallest."""

_FAMILIES = {"h100": "hopper", "b200": "blackwell", "b300": "blackwell"}
"""Chip -> the name of its defaults."""
DROPPING = "megatron-bridge-dropping"
_STACKS = ("megatron-bridge", "megatron-bridge-2025", DROPPING)
"""Training stacks whose defaults depend on the GPU; others launch every kernel by itself."""


def default_name(gpu: str, stack: str, has_experts: bool) -> str:
    """Return the name of the defaults for a GPU and a training stack."""
    if not has_experts or stack not in _STACKS:
        return "eager"
    return _FAMILIES.get(chip_of(gpu) or "", "eager")


def recipe_of(stated: RecipeConfig | None, gpu: str, stack: str, has_experts: bool) -> Recipe:
    """Return the recipe with defaults for what is not stated."""
    said: dict[str, Any] = {
        name: getattr(stated, name)
        for name in RecipeConfig.model_fields
        if stated is not None and getattr(stated, name) is not None
    }
    if not has_experts:
        for name in sorted(OF_EXPERTS & said.keys()):
            sentence = (
                f"Recipe: {name} is {said[name]}, but the language model has no experts; leave it "
                "out."
            )
            raise ConfigError([Problem("runtime", f"recipe.{name}", said[name], sentence)])
    default = _DEFAULTS[default_name(gpu, stack, has_experts)]
    if stack == DROPPING and has_experts:
        default = replace(default, graphs="full", dispatcher="alltoall", drops_tokens=True)
    unknown = {field.name for field in fields(Recipe)} - {"default", "unknown"} - said.keys()
    if not has_experts:
        unknown -= OF_EXPERTS
    if "recompute_modules" in said:
        said["recompute_modules"] = tuple(said["recompute_modules"])
    return replace(default, **said, unknown=frozenset(unknown))
