"""Finds the checkpoint that a run goes on from."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from mimokit.architecture.from_config import cuts_of_config
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.text_file import read_text_file
from mimokit.config_files import load_experiment_config
from mimokit.planning.checkpoints import (
    MARKER,
    Checkpoint,
    check_model,
    read_checkpoint,
    refused,
    steps_in,
)
from mimokit.result_files import CHECKPOINTS, RunFile
from mimokit.units import counted, listed


def resumed(
    config: ExperimentConfig, results: str | os.PathLike[str], from_step: int | None = None
) -> ExperimentConfig:
    """Return a config whose run goes on from a checkpoint.

    Args:
        results: a results folder, a folder of checkpoints, or a checkpoint.
        from_step: optimizer steps of the checkpoint; None for the newest one.

    Raises:
        ConfigError: there is no such checkpoint, it is not whole, or the run has no more steps.
    """
    found = find_checkpoint(results, from_step)
    runtime = config.runtime
    if found.step >= runtime.num_iterations:
        raise refused(
            found.directory,
            f"it is of step {found.step}, and runtime.num_iterations, which counts from the first "
            f"step of all, is {runtime.num_iterations}; raise that",
        )
    here = str(found.directory.absolute())
    return config.model_copy(update={"runtime": runtime.model_copy(update={"resume_from": here})})


def has_checkpoints(results: Path) -> bool:
    """Return whether a folder has something to go on from, whole or not."""
    return os.path.lexists(results / MARKER) or bool(checkpoints_of(results))


def check_resumable(config: ExperimentConfig, own: Collection[str] = ()) -> None:
    """Reject a checkpoint of another model, as far as the model is known before it is built.

    Args:
        own: modules that the user builds, of which the ranks compare names and shapes.

    Raises:
        ConfigError: names or shapes differ, or the checkpoint is not whole.
    """
    if config.runtime.resume_from is None:
        return
    saved = read_checkpoint(config.runtime.resume_from)
    networks = config.model.module_architectures
    unknown = {*own, *(name for name, net in networks.items() if net.builder is not None)}
    known = {
        module: cuts
        for module, cuts in cuts_of_config(config.model).items()
        if cuts and module not in unknown
    }
    wanted = {
        f"{module}/{name}": cut.whole or (1,)
        for module, cuts in known.items()
        for name, cut in cuts.items()
    }
    others = config.model.module_parallelisms.keys() - known.keys()
    wanted |= {name: shape for name, shape in saved.weights.items() if name.split("/")[0] in others}
    check_model(saved, wanted)


def find_checkpoint(results: str | os.PathLike[str], from_step: int | None = None) -> Checkpoint:
    """Return a checkpoint of a results folder, a folder of checkpoints, or a checkpoint itself.

    Raises:
        ConfigError: there is none of that step, or it is not whole.
    """
    path = Path(results)
    if (path / MARKER).exists():
        return read_checkpoint(path)
    steps = checkpoints_of(path)
    if not steps:
        raise refused(path, "there is no whole checkpoint in it; give the folder of a run with one")
    step = max(steps) if from_step is None else from_step
    if step not in steps:
        there = listed([str(number) for number in steps])
        raise refused(
            path, f"it has no checkpoint of step {step}, but of {there}; choose one of these"
        )
    return read_checkpoint(steps[step])


def checkpoints_of(results: Path) -> dict[int, Path]:
    """Return step -> checkpoint of a results folder, a sweep of one run, or their own folder.

    Raises:
        ConfigError: several runs of a sweep have checkpoints.
    """
    for folder in (results, results / CHECKPOINTS, _named(results)):
        if folder is not None and (steps := steps_in(folder)):
            return steps
    runs = {
        folder.parent: steps
        for folder in sorted(results.glob(f"*/{CHECKPOINTS}"))
        if (steps := steps_in(folder))
    }
    if len(runs) > 1:
        names = listed([path.name for path in runs])
        raise refused(results, f"{counted(len(runs), 'run')} in it have some ({names}); name one")
    return next(iter(runs.values()), {})


def _named(results: Path) -> Path | None:
    """Return the folder of checkpoints that the config of a run names."""
    config = results / RunFile.CONFIG
    try:
        read_text_file(config)
        checkpoint = load_experiment_config(config).runtime.checkpoint
    except (OSError, UnicodeDecodeError, ConfigError):
        return None
    return (
        None if checkpoint is None or checkpoint.directory is None else Path(checkpoint.directory)
    )
