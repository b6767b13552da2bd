"""Which experiments a sweep has, and which of them are rejected, before anything starts.

Nothing here starts a process or writes a file.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config_files.inheritance import BASELINE, PRESET_PREFIX
from mimokit.config_files.sweep import load_experiments
from mimokit.experiment.checkpoints import check_restarts, resumed
from mimokit.experiment.results.folder import name_problem
from mimokit.experiment.trainable import check_trainable
from mimokit.planning.weights.problems import check_saving, check_weight_files
from mimokit.units import counted, listed

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Experiment:
    """One experiment of a sweep.

    Attributes:
        name: of its folder; from a file its name without the suffix.
        source: the file it comes from, absolute; None for a config made in Python.
        config: finalized; None if it was rejected before it could be.
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
        needed = self.config.model.needed_world_size
        return None if needed is None else needed * self.config.replicas

    @property
    def sentences(self) -> tuple[str, ...]:
        """Why it cannot run."""
        return () if self.refusal is None else tuple(str(self.refusal).splitlines())


def _changed(
    experiments: Iterable[Experiment], change: Callable[[ExperimentConfig], ExperimentConfig]
) -> tuple[Experiment, ...]:
    return tuple(
        replace(experiment, config=change(experiment.config))
        if experiment.config is not None
        else experiment
        for experiment in experiments
    )


def reading_from(experiments: Sequence[Experiment], source: str | None) -> tuple[Experiment, ...]:
    """Return the experiments, with another `data.source` unless it is None."""
    if source is None:
        return tuple(experiments)

    def reading(config: ExperimentConfig) -> ExperimentConfig:
        data = config.data.model_copy(update={"source": source})
        return config.model_copy(update={"data": data})

    return _changed(experiments, reading)


def saved_in(experiments: Sequence[Experiment], directory: Path) -> tuple[Experiment, ...]:
    """Return the one experiment, which leaves its language model in a directory.

    Raises:
        ConfigError: there are several, or its language model cannot be saved.
    """
    if len(experiments) > 1:
        sentence = (
            f"Option --save-hf: {directory} is one directory, and there are {len(experiments)} "
            "experiments; run the one to be saved alone."
        )
        raise ConfigError([Problem("runtime", "save_hf", str(directory), sentence)])
    return _changed(experiments, lambda config: _saved(config, directory))


def going_on(
    experiments: Sequence[Experiment], results: Path, from_step: int | None
) -> tuple[Experiment, ...]:
    """Return the one experiment, which goes on from a checkpoint.

    Raises:
        ConfigError: there are several, or there is no such checkpoint.
    """
    if len(experiments) > 1:
        sentence = (
            f"Option --resume: the checkpoints in {results} are of one run, and there are "
            f"{len(experiments)} experiments; resume it with the file of one."
        )
        raise ConfigError([Problem("runtime", "resume_from", str(results), sentence)])
    return _changed(experiments, lambda config: resumed(config, results, from_step))


def beginning_again(experiments: Sequence[Experiment], restarts: int) -> tuple[Experiment, ...]:
    """Return experiments of which those without checkpoints are rejected, if they may restart."""
    return _changed(experiments, lambda config: check_restarts(config, restarts))


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
    collected = _distinct(_all_of(experiments))
    if not collected:
        raise _none(f"{experiments}" if isinstance(experiments, str | os.PathLike) else "(none)")
    return tuple(collected)


def choose(experiments: Iterable[Experiment], engines: int) -> tuple[Experiment, ...]:
    """Finalize the experiments for a cluster; reject those that it cannot run."""
    return tuple(_chosen(experiment, engines) for experiment in experiments)


def largest_world(experiments: Iterable[Experiment], most: int) -> int:
    """Return the ranks of the largest world that is not beyond `most`, at least 1."""
    sizes = [
        experiment.ranks
        for experiment in experiments
        if experiment.refusal is None and experiment.ranks is not None
    ]
    return max((size for size in sizes if size <= most), default=1)


def refuse_all(chosen: Iterable[Experiment]) -> None:
    """Raise the problems of all rejected experiments; of several, each names its own."""
    every = tuple(chosen)
    problems = [
        replace(problem, sentence=f"{experiment.name} cannot run: {problem.sentence}")
        if len(every) > 1
        else problem
        for experiment in every
        if experiment.refusal is not None
        for problem in experiment.refusal.problems
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
            replace(experiment, name=name if len(several) == 1 else f"{name}_{experiment.name}")
            for name, source in experiments.items()
            for several in (_all_of(source),)
            for experiment in several
        ]
    if isinstance(experiments, str | os.PathLike):
        path = os.fspath(experiments)
        if not path.startswith(PRESET_PREFIX) and os.path.isdir(path):
            return [experiment for file in _files(Path(path)) for experiment in _of_file(str(file))]
        return _of_file(path)
    return [experiment for source in experiments for experiment in _all_of(source)]


def _files(folder: Path) -> list[Path]:
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
    source = path if path.startswith(PRESET_PREFIX) else str(Path(path).absolute())
    return [
        Experiment(
            expanded.name,
            source,
            expanded.config,
            ConfigError(expanded.problems) if expanded.problems else None,
        )
        for expanded in load_experiments(path)
    ]


def _checked(experiment: Experiment) -> Experiment:
    sentence = name_problem(experiment.name)
    if sentence is None:
        return experiment
    return replace(
        experiment, refusal=ConfigError([Problem("experiment", "name", experiment.name, sentence)])
    )


def _distinct(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Reject the experiments of a name that several have; one of them stays in their place."""
    by_name: dict[str, list[Experiment]] = {}
    for experiment in map(_checked, experiments):
        by_name.setdefault(experiment.name, []).append(experiment)
    return [group[0] if len(group) == 1 else _ambiguous(group) for group in by_name.values()]


def _ambiguous(group: Sequence[Experiment]) -> Experiment:
    name = group[0].name
    places = list(dict.fromkeys(experiment.source or "Python" for experiment in group))
    sentence = (
        f"Experiment {name!r}: {len(group)} experiments have this name (of {listed(places)}), and "
        "each needs a separate folder; rename all but one."
    )
    refusal = ConfigError([Problem("experiment", "name", name, sentence)])
    return replace(group[0], config=None, refusal=refusal)


def _chosen(experiment: Experiment, engines: int) -> Experiment:
    if experiment.refusal is not None or experiment.config is None:
        return experiment
    config = experiment.config.model_copy(deep=True)
    try:
        config.finalize(engines if config.model.needed_world_size is None else None)
        check_weight_files(config.model)
        check_trainable(config)
    except ConfigError as error:
        return replace(experiment, refusal=error)
    ready = replace(experiment, config=config)
    if (ranks := ready.ranks or 0) <= engines:
        return ready
    smaller = "a smaller layout" if config.replicas == 1 else "a smaller strategy.replicas"
    sentence = (
        f"Experiment {experiment.name!r}: its world has {counted(ranks, 'rank')} and the cluster "
        f"has {counted(engines, 'engine')}; start a cluster of {counted(ranks, 'engine')}, or "
        f"choose {smaller}."
    )
    refusal = ConfigError([Problem("world", "world_size", ranks, sentence)])
    return replace(ready, refusal=refusal)


def _none(place: str, reason: str = "it has no experiment") -> ConfigError:
    sentence = (
        f"Experiments {place!r}: {reason}; give a YAML file, or a folder with YAML files other "
        f"than {BASELINE}."
    )
    return ConfigError([Problem("experiment", "path", place, sentence)])
