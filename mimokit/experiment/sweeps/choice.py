"""Which experiments a sweep has, and which of them are rejected, before anything starts.

Nothing here starts a process or writes a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from mimokit.config import (
    ConfigError,
    ExperimentConfig,
    Problem,
)
from mimokit.config.world_size import needed_world_size
from mimokit.config_files.inheritance import BASELINE, PRESET_PREFIX
from mimokit.config_files.sweep import load_experiments
from mimokit.experiment.prepare import check_trainable
from mimokit.experiment.results.folder import name_problem
from mimokit.planning.weights.modules import check_saving, check_weights
from mimokit.units import listed

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Experiment:
    """One experiment of a sweep.

    Attributes:
        name: of its folder; from a file its name without the suffix.
        source: the file it comes from, absolute; None for a config made in Python.
        config: finalized; None if it was rejected before it could be.
        refusal: why it cannot run; None if it can.
        ranks: of its world; None if that is not known.
    """

    name: str
    source: str | None = None
    config: ExperimentConfig | None = None
    refusal: ConfigError | None = None

    @property
    def ranks(self) -> int | None:
        """The ranks of its world; None if that is not known."""
        if self.config is None:
            return None
        needed = needed_world_size(self.config.model)
        return None if needed is None else needed * self.config.replicas

    @property
    def sentences(self) -> tuple[str, ...]:
        """Why it cannot run."""
        return () if self.refusal is None else tuple(str(self.refusal).splitlines())


def reading_from(found: Sequence[Experiment], source: str | None) -> tuple[Experiment, ...]:
    """Return the experiments, with another `data.source` unless it is None."""
    if source is None:
        return tuple(found)
    return tuple(
        replace(experiment, config=_with_source(experiment.config, source))
        if experiment.config is not None
        else experiment
        for experiment in found
    )


def _with_source(config: ExperimentConfig, source: str) -> ExperimentConfig:
    data = config.data.model_copy(update={"source": source})
    return config.model_copy(update={"data": data})


def saved_in(found: Sequence[Experiment], directory: Path) -> tuple[Experiment, ...]:
    """Return the one experiment, which leaves its language model in a directory.

    Raises:
        ConfigError: there are several, or its language model cannot be saved.
    """
    if len(found) > 1:
        sentence = (
            f"Option --save-hf: {directory} is one directory, and there are {len(found)} "
            "experiments; run the one to be saved alone."
        )
        raise ConfigError([Problem("runtime", "save_hf", str(directory), sentence)])
    return tuple(one if one.config is None else replace(one, config=_saved(one.config, directory))
                 for one in found)  # fmt: skip


def _saved(config: ExperimentConfig, directory: Path) -> ExperimentConfig:
    runtime = config.runtime.model_copy(update={"save_hf": str(directory.absolute())})
    saved = config.model_copy(update={"runtime": runtime})
    check_saving(saved)
    return saved


Source: TypeAlias = "str | os.PathLike[str] | ExperimentConfig | Experiment"
Experiments: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source]"


def collect(experiments: Experiments) -> tuple[Experiment, ...]:
    """Return the experiments that a user names, in order; rejected ones say why.

    Args:
        experiments: a folder (the YAML files directly in it, `baseline.yaml` aside), a file (with
            `sweep:` it has several), a config, several of them, or a mapping of names to them.

    Raises:
        ConfigError: there are none, or the folder cannot be read.
    """
    found = _distinct(_all_of(experiments))
    if not found:
        raise _none(f"{experiments}" if isinstance(experiments, str | os.PathLike) else "(none)")
    return tuple(found)


def choose(found: Iterable[Experiment], engines: int) -> tuple[Experiment, ...]:
    """Finalize the experiments for a cluster; reject those that it cannot run.

    Args:
        found: of `collect`.
        engines: the engines of the cluster. A data_parallel that is left out is worked out for
            all of them.
    """
    return tuple(_chosen(one, engines) for one in found)


def largest_world(found: Iterable[Experiment], most: int) -> int:
    """Return the ranks of the largest world that is not beyond `most`, at least 1."""
    sizes = [one.ranks for one in found if one.refusal is None and one.ranks is not None]
    return max((size for size in sizes if size <= most), default=1)


def refuse_all(chosen: Iterable[Experiment]) -> None:
    """Reject a sweep of which an experiment is rejected.

    Raises:
        ConfigError: with the problems of all; of several experiments each problem names its own.
    """
    every = tuple(chosen)
    problems = [
        replace(problem, sentence=f"{one.name} cannot run: {problem.sentence}")
        if len(every) > 1
        else problem
        for one in every
        if one.refusal is not None
        for problem in one.refusal.problems
    ]
    if problems:
        raise ConfigError(problems)


def _all_of(experiments: Experiments) -> list[Experiment]:
    if isinstance(experiments, Experiment):
        return [experiments]
    if isinstance(experiments, ExperimentConfig):
        return [Experiment(experiments.name, None, experiments.model_copy(deep=True))]
    if isinstance(experiments, Mapping):
        return [
            replace(one, name=name if len(several) == 1 else f"{name}_{one.name}")
            for name, source in experiments.items()
            for several in (_all_of(source),)
            for one in several
        ]
    if isinstance(experiments, str | os.PathLike):
        path = os.fspath(experiments)
        if not path.startswith(PRESET_PREFIX) and Path(path).is_dir():
            return [one for file in _files(Path(path)) for one in _of_file(str(file))]
        return _of_file(path)
    return [one for source in experiments for one in _all_of(source)]


def _files(folder: Path) -> list[Path]:
    """Return the YAML files of experiments directly in a folder, by name."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        reason = error.strerror or str(error)
        raise _none(str(folder), f"it cannot be read ({reason})") from None
    return [
        file
        for file in inside
        if file.suffix in SUFFIXES
        and file.name != BASELINE
        and not file.name.startswith(".")
        and file.is_file()
    ]


