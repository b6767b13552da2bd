"""What keeps a config from being trained from this process."""

from collections.abc import Collection

from mimokit.config import ExperimentConfig, check_runnable
from mimokit.config.checked_code import checked_code
from mimokit.experiment.checkpoints import check_resumable
from mimokit.experiment.results.loggers import make_loggers
from mimokit.planning.weights.problems import check_saving


def check_trainable(config: ExperimentConfig, own: Collection[str] = ()) -> None:
    """Reject what cannot be trained from this process.

    Raises:
        ConfigError: it cannot run, a builder it names cannot be imported, it cannot be saved as
            `runtime.save_hf` says or go on from `runtime.resume_from`, it asks for a logger whose
            library is not installed, or its hardware is not known.
    """
    from mimokit.prediction.peak import peak_of_hardware

    check_runnable(config)
    checked_code(config)
    check_saving(config)
    check_resumable(config, own)
    make_loggers(config.runtime)
    peak_of_hardware(config.runtime, config.total_world_size)
