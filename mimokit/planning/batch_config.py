"""The samples of a micro-batch that the replicas of all modules can share."""

from mimokit.config import ConfigError, DataConfig, MimoParallelismConfig
from mimokit.config.rules import ValidationContext
from mimokit.config.rules.pair_rules import SAMPLES
from mimokit.config.rules.sharding import pair_problems
from mimokit.config.world_size import resolve


def validate_heterogeneous_batch_config(
    model_config: MimoParallelismConfig, data_config: DataConfig
) -> int:
    """Return the samples of one micro-batch, which every module's replicas must divide.

    Over all replicas it is `base_batch_size * data_parallel of the language module`.

    Raises:
        ConfigError: a module whose data_parallel is missing or does not divide it.
    """
    world = resolve(model_config, None)
    language = model_config.llm_module_name
    context = ValidationContext(model_config, data_config)
    problems = (*world.problems, *pair_problems(context, (SAMPLES,)))
    if problems:
        raise ConfigError(problems)
    replicas = model_config.get_parallelism(language).data_parallel
    return data_config.base_batch_size * (replicas or world.sizes[language].data_parallel or 1)
