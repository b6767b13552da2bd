"""The model that a source names, and what a step computes of it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimokit.architecture import Model, from_hf, load_model, model_names
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.modules import MultimodalModel
from mimokit.config import ExperimentConfig
from mimokit.config.errors import ConfigError, Problem, unknown_name
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.config_files.inheritance import PRESET_PREFIX
from mimokit.prediction.task import workload_of_config
from mimokit.prediction.workload import Workload

ModelSource = Model | ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


def load_source(source: ModelSource) -> Model | ExperimentConfig:
    """Return the model or the experiment that a source names.

    Args:
        source: a model; the name of a shipped one; a Hugging Face directory or config.json, which
            becomes what a run computes of it; an experiment (config, mapping in the form of a YAML
            file, YAML file or `preset:NAME`).
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
    if os.sep not in name and not os.path.exists(name):
        raise unknown_name("Model", name, model_names())
    model = from_hf(name)
    return model.computed if isinstance(model, MultimodalModel) else model


def resolve_source(source: ModelSource, workload: Workload | None) -> tuple[Model, Workload]:
    """Return a model and what one step computes: the workload given, or the experiment's."""
    loaded = load_source(source)
    if isinstance(loaded, ExperimentConfig):
        return model_of_config(loaded.model, loaded.name), workload or workload_of_config(loaded)
    if workload is None:
        sentence = (
            f"Workload: nothing says what one step of '{loaded.name}' computes; give seq_length "
            "and global_batch_size (--seq-length, --global-batch), or an experiment, which has "
            "both."
        )
        raise ConfigError([Problem("workload", "workload", None, sentence)])
    return loaded, workload
