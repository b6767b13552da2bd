"""What a rank reads of the weights that a module of a run starts from."""

from pathlib import Path

from mimokit.architecture.huggingface.module_weights import module_family
from mimokit.config import ModelSection, ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem
from mimokit.planning.weights.directory import WeightDirectory
from mimokit.planning.weights.plan import WeightPlanner


def saved_modules(model: ModelSection) -> dict[str, str]:
    """Return the modules that `runtime.save_hf` writes, and the folder in its directory of each.

    The language model, and an encoder that started from the same weights, have none; encoders that
    started from others have one of their name.
    """
    started = {
        name: Path(directory).resolve()
        for name in (model.llm_module_name, *model.encoder_module_names)
        if (directory := model.get_architecture(name).weights) is not None
    }
    written = started.get(model.llm_module_name)
    return {name: "" if directory == written else name for name, directory in started.items()}


def module_planner(
    weights: WeightDirectory,
    network: ModuleArchitecture,
    *,
    language: bool,
    tensor_parallel: int,
    pipeline_parallel: int,
) -> WeightPlanner:
    """Return the planner of the tensors of a module.

    The directory may contain more than the module.
    """
    names = list(weights.tensors)
    prefix = network.weights_prefix
    if prefix is not None:
        names = [name for name in names if name.startswith(prefix)]
        if not names:
            sentence = (
                f"Weights {weights.directory}: no tensor begins with {prefix} "
                f"(weights_prefix); the first is {next(iter(weights.tensors), 'none')}."
            )
            raise ConfigError([Problem("weights", "weights_prefix", prefix, sentence)])
    family = module_family(
        weights.config, names, language=language, network=network, others=list(weights.tensors)
    )
    if prefix is not None or weights.is_multimodal:
        weights = weights.limited_to(family.found.tensors)
    return WeightPlanner(weights, tensor_parallel, pipeline_parallel, family=family)
