"""What is wrong with the weights that the modules of a run start from, and are saved as."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.huggingface.stated_fields import contradictions, network_fields
from mimokit.architecture.modules import MultimodalModel
from mimokit.config import ExperimentConfig, MimoParallelismConfig, ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.config.messages import written
from mimokit.planning.weights.layout_files import stored_weights
from mimokit.planning.weights.modules import module_planner, saved_modules
from mimokit.units import counted, listed


def check_weight_files(model: MimoParallelismConfig) -> None:
    """Reject modules that cannot start from their weights.

    Raises:
        ConfigError: a directory does not exist, has no config.json or a wrong one, contradicts the
            config, or its files do not have the tensors of the module.
    """
    problems: list[Problem] = list(_missing(model))
    missing = {problem.value for problem in problems}
    for name, network in model.module_architectures.items():
        if network.weights is None or network.weights in missing:
            continue
        language = name == model.llm_module_name
        try:
            fields = network_fields(network.weights, language=language)
        except ConfigError as error:
            what = f"Module '{name}': weights is {network.weights}: "
            problems += [_of_module(name, what, problem) for problem in error.problems]
            continue
        problems += [
            Problem(
                name,
                field,
                stated,
                f"Module '{name}': {field} is {_text(stated)}, but its weights in "
                f"{network.weights} have {_text(stored)}; leave it out.",
                {"path": f"model.module_architectures.{name}.{field}", "value": None},
            )
            for field, stated, stored in contradictions(network, fields, language=language)
        ] or list(_unreadable(model, name, network))
    refuse_if_any(problems)


def _missing(model: MimoParallelismConfig) -> Iterator[Problem]:
    modules: dict[str, list[str]] = {}
    for name, network in model.module_architectures.items():
        if network.weights is not None and not os.path.exists(network.weights):
            modules.setdefault(network.weights, []).append(name)
    for directory, names in modules.items():
        which = listed([f"'{name}'" for name in names])
        sentence = (
            f"Module{'s' if len(names) > 1 else ''} {which}: weights is {directory}, which does "
            "not exist; save_pretrained of a Hugging Face model makes such a directory."
        )
        yield Problem(names[0], "weights", directory, sentence)


def _unreadable(
    model: MimoParallelismConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    directory, sizes = str(network.weights), model.get_parallelism(name)
    try:
        module_planner(
            stored_weights(directory),
            network,
            language=name == model.llm_module_name,
            tensor_parallel=sizes.tensor_parallel,
            pipeline_parallel=sizes.pipeline_parallel,
        )
    except ConfigError as error:
        yield from (_of_module(name, f"Module '{name}': ", problem) for problem in error.problems)


def check_saving(config: ExperimentConfig) -> None:
    """Reject a `runtime.save_hf` that cannot be written at the end of the run."""
    target = config.runtime.save_hf
    if target is None:
        return
    why, model = None, config.model
    weights = model.get_architecture(model.llm_module_name).weights
    if weights is None:
        why = f"module '{model.llm_module_name}' must start from the weights of a language model"
    elif isinstance(from_hf(weights), MultimodalModel):
        encoders = model.encoder_module_names
        others = [name for name in encoders if saved_modules(model).get(name) != ""]
        if others or len(encoders) != 1:
            named = (
                f"not module '{others[0]}'" if others else f"not {counted(len(encoders), 'module')}"
            )
            why = f"one encoder must start from {weights}, of which it is a part, {named}"
    if model.get_architecture(model.llm_module_name).num_moe_experts is not None:
        why = "weights with experts are read and not written; save a runtime.checkpoint instead"
    if why is None and os.path.exists(target):
        why = "it exists; name a new directory"
    if why is not None:
        sentence = f"Section 'runtime': save_hf is {target}, but {why}."
        refuse_if_any([Problem("runtime", "save_hf", target, sentence)])


def _of_module(name: str, before: str, problem: Problem) -> Problem:
    return replace(problem, module=name, sentence=f"{before}{problem.sentence}")


def _text(value: Any) -> str:
    return written(value) if isinstance(value, int | str) else str(value)
