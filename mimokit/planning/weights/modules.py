"""What a rank reads of the checkpoint that a module of a run starts from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.huggingface.module_weights import (
    contradictions,
    module_family,
    network_fields,
)
from mimokit.architecture.modules import MultimodalModel
from mimokit.config import ExperimentConfig, MimoParallelismConfig, ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.messages import written
from mimokit.planning.weights.directory import WeightDirectory
from mimokit.planning.weights.layout_files import checkpoint_of
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.units import listed


def check_weights(model: MimoParallelismConfig) -> None:
    """Reject modules that cannot start from their checkpoints.

    Raises:
        ConfigError: they do, a directory does not exist, or has no config.json or a wrong one, or
            its files do not have the tensors of the module.
    """
    problems: list[Problem] = list(_missing(model))
    missing = {problem.value for problem in problems}
    for name, network in model.module_architectures.items():
        if network.weights is None or network.weights in missing:
            continue
        language = name == model.llm_module_name
        try:
            found = network_fields(network.weights, language=language)
        except ConfigError as error:
            problems += [_of_module(name, network, one) for one in error.problems]
            continue
        problems += [
            Problem(
                name,
                field,
                mine,
                f"Module '{name}': {field} is {_text(mine)}, but its weights in "
                f"{network.weights} have {_text(theirs)}; leave it out.",
                {"path": f"model.module_architectures.{name}.{field}", "value": None},
            )
            for field, mine, theirs in contradictions(network, found, language=language)
        ] or list(_unreadable(model, name, network))
    refuse_if_any(problems)


def _missing(model: MimoParallelismConfig) -> Iterator[Problem]:
    """Yield one problem per directory that does not exist."""
    modules: dict[str, list[str]] = {}
    for name, network in model.module_architectures.items():
        if network.weights is not None and not Path(network.weights).exists():
            modules.setdefault(network.weights, []).append(name)
    for directory, names in modules.items():
        which = listed([f"'{name}'" for name in names])
        sentence = (
            f"Module{'s' if len(names) > 1 else ''} {which}: weights is {directory}, which does "
            "not exist; save_pretrained of a Hugging Face model makes such a directory."
        )
        yield Problem(names[0], "weights", directory, sentence)


def saved_modules(model: MimoParallelismConfig) -> tuple[str, ...]:
    """Return the modules that `runtime.save_hf` writes.

    They are the language model, and an encoder that started from the same checkpoint.
    """
    weights = model.get_architecture(model.llm_module_name).weights
    return tuple(
        name
        for name in (model.llm_module_name, *model.encoder_module_names)
        if _same_directory(model.get_architecture(name).weights, weights)
    )


def _same_directory(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and Path(one).resolve() == Path(other).resolve()


def _unreadable(
    model: MimoParallelismConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    """Yield why ranks cannot read the tensors of a module; headers alone are read."""
    directory, sizes = str(network.weights), model.get_parallelism(name)
    try:
        module_planner(
            checkpoint_of(directory),
            network,
            language=name == model.llm_module_name,
            tensor_parallel=sizes.tensor_parallel,
            pipeline_parallel=sizes.pipeline_parallel,
        )
    except ConfigError as error:
        for one in error.problems:
            yield replace(one, module=name, sentence=f"Module '{name}': {one.sentence}")


def check_saving(config: ExperimentConfig) -> None:
    """Reject a `runtime.save_hf` that cannot be written at the end of the run.

    Raises:
        ConfigError: the language model did not start from a checkpoint, or another module did not
            that is a part of it, or the directory exists.
    """
    target = config.runtime.save_hf
    if target is None:
        return
    why, model = None, config.model
    weights = model.get_architecture(model.llm_module_name).weights
    if weights is None:
        why = f"module '{model.llm_module_name}' must start from the weights of a language model"
    elif isinstance(from_hf(weights), MultimodalModel):
        encoders = model.encoder_module_names
        others = [name for name in encoders if name not in saved_modules(model)]
        if others or len(encoders) != 1:
            named = f"not module '{others[0]}'" if others else f"not {len(encoders)} modules"
            why = f"one encoder must start from {weights}, of which it is a part, {named}"
    if why is None and Path(target).exists():
        why = "it exists; name a new directory"
    if why is not None:
        sentence = f"Section 'runtime': save_hf is {target}, but {why}."
        refuse_if_any([Problem("runtime", "save_hf", target, sentence)])


def _of_module(name: str, network: ModuleArchitecture, problem: Problem) -> Problem:
    sentence = f"Module '{name}': weights is {network.weights}: {problem.sentence}"
    return replace(problem, module=name, sentence=sentence)


def _text(value: Any) -> str:
    return written(value) if isinstance(value, int | str) else str(value)


def module_planner(
    checkpoint: WeightDirectory,
    network: ModuleArchitecture,
    *,
    language: bool,
    tensor_parallel: int,
    pipeline_parallel: int,
) -> WeightPlanner:
    """Return the planner of the tensors of a module.

    Args:
        checkpoint: that may contain more than the module.

    Raises:
        ConfigError: as `WeightPlanner`; no tensor begins with the prefix.
    """
    names = list(checkpoint.tensors)
    prefix = network.weights_prefix
    if prefix is not None:
        names = [name for name in names if name.startswith(prefix)]
        if not names:
            sentence = (
                f"Weights {checkpoint.directory}: no tensor begins with {prefix} "
                f"(weights_prefix); the first is {next(iter(checkpoint.tensors), 'none')}."
            )
            raise ConfigError([Problem("weights", "weights_prefix", prefix, sentence)])
    family = module_family(
        checkpoint.config,
        names,
        language=language,
        others=list(checkpoint.tensors),
        vocab_multiple=network.vocabulary_multiple or 1,
    )
    whole = prefix is None and not checkpoint.is_llava
    if not whole:
        checkpoint = checkpoint.limited_to(family.found.tensors)
    return WeightPlanner(
        checkpoint,
        tensor_parallel,
        pipeline_parallel,
        family=family,
    )
