"""What a search can be asked about: a model by any of its names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture import (
    Model,
    from_hf,
    load_model,
    model_names,
)
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import MultimodalModel
from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.config_files.inheritance import PRESET_PREFIX
from mimokit.prediction import Workload
from mimokit.prediction.task import workload_of_config

ModelSource = Model | ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


def load_source(source: ModelSource) -> Model | ExperimentConfig:
    """Return the model or the experiment that a source names.

    Args:
        source: a model; the name of a shipped one; a Hugging Face directory or config.json, which
            becomes what a run computes of it; an experiment (config, mapping in the form of a YAML
            file, YAML file or `preset:NAME`).

    Raises:
        ConfigError: the model does not exist, or the experiment is wrong.
    """
    if isinstance(source, Model | ExperimentConfig):
        return source
    if isinstance(source, Mapping):
        return config_from_mapping(source)
    name = os.fspath(source)
    if name.startswith(PRESET_PREFIX) or Path(name).suffix in (".yaml", ".yml"):
        return load_experiment_config(name)
    if name in model_names():
        return load_model(name)
    if os.sep not in name and not Path(name).exists():
        raise unknown_name("Model", name, model_names())
    model = from_hf(name)
    return model.computed if isinstance(model, MultimodalModel) else model


def resolve_source(source: ModelSource, workload: Workload | None) -> tuple[Model, Workload]:
    """Return a model and what one step computes.

    Args:
        source: as `load_source` takes it.
        workload: None takes that of the experiment.

    Raises:
        ConfigError: the model is unknown, or no workload is given.
    """
    loaded = load_source(source)
    if isinstance(loaded, ExperimentConfig):
        return model_of_config(loaded.model, loaded.name), workload or workload_of_config(loaded)
    return loaded, _given(loaded, workload)


def _given(model: Model, workload: Workload | None) -> Workload:
    if workload is not None:
        return workload
    sentence = (
        f"Workload: nothing says what one step of '{model.name}' computes; give seq_length and "
        "global_batch_size, or an experiment, which has both."
    )
    raise ConfigError([Problem("workload", "workload", None, sentence)])