def _of_file(path: str) -> list[Experiment]:
    """Return the experiments of a file: one, or those of its `sweep`."""
    source = path if path.startswith(PRESET_PREFIX) else str(Path(path).absolute())
    return [
        Experiment(
            one.name, source, one.config, ConfigError(one.problems) if one.problems else None
        )
        for one in load_experiments(path)
    ]


def _checked(one: Experiment) -> Experiment:
    """Reject a name that a folder cannot have."""
    sentence = name_problem(one.name)
    if sentence is None:
        return one
    return replace(one, refusal=ConfigError([Problem("experiment", "name", one.name, sentence)]))


def _distinct(found: Sequence[Experiment]) -> list[Experiment]:
    """Reject the experiments of a name that several have; one of them stays in their place."""
    by_name: dict[str, list[Experiment]] = {}
    for one in map(_checked, found):
        by_name.setdefault(one.name, []).append(one)
    return [group[0] if len(group) == 1 else _ambiguous(group) for group in by_name.values()]


def _ambiguous(group: Sequence[Experiment]) -> Experiment:
    name = group[0].name
    places = list(dict.fromkeys(one.source or "Python" for one in group))
    sentence = (
        f"Experiment {name!r}: {len(group)} experiments have this name (of {listed(places)}), and "
        "each needs a separate folder; rename all but one."
    )
    refusal = ConfigError([Problem("experiment", "name", name, sentence)])
    return replace(group[0], config=None, refusal=refusal)


def _chosen(one: Experiment, engines: int) -> Experiment:
    if one.refusal is not None or one.config is None:
        return one
    config = one.config.model_copy(deep=True)
    try:
        config.finalize(engines if needed_world_size(config.model) is None else None)
        check_weights(config.model)
        check_trainable(config)
    except ConfigError as error:
        return replace(one, refusal=error)
    ready = replace(one, config=config)
    if (ranks := ready.ranks or 0) <= engines:
        return ready
    smaller = "a smaller layout" if config.replicas == 1 else "a smaller strategy.replicas"
    sentence = (
        f"Experiment {one.name!r}: its world has {ranks} ranks and the cluster has {engines} "
        f"engines; start a cluster of {ranks} engines, or choose {smaller}."
    )
    refusal = ConfigError([Problem("world", "world_size", ranks, sentence)])
    return replace(ready, refusal=refusal)


def _none(place: str, reason: str = "it has no experiment") -> ConfigError:
    sentence = (
        f"Experiments {place!r}: {reason}; give a YAML file, or a folder with YAML files other "
        f"than {BASELINE}."
    )
    return ConfigError([Problem("experiment", "path", place, sentence)])
