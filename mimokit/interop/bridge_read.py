"""Read a layout from Megatron-Bridge Python, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.axes import MEGATRON_FIELDS, RANK_AXES, SIZE_FIELDS, Axis, Choice
from mimokit.config.errors import ConfigError
from mimokit.interop.bridge_write import DDP_CHOICES, TRANSFORMER_CHOICES
from mimokit.interop.imported import (
    LARGEST,
    Imported,
    constants_of,
    names_environment,
    number_at,
    refused,
)
from mimokit.prediction import Layout, Workload
from mimokit.prediction.layout import LANGUAGE, in_first_stage
from mimokit.units import shown

WHERE = "Bridge config"
_refused = partial(refused, WHERE)

_DATA = MEGATRON_FIELDS[Axis.DATA]

_MODULE_AXES = (*RANK_AXES[:-1], Axis.EXPERT_TENSOR, Axis.DATA)
_MODULE_FIELDS = (*(MEGATRON_FIELDS[axis] for axis in _MODULE_AXES), "rank_offset")
"""Fields of Bridge's `ModuleParallelismConfig`, in its order."""

_OVERRIDES = {MEGATRON_FIELDS[choice]: choice for choice in (*TRANSFORMER_CHOICES, *DDP_CHOICES)}
"""Field of TransformerConfig or DistributedDataParallelConfig -> what it sets."""

_FLAGS = (Choice.SEQUENCE_PARALLEL, Choice.DISTRIBUTED_OPTIMIZER, Choice.FULLY_SHARDED)
_IMPLIED = ("recompute_method", "recompute_num_layers")
"""Fields that predictions imply: full recomputation is layer by layer."""

Names = Mapping[str, ast.expr]


def from_bridge(source: str) -> Imported:
    """Return the layout that a Bridge file describes.

    The file has one dictionary of modules with a `ModuleParallelismConfig` each. Samples come from
    the names SEQ_LENGTH, GLOBAL_BATCH_SIZE and MICRO_BATCH_SIZE, precision and frozen modules from
    PRECISION and FROZEN_MODULES, recomputation, chunks and optimizer from TRANSFORMER_OVERRIDES and
    DDP_OVERRIDES, if the file has them, as `to_bridge` writes them.

    Raises:
        ConfigError: the file is not Python, has no such dictionary, or has a value that is not a
            plain number.
    """
    try:
        return _layout_of(ast.parse(source))
    except SyntaxError as error:
        sentence = f"line {error.lineno} is not Python ({error.msg})."
        raise _refused("source", error.lineno, sentence) from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        sentence = "it cannot be parsed as Python (zero bytes, or nested too deeply)."
        raise _refused("source", None, sentence) from None


def _layout_of(tree: ast.Module) -> Imported:
    names = constants_of(tree)
    calls = _modules(tree)
    notes = []
    if any(names_environment(call) for call in calls.values()):
        notes.append("Environment variables were taken at their defaults.")
    values = {name: _values(name, call, names) for name, call in calls.items()}
    modules = {name: _sizes(name, fields) for name, fields in values.items()}
    overridden, aside = _with_overrides(modules, names)
    layout = Layout(_mode(values, modules), overridden, LANGUAGE)
    layout, workload, more = _with_samples(layout, names)
    if workload is not None:
        workload = _with_step(workload, names)
    return Imported(layout, workload, notes=(*notes, *aside, *more))


