"""A file may hold many experiments: `sweep` says what differs between them.

    extends: digits_colocated.yaml
    sweep:
      data.num_microbatches: [1, 2]         # values of one key: two experiments
      layout:                               # named settings of several keys, which go together
        tp4:
          model.module_parallelisms.language_module: {tensor_parallel: 4, data_parallel: 2}
        tp8:
          model.module_parallelisms.language_module: {tensor_parallel: 8, data_parallel: 1}
          data.base_batch_size: 64

Every value of one entry meets every value of the others: here 2 x 2 experiments. A key is a path
with dots into the sections model, data, runtime, prediction and strategy. What a value says is
merged over the rest of the file, as a file is over its parent. An entry with a list varies the key
that it is named after; the entry `layout` has a name of your choice.

An experiment is named after its file and what differs: `FILE-num_microbatches_2-tp4`. Parallel
sizes have their labels (`tp2`), and a module stands in front where two entries vary the same field.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.experiment import ExperimentConfig
from mimokit.config_files.inheritance import PRESET_PREFIX, merge, merged, read_layers
from mimokit.config_files.loading import SWEEP, config_from_mapping
from mimokit.config_files.sweep_entries import (
    MOST_EXPERIMENTS,
    Variant,
    file_name,
    read_entries,
    unique_names,
)
from mimokit.config_files.weights import counted_from


@dataclass(frozen=True)
class LoadedExperiment:
    """One experiment of a file.

    Attributes:
        name: of the experiment and its folder: the file's name without its suffix; of a sweep also
            what differs, in letters, digits, dots, underscores and hyphens.
        changes: path -> what the sweep sets there; empty for a file without a sweep.
    """

    name: str
    changes: Mapping[str, Any]
    config: ExperimentConfig | None
    problems: tuple[Problem, ...] = ()


def load_experiments(
    config_path: str | os.PathLike[str], *, world_size: int | None = None
) -> tuple[LoadedExperiment, ...]:
    """Return the experiments of a file: one, or all combinations of its `sweep`.

    A combination that is refused is among them, with its problems. A file that cannot be read, or
    whose sweep is wrong, is one refused experiment.

    The arguments are those of `load_experiment_config`.
    """
    name = os.fspath(config_path)
    stem = Path(name.removeprefix(PRESET_PREFIX)).stem
    try:
        layers = read_layers(name)
        content = merged(layers)
        sweep = content.pop(SWEEP, None)
        experiments = () if sweep is None else combinations(sweep, file_name(stem))
    except ConfigError as error:
        return (LoadedExperiment(stem, {}, None, error.problems),)
    if sweep is None:
        return (_loaded(stem, {}, content, world_size),)
    folder = layers[0].path.parent
    return tuple(
        _loaded(
            combination.name,
            combination.changes,
            {**merge(content, counted_from(folder, combination.content)), "name": combination.name},
            world_size,
        )
        for combination in experiments
    )


@dataclass(frozen=True)
class Combination:
    """One combination of a sweep.

    Attributes:
        content: the same as nested mappings, to be merged over the file.
    """

    name: str
    changes: Mapping[str, Any]
    content: Mapping[str, Any]


def combinations(sweep: object, stem: str) -> tuple[Combination, ...]:
    """Return all combinations of a sweep, the values of its last entry changing fastest.

    Raises:
        ConfigError: it is not a mapping of lists and named settings, a key is not a path into a
            config, two entries set the same key, or it has more than `MOST_EXPERIMENTS`
            experiments.
    """
    entries = read_entries(sweep)
    if math.prod(map(len, entries)) > MOST_EXPERIMENTS:
        sentence = (
            f"Section 'sweep': its {len(entries)} entries make more than the {MOST_EXPERIMENTS:,} "
            "experiments that one file may have; shorten their lists."
        )
        raise ConfigError([Problem(SWEEP, SWEEP, None, sentence)])
    chosen = list(itertools.product(*entries))
    names = unique_names(stem, [[variant.label for variant in variants] for variants in chosen])
    return tuple(_combined(name, variants) for name, variants in zip(names, chosen, strict=True))


def _combined(name: str, variants: Sequence[Variant]) -> Combination:
    changes = {path: value for variant in variants for path, value in variant.changes.items()}
    content: dict[str, Any] = {}
    for path, value in changes.items():
        content = merge(content, _nested(path.split("."), value))
    return Combination(name, changes, content)


def _nested(keys: Sequence[str], value: object) -> dict[str, Any]:
    inner = value
    for key in reversed(keys):
        inner = {key: inner}
    assert isinstance(inner, dict)
    return inner


def _loaded(
    name: str, changes: Mapping[str, Any], content: Mapping[str, Any], world_size: int | None
) -> LoadedExperiment:
    try:
        config = config_from_mapping(
            content, name=name, world_size=world_size, world_may_be_open=world_size is None
        )
    except ConfigError as error:
        return LoadedExperiment(name, changes, None, error.problems)
    return LoadedExperiment(name, changes, config)
