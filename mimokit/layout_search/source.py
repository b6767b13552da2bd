"""What a search can be asked about: a model by any of its names."""

from __future__ import annotations

import os
from pathlib import Path

from mimokit.architecture import (
    Model,
    from_hf,
    load_model,
    model_names,
)
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ExperimentConfig, load_experiment_config
from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config.files.inheritance import PRESET_PREFIX
from mimokit.prediction import Workload
from mimokit.prediction.from_config import workload_of_config

ModelSource = Model | ExperimentConfig | str | os.PathLike[str]


def resolve_source(source: ModelSource, workload: Workload | None) -> tuple[Model, Workload]:
    """Return a model and what one step computes.

    Args:
        source: a model; the name of a shipped one; a Hugging Face directory or config.json; an
            experiment (YAML file, `preset:NAME` or config).
        workload: None takes that of the experiment.

    Raises:
        ConfigError: there is no such model, or nothing says what a step computes.
    """
    if isinstance(source, Model):
        return source, _given(source, workload)
    if isinstance(source, ExperimentConfig):
        return model_of_config(source.model, source.name), workload or workload_of_config(source)
    name = os.fspath(source)
    if name.startswith(PRESET_PREFIX) or Path(name).suffix in (".yaml", ".yml"):
        return resolve_source(load_experiment_config(name), workload)
    if name in model_names():
        model = load_model(name)
        return model, _given(model, workload)
    if os.sep not in name and not Path(name).exists():
        raise unknown_name("Model", name, model_names())
    model = from_hf(name)
    return model, _given(model, workload)


def _given(model: Model, workload: Workload | None) -> Workload:
    if workload is not None:
        return workload
    sentence = (
        f"Workload: nothing says what one step of '{model.name}' computes; give seq_length and "
        "global_batch_size, or an experiment, which has both."
    )
    raise ConfigError([Problem("workload", "workload", None, sentence)])