def _modules(tree: ast.Module) -> dict[str, ast.Call]:
    """Return the modules of the one dictionary of `ModuleParallelismConfig`s, language last."""
    layouts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict) and _is_layout(node)]
    if len(layouts) != 1:
        sentence = (
            f"it has {len(layouts) or 'no'} dictionaries of ModuleParallelismConfig; give a file "
            "with exactly one."
        )
        raise _refused("module_parallelisms", len(layouts), sentence)
    modules: dict[str, ast.Call] = {}
    for key, value in zip(layouts[0].keys, layouts[0].values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else None
        if isinstance(key, ast.Name | ast.Attribute) and "LANGUAGE" in ast.unparse(key).upper():
            name = LANGUAGE
        if not isinstance(name, str):
            sentence = (
                f"line {value.lineno} has a module whose name is not text; write its name in "
                "quotes."
            )
            raise _refused("module_parallelisms", None, sentence)
        assert isinstance(value, ast.Call)
        modules[name] = value
    if LANGUAGE not in modules:
        sentence = (
            f"the modules are {', '.join(modules)}; Bridge calls the language module '{LANGUAGE}'."
        )
        raise _refused("module_parallelisms", list(modules), sentence)
    language = modules.pop(LANGUAGE)
    return {**modules, LANGUAGE: language}


def _is_layout(node: ast.Dict) -> bool:
    return bool(node.values) and all(
        isinstance(value, ast.Call)
        and ast.unparse(value.func).split(".")[-1] == "ModuleParallelismConfig"
        for value in node.values
    )


def _values(name: str, call: ast.Call, names: Names) -> dict[str, int]:
    arguments = dict(zip(_MODULE_FIELDS, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in _MODULE_FIELDS:
            sentence = (
                f"line {keyword.value.lineno} gives '{name}' the field {keyword.arg}, which "
                "ModuleParallelismConfig does not have."
            )
            raise _refused(str(keyword.arg), None, sentence)
        arguments[keyword.arg] = keyword.value
    values = {field: number_at(node, names, WHERE) for field, node in arguments.items()}
    for field, value in values.items():
        if value < (0 if field == "rank_offset" else 1):
            sentence = f"module '{name}' has {field} {value}; it must be positive."
            raise _refused(field, value, sentence)
    if _DATA not in values:
        raise _refused(_DATA, None, f"module '{name}' has no {_DATA}; give it a value.")
    return values


def _sizes(name: str, values: Mapping[str, int]) -> ParallelSizes:
    return ParallelSizes(
        **{SIZE_FIELDS[axis]: values.get(MEGATRON_FIELDS[axis], 1) for axis in _MODULE_AXES}
    )


def _mode(values: Mapping[str, Mapping[str, int]], modules: Mapping[str, ParallelSizes]) -> Any:
    """Return the deployment mode that ranks and sizes imply."""
    offsets = {fields.get("rank_offset", 0) for fields in values.values()}
    if len(modules) > 1 and len(offsets) == len(modules):
        return "heterogeneous"
    language = modules[LANGUAGE]
    same = all(in_first_stage(sizes) == in_first_stage(language) for sizes in modules.values())
    return "homogeneous" if same else "colocated"


def _with_overrides(
    modules: Mapping[str, ParallelSizes], names: Names
) -> tuple[dict[str, ParallelSizes], tuple[str, ...]]:
    """Return the modules with the overrides of two dictionaries, and notes about the rest."""
    overridden, notes = dict(modules), []
    for constant in ("TRANSFORMER_OVERRIDES", "DDP_OVERRIDES"):
        for name, fields in _literal(names, constant):
            if name not in overridden:
                notes.append(f"{constant} names '{name}', which is not a module; it was ignored.")
                continue
            for field, value in fields.items():
                choice = _OVERRIDES.get(field) if isinstance(field, str) else None
                if choice is None:
                    if field not in _IMPLIED:
                        notes.append(f"{constant} of '{name}': {field} was ignored.")
                    continue
                chosen = _override(name, field, choice, value)
                overridden[name] = replace(overridden[name], **{SIZE_FIELDS[choice]: chosen})
    return overridden, tuple(notes)


def _override(name: str, field: str, choice: Axis | Choice, value: object) -> Any:
    """Return a value as `ParallelSizes` counts it."""
    if choice is Choice.RECOMPUTE:
        wanted, right = RECOMPUTE_NAMES[1:], "selective, full or None"
        if value is None or value in wanted:
            return RECOMPUTE_NAMES.index(str(value)) if value else 0
    elif choice in _FLAGS:
        right = "True or False"
        if isinstance(value, bool):
            return value
    else:
        right = f"a whole number of at least 1 and at most {LARGEST:,}, or None"
        if value is None or (type(value) is int and 1 <= value <= LARGEST):
            return value or 1
    sentence = f"module '{name}' has {field} {shown(value)}; it must be {right}."
    raise _refused(field, value, sentence)


def _literal(names: Names, constant: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if constant not in names:
        return
    value = _plain_value(names[constant])
    if not isinstance(value, dict) or not all(
        isinstance(options, dict) for options in value.values()
    ):
        sentence = (
            f"line {names[constant].lineno}: {constant} is not a dictionary of modules and plain "
            "values; write it out."
        )
        raise _refused(constant, None, sentence)
    yield from value.items()


def _with_step(workload: Workload, names: Names) -> Workload:
    """Return a step with the precision and the frozen modules of a file."""
    precision = _value(names, "PRECISION", workload.precision)
    frozen = _value(names, "FROZEN_MODULES", [])
    if not isinstance(precision, str):
        raise _refused("PRECISION", precision, "PRECISION is not text; write a name.")
    if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
        sentence = "FROZEN_MODULES is not a list of names; write one."
        raise _refused("FROZEN_MODULES", frozen, sentence)
    return replace(workload, precision=precision, frozen=frozenset(frozen))


def _value(names: Names, constant: str, missing: object) -> object:
    return _plain_value(names[constant]) if constant in names else missing


def _plain_value(node: ast.expr) -> object:
    """Return the value of a literal, or None if it is not a literal that Python could build."""
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value


def _with_samples(layout: Layout, names: Names) -> tuple[Layout, Workload | None, tuple[str, ...]]:
    wanted = ("SEQ_LENGTH", "GLOBAL_BATCH_SIZE", "MICRO_BATCH_SIZE")
    missing = [name for name in wanted if name not in names]
    if missing:
        note = (
            f"The file does not set {', '.join(missing)}, so the micro-batch of every replica is 1."
        )
        return layout, None, (note,)
    seq, batch, micro = (number_at(names[name], names, WHERE) for name in wanted)
    for name, sizes in layout.modules.items():
        if micro % sizes.data:
            sentence = (
                f"MICRO_BATCH_SIZE is {micro}, which the {sizes.data} replicas of "
                f"'{name}' do not divide; choose a multiple."
            )
            raise _refused("MICRO_BATCH_SIZE", micro, sentence)
    modules = {
        name: replace(sizes, micro_batch=micro // sizes.data)
        for name, sizes in layout.modules.items()
    }
    return replace(layout, modules=modules), Workload(seq, batch), ()
