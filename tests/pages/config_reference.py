"""The reference of all config fields in Markdown, from the classes: `docs/config.md`.

`python -m tests.pages.config_reference > docs/config.md` writes it; a test compares them.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from mimokit.config.architecture import ModuleArchitecture, ModuleOptimizerConfig
from mimokit.config.base import LARGEST_NUMBER, LARGEST_SIZE, ConfigModel
from mimokit.config.data import DataConfig, ModalityPresence
from mimokit.config.experiment import ExperimentConfig, MimoParallelismConfig
from mimokit.config.field_docs import field_docs
from mimokit.config.layer_architecture import ProjectorArchitecture, RopeScaling
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.prediction import PredictedInput, PredictionConfig
from mimokit.config.recipe import RecipeConfig
from mimokit.config.runtime import CheckpointConfig, RuntimeConfig, ValidationConfig
from mimokit.config.strategy import NetworkConfig, OptimizerConfig, StrategyConfig
from mimokit.config_files import sweep

SECTIONS: Mapping[str, type[ConfigModel]] = {
    "The file": ExperimentConfig,
    "`model`": MimoParallelismConfig,
    "`model.module_parallelisms.MODULE`": ModuleParallelismConfig,
    "`model.module_architectures.MODULE`": ModuleArchitecture,
    "`model.module_architectures.MODULE.optimizer`": ModuleOptimizerConfig,
    "`model.module_architectures.MODULE.projector`": ProjectorArchitecture,
    "`model.module_architectures.MODULE.rope_scaling`": RopeScaling,
    "`data`": DataConfig,
    "`data.modality_presence.MODULE`": ModalityPresence,
    "`runtime`": RuntimeConfig,
    "`runtime.validation`": ValidationConfig,
    "`runtime.recipe`": RecipeConfig,
    "`runtime.checkpoint`": CheckpointConfig,
    "`prediction`": PredictionConfig,
    "`prediction.inputs.MODULE`": PredictedInput,
    "`strategy`": StrategyConfig,
    "`strategy.inner_optimizer`, `strategy.outer_optimizer`": OptimizerConfig,
    "`strategy.network`": NetworkConfig,
}

_IN_GENERAL = (LARGEST_NUMBER, LARGEST_SIZE)
"""Bounds that the introduction states once."""


def reference() -> str:
    """Return the Markdown text: one table of key, type, default and meaning per section."""
    parts = [
        "# Config fields",
        "Generated from the config classes. Values that the rest of a file implies may be left "
        "out; `mimokit/config_files/implications.py` lists them. Unknown keys are rejected. "
        "Whole numbers are at most 2**53, those of networks 2**31 - 1.",
    ]
    for place, section in SECTIONS.items():
        parts += [f"## {place}", "\n".join(_table(section))]
    parts += ["## `sweep`", inspect.cleandoc(sweep.__doc__ or "")]
    return "\n\n".join(parts) + "\n"


def _table(section: type[ConfigModel]) -> Iterator[str]:
    properties = section.model_json_schema()["properties"]
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name in section.model_fields:
        meaning = field_docs(section)[name].replace("|", "\\|")
        cells = (f"`{name}`", _type(properties[name]), _default(section, name), meaning)
        yield f"| {' | '.join(cells)} |"


def _default(section: type[ConfigModel], name: str) -> str:
    field = section.model_fields[name]
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, ConfigModel):
        return "its defaults"
    words = {None: "none", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else f"`{value}`"


def _type(schema: Mapping[str, Any]) -> str:
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(
            _type(alternative) for alternative in alternatives if alternative.get("type") != "null"
        )
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        values = values or next(iter(schema.get("patternProperties", {}).values()), {})
        return f"mapping to {_type(values)}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    stated = {key: schema[key] for key in bounds if schema.get(key) not in (None, *_IN_GENERAL)}
    limits = ", ".join(f"{bounds[key]} {limit}" for key, limit in stated.items())
    return f"{schema.get('type', 'value')} {limits}".strip()


if __name__ == "__main__":
    sys.stdout.write(reference())
