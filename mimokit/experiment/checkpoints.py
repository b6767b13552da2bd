"""Finds, lists and exports checkpoints, and decides which one a run goes on from."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimokit.architecture.from_config import cuts_of_config
from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config.text_file import read_text_file
from mimokit.config_files import load_experiment_config
from mimokit.planning.checkpoint_files import check_all_files, without_digests
from mimokit.planning.checkpoints import (
    MARKER,
    Checkpoint,
    check_same_model,
    check_same_replicas,
    layout_text,
    read_checkpoint,
    step_of,
    steps_in,
    unusable,
)
from mimokit.result_files import CHECKPOINTS, RunFile
from mimokit.tables import Report, Section
from mimokit.units import bytes_text, counted, listed


def resumed(
    config: ExperimentConfig,
    results: str | os.PathLike[str],
    from_step: int | None = None,
    own: Collection[str] = (),
) -> ExperimentConfig:
    """Return a config whose run goes on from a checkpoint.

    Args:
        from_step: optimizer steps of the checkpoint; None for the newest one.

    Raises:
        ConfigError: there is no such checkpoint, it is not whole, or the run has no more steps.
    """

    def suits(checkpoint: Checkpoint) -> bool:
        if ("strategy" in checkpoint.layout) != (config.strategy is not None):
            return False
        try:
            _check_weights(checkpoint, config, own)
        except ConfigError:
            return False
        return True

    saved = find_checkpoint(_newest_run(Path(results), suits), from_step)
    runtime = config.runtime
    if saved.step >= runtime.num_iterations:
        raise unusable(
            saved.directory,
            f"it is of step {saved.step}, and runtime.num_iterations, which counts from the first "
            f"step of all, is {runtime.num_iterations}; raise that",
        )
    here = str(saved.directory.absolute())
    return config.model_copy(update={"runtime": runtime.model_copy(update={"resume_from": here})})


def check_restarts(config: ExperimentConfig, restarts: int) -> ExperimentConfig:
    """Return a config that can begin again from checkpoints.

    Raises:
        ConfigError: it saves none.
    """
    if restarts and config.runtime.checkpoint is None:
        sentence = (
            f"Section 'runtime': restarts is {restarts}, but checkpoint is not given; give it."
        )
        raise ConfigError([Problem("runtime", "checkpoint", None, sentence)])
    return config


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
    check_same_replicas(saved, config)
    _check_weights(saved, config, own)


def _check_weights(saved: Checkpoint, config: ExperimentConfig, own: Collection[str]) -> None:
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
    check_same_model(saved, wanted)


def find_checkpoint(results: str | os.PathLike[str], from_step: int | None = None) -> Checkpoint:
    """Return a checkpoint of a results folder, a folder of checkpoints, or a checkpoint itself.

    Raises:
        ConfigError: there is none of that step, or it is not whole.
    """
    path = _newest_run(Path(results))
    if (path / MARKER).exists():
        return read_checkpoint(path)
    steps = checkpoints_of(path)
    if not steps:
        raise nothing_in(path)
    step = max(steps) if from_step is None else from_step
    if step not in steps:
        there = listed([str(number) for number in steps])
        raise unusable(
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
        raise unusable(results, f"{counted(len(runs), 'run')} in it have some ({names}); name one")
    return next(iter(runs.values()), {})


def _newest_run(results: Path, suits: Callable[[Checkpoint], bool] = lambda _: True) -> Path:
    """Return the newest run in a folder of runs with a checkpoint that suits; else the folder.

    Raises:
        ConfigError: it has runs with checkpoints, and none suits.
    """
    if has_checkpoints(results):
        return results
    others = []
    for run in sorted(results.glob("run_*"), key=_begun, reverse=True):
        if steps := checkpoints_of(run):
            if suits(read_checkpoint(steps[max(steps)])):
                return run
            others.append(run.name)
    if others:
        why = f"none of the runs in it ({listed(others)}) has one of this model and strategy"
        raise unusable(results, f"{why}; give the folder of a run that has")
    return results


def _begun(run: Path) -> tuple[str, int]:
    day, _, rest = run.name.removeprefix("run_").partition("_")
    time, _, number = rest.partition("_")
    return f"{day}_{time}", int(number) if number.isdecimal() else 1


def _named(results: Path) -> Path | None:
    config = results / RunFile.CONFIG
    try:
        read_text_file(config)
        checkpoint = load_experiment_config(config).runtime.checkpoint
    except (OSError, UnicodeDecodeError, ConfigError):
        return None
    return (
        None if checkpoint is None or checkpoint.directory is None else Path(checkpoint.directory)
    )


@dataclass(frozen=True, repr=False)
class CheckpointList(Report):
    """The checkpoints of a folder.

    Attributes:
        found: step -> the checkpoint, or the sentence that says why it cannot be read.
        files: step -> what is known of the bytes of its files, where they were compared.
    """

    folder: str
    found: Mapping[int, Checkpoint | str]
    files: Mapping[int, str] = field(default_factory=dict)

    @property
    def damaged(self) -> bool:
        """Whether any of them cannot be read."""
        return any(isinstance(each, str) for each in self.found.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            {"step": step, "problem": each}
            if isinstance(each, str)
            else {
                "step": step,
                "written": each.written,
                "layout": each.layout,
                "bytes": each.bytes,
                "directory": str(each.directory),
                **({"files": self.files[step]} if step in self.files else {}),
            }
            for step, each in self.found.items()
        ]
        return {"folder": self.folder, "checkpoints": rows}

    def section(self) -> Section:
        """Return a row per checkpoint."""
        verified = [self.files] if self.files else []
        rows = [
            [
                *(str(step), each.written, layout_text(each.layout), bytes_text(each.bytes)),
                *(files[step] for files in verified),
            ]
            for step, each in self.found.items()
            if not isinstance(each, str)
        ]
        problems = [each for each in self.found.values() if isinstance(each, str)]
        columns = ("step", "written", "layout", "size", *("files" for _ in verified))
        return Section(f"Checkpoints of {self.folder}", columns, rows, problems)


def list_checkpoints(results: str | os.PathLike[str]) -> CheckpointList:
    """Return the checkpoints of a results folder, a folder of them, or one.

    Raises:
        ConfigError: there are none.
    """
    path = _newest_run(Path(results))
    if (path / MARKER).exists():
        checkpoint = read_checkpoint(path)
        return CheckpointList(str(path), {checkpoint.step: checkpoint})
    return CheckpointList(str(path), _found(path, checkpoints_of(path), read_checkpoint))


def verify_checkpoints(results: str | os.PathLike[str]) -> CheckpointList:
    """Return what `list_checkpoints` does, of checkpoints of which all bytes were compared.

    Raises:
        ConfigError: there are none.
    """
    path = Path(results)
    alone = (path / MARKER).exists()
    steps = {step_of(path.absolute().name) or 0: path} if alone else checkpoints_of(path)
    checkpoints = _found(path, steps, _compared)
    whole = {
        step: checkpoint
        for step, checkpoint in checkpoints.items()
        if isinstance(checkpoint, Checkpoint)
    }
    files = {
        step: "no digests" if without_digests(checkpoint) else "whole"
        for step, checkpoint in whole.items()
    }
    return CheckpointList(str(path), checkpoints, files)


def _found(
    path: Path, steps: Mapping[int, Path], read: Callable[[Path], Checkpoint]
) -> dict[int, Checkpoint | str]:
    checkpoints: dict[int, Checkpoint | str] = {}
    for step, directory in steps.items():
        try:
            checkpoints[step] = read(directory)
        except ConfigError as error:
            checkpoints[step] = str(error)
    if not checkpoints:
        raise nothing_in(path)
    return checkpoints


def _compared(directory: Path) -> Checkpoint:
    checkpoint = read_checkpoint(directory)
    check_all_files(checkpoint)
    return checkpoint


def write_whole(checkpoint: Checkpoint, output: Path) -> list[str]:
    """Write the weights of every module whole, in the most bits that were trained.

    Args:
        output: a new folder, which gets a file `<module>.safetensors` per module.

    Raises:
        ConfigError: the folder exists or cannot be written, or the checkpoint is not whole.
    """
    from mimokit.engine.checkpoints.files import write_weights

    check_all_files(checkpoint)
    try:
        return write_weights(checkpoint, output)
    except FileExistsError:
        raise unwritable_output(output, "it exists; name a new folder") from None
    except OSError as error:
        raise unwritable_output(output, error.strerror or str(error)) from None


def unwritable_output(output: Path, why: str) -> ConfigError:
    """Return the rejection of a folder that an export cannot be written to."""
    sentence = f"Output '{output}': it cannot be written ({why})."
    return ConfigError([Problem("options", "output", str(output), sentence)])


def nothing_in(path: Path) -> ConfigError:
    """Return the rejection of a folder without a whole checkpoint."""
    return unusable(path, "there is no whole checkpoint in it; give the folder of a run with one")
