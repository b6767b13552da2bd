"""`experiment_info.json`: what ran, where, with which code, and how far it came."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from mimokit.analysis.run_info import planned_modules
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.experiment.restarts import Restart
from mimokit.planning.types import LayoutPlan
from mimokit.samples import RankFacts
from mimokit.versions import version_of

_VERSIONS_OF = ("mimokit", "torch", "megatron-core", "ipyparallel", "numpy", "pandas")
_GIT_SECONDS = 5.0
DIGESTS = "digests"
"""File -> digest of what the run has written, once it is finished."""


class Status(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class RunProgress:
    """What changes of `experiment_info.json`; all ranks have reported `completed` iterations."""

    status: Status = Status.RUNNING
    seconds: float = 0.0
    completed: int = 0
    finished: datetime | None = None
    restarts: Sequence[Restart] = ()


@dataclass(frozen=True)
class RunSetting:
    """What does not change: config, plan, code.

    Attributes:
        git: revision of the working directory, and whether it has changes; None outside git.
        server: the process id of a cluster on this machine, where a run may go on without this one.
    """

    config: ExperimentConfig
    plan: LayoutPlan
    started: datetime = field(default_factory=lambda: datetime.now().astimezone())
    git: Mapping[str, Any] | None = field(default_factory=lambda: git_state(Path()))
    server: int | None = None


def run_info(
    setting: RunSetting, progress: RunProgress, facts: Sequence[RankFacts]
) -> dict[str, Any]:
    """Return the content of `experiment_info.json`."""
    config, plan = setting.config, setting.plan
    finished = progress.finished
    samples = plan.batch.global_batch_size * config.replicas
    return {
        "name": config.name,
        "status": str(progress.status),
        "deployment_mode": plan.deployment_mode,
        "world_size": plan.world_size,
        "started": setting.started.isoformat(timespec="seconds"),
        "finished": None if finished is None else finished.isoformat(timespec="seconds"),
        "seconds": round(progress.seconds, 3),
        "seed": config.runtime.seed,
        "iterations": {"planned": config.runtime.num_iterations, "completed": progress.completed},
        "restarts": [asdict(restart) for restart in progress.restarts],
        "warmup_iterations": config.runtime.warmup_iterations,
        "modules": _modules(config, plan),
        "samples_per_step": samples,
        "tokens_per_step": samples * config.data.seq_length,
        "git": setting.git,
        "writer": {
            "host": socket.gethostname(),
            "processes": [*_began(os.getpid()), *_began(setting.server)],
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version_of(name) for name in _VERSIONS_OF},
        },
        **_machines(facts),
    }


def _began(pid: int | None) -> list[tuple[int, float]]:
    """Return the process and when it began, which no other of that id did."""
    try:
        return [] if pid is None else [(pid, psutil.Process(pid).create_time())]
    except psutil.Error:
        return []


def _modules(config: ExperimentConfig, plan: LayoutPlan) -> dict[str, Any]:
    model = model_of_config(config.model)
    parts = {model.language.name: model.language.parameters}
    parts |= {branch.name: branch.parameters for branch in model.branches}
    planned = planned_modules(plan).items()
    return {name: {**facts, "parameters": parts.get(name)} for name, facts in planned}


def _machines(facts: Sequence[RankFacts]) -> dict[str, Any]:
    ordered = sorted(facts, key=lambda rank: rank.rank)
    if not ordered:
        return {"hosts": [], "hardware": None, "peak_flops_per_sec": None}
    hardware = asdict(ordered[0].hardware)
    hardware["accelerators"] = [rank.hardware.accelerator for rank in ordered]
    hardware["accelerators"] = [name for name in hardware["accelerators"] if name is not None]
    del hardware["accelerator"]
    peaks = [rank.peak_flops_per_sec for rank in ordered if rank.peak_flops_per_sec is not None]
    return {
        "hosts": list(dict.fromkeys(rank.host for rank in ordered)),
        "hardware": hardware,
        "peak_flops_per_sec": min(peaks) if len(peaks) == len(ordered) else None,
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the revision of a working tree and whether it has changes; None where git has none."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return None
    changes = _git(folder, "status", "--porcelain")
    return {"revision": revision, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


class TimeLimitError(RuntimeError):
    """A run took longer than it was allowed to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"The run was ended at its time limit of {seconds:g} s.")

    def __reduce__(self) -> tuple[type[TimeLimitError], tuple[float]]:
        return type(self), (self.seconds,)


def error_record(error: BaseException, completed: Mapping[int, int]) -> dict[str, Any]:
    """Return the content of `error.json`.

    Args:
        completed: rank -> the number of iterations that it has reported.

    Returns:
        type and message of the error; `cause`, the type of the exception on the rank; rank, or
        None; step, the iteration (0-based) that was in progress, None if there was none;
        traceback, or None; sentences, the problems of a rejected config.
    """
    return {
        "type": type(error).__name__,
        "message": _first_paragraph(error),
        "cause": getattr(error, "type_name", None),
        "rank": getattr(error, "rank", None),
        # No rank ends an iteration before all have done their part of it, and the last report of
        # a rank that was killed may be lost.
        "step": max(completed.values(), default=None),
        "traceback": _traceback(error),
        "sentences": [problem.sentence for problem in error.problems]
        if isinstance(error, ConfigError)
        else [],
    }


def _first_paragraph(error: BaseException) -> str:
    """Return the message without the traceback that the message of a rank's error ends with."""
    trace = getattr(error, "traceback_text", None)
    text = str(error)
    return text.replace(trace.rstrip(), "").rstrip() if trace else text


def _traceback(error: BaseException) -> str | None:
    trace = getattr(error, "traceback_text", None)
    if trace is not None or hasattr(error, "rank") or isinstance(error, ConfigError):
        return trace
    if error.__traceback__ is None:
        return None
    return "".join(traceback.format_exception(error))
