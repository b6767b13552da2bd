"""`mimokit run` and `mimokit verify`: the commands that start engines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.cli import shared
from mimokit.cli.command_group import extra_command
from mimokit.experiment.sweeps import options
from mimokit.extra_rooms import import_extra

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster
    from mimokit.config import ExperimentConfig
    from mimokit.experiment.sweeps.experiments import Experiment

MOST_ENGINES = 16
"""Engines that a sweep starts on this machine at most, unless --engines says otherwise."""


def verify(
    file: shared.File,
    as_json: shared.Json = False,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 5,
    tolerance: Annotated[float, typer.Option(help="Largest relative difference.")] = 1e-5,
    resume_check: Annotated[
        bool,
        typer.Option(
            "--resume-check",
            help="Prove instead that a run goes on from a checkpoint as if it had not stopped.",
        ),
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(help="With --resume-check: a config of another layout to go on with."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Name the first tensor that differs, and what it is."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(help="Another layout of the same model, to compare tensors with."),
    ] = None,
    static: Annotated[
        bool,
        typer.Option("--static", help="Prove the plan alone, of any number of ranks."),
    ] = False,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink",
            help="Compare small layouts that have every kind of group, bridge and schedule pattern "
            "of the layout, in place of it.",
        ),
    ] = False,
    cluster: shared.Cluster = None,
) -> None:
    """Prove that a layout computes what one process computes; exit 1 if it does not."""
    if resume_check:
        _prove_resume(file, into, as_json, tolerance, cluster)
        return
    if into is not None:
        raise typer.BadParameter("--into is for --resume-check; give both")
    if static:
        _prove_plan(file, as_json, explain or shrink or against is not None)
        return
    if shrink:
        if against is not None:
            raise typer.BadParameter("give --shrink, or --against, which compares given layouts")
        extra_command("shrink", "shrinking", "--shrink")(file, as_json, steps, cluster)
        return
    if explain or against is not None:
        _explain(file, against, as_json, steps, cluster)
        return
    with shared.failures():
        config = _runnable(file)
        with shared.engines_for(config.total_world_size, cluster) as engines:
            from mimokit.experiment import verify as prove

            report = prove(engines, config, steps=steps, tolerance=tolerance)
    shared.show_proof(report, as_json)


def _prove_resume(
    file: str, into: str | None, as_json: bool, tolerance: float, cluster: str | None
) -> None:
    from mimokit.experiment import resume_check

    with shared.failures():
        saved = _runnable(file)
        resumed = saved if into is None else _runnable(into)
        ranks = max(saved.total_world_size, resumed.total_world_size)
        with shared.engines_for(ranks, cluster) as engines:
            report = resume_check(engines, saved, into=resumed, tolerance=tolerance)
    shared.show_proof(report, as_json)


def _prove_plan(file: str, as_json: bool, runs: bool) -> None:
    from mimokit.planning.proof import prove_layout

    if runs:
        raise typer.BadParameter(
            "give --static, or --explain, --against and --shrink, which run layouts"
        )
    with shared.failures():
        proof = prove_layout(file)
    shared.show_proof(proof, as_json)


def _explain(
    file: str, against: str | None, as_json: bool, steps: int, cluster: str | None
) -> None:
    culprit = import_extra("experiment.culprit.explain", "--explain")
    with shared.failures():
        configs = [_runnable(each) for each in (file, against) if each is not None]
        try:
            culprit.check_alike(configs[0], configs[-1])  # before engines start
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--against") from None
        size = max(config.total_world_size for config in configs)
        with shared.engines_for(size, cluster) as engines:
            other = configs[1] if against is not None else None
            explanation = culprit.explain(engines, configs[0], against=other, steps=steps)
    shared.show_proof(explanation, as_json)


def run(
    file: Annotated[
        str | None,
        typer.Argument(help="A YAML config, or preset:NAME for a shipped one."),
    ] = None,
    config: options.ConfigOption = None,
    experiments_dir: options.ExperimentsDir = None,
    results_dir: options.ResultsDir = None,
    resume: options.Resume = None,
    from_step: options.FromStep = None,
    restarts: options.Restarts = 0,
    strict: options.Strict = False,
    side_by_side: Annotated[
        bool,
        typer.Option("--side-by-side", help="Run experiments at the same time on free engines."),
    ] = False,
    time_limit: options.TimeLimit = None,
    engines: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Engines to start here, or to use of a running cluster; by default what the "
            f"largest world needs (of several experiments at most {MOST_ENGINES}), or all.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Train on strips of digits: 'read' or 'sum'.")
    ] = None,
    data: options.Data = None,
    trace: options.Trace = False,
    save_hf: options.SaveHf = None,
    cluster: shared.Cluster = None,
) -> None:
    """Train one layout, or all in a folder, showing progress; leave tables in a folder.

    Exit 1 if an experiment failed or some were rejected, 2 if all were.

    A rejected experiment leaves an error.json with the reasons in its folder.
    A single FILE that is rejected does so only with --results-dir.
    """
    from rich.console import Console

    from mimokit.cluster import EngineCluster
    from mimokit.experiment.sweeps.report import follow
    from mimokit.experiment.sweeps.runner import SweepRun
    from mimokit.experiment.sweeps.start import InTurn, NoSeats, Seats, SideBySide

    experiments = options.named_experiments(file, config, experiments_dir, resume)
    request = options.SweepRequest(
        experiments,
        results_dir,
        resume,
        strict,
        time_limit,
        trace,
        save_hf,
        data,
        from_step,
        restarts,
    )
    digits = _source(task, data)
    with shared.failures(), ExitStack() as stack:
        settings, listed = request.options(digits), request.find()
        there: EngineCluster | None = None
        if cluster is not None:
            there = stack.enter_context(EngineCluster(engines, **shared.connection(cluster)))
        size = len(there) if there is not None else engines or _engines_for(listed)
        prepared = request.prepare(listed, size, Console(stderr=True, soft_wrap=True))
        stack.callback(prepared.folder.release)
        seats: Seats = NoSeats()
        if prepared.needs_engines:
            if there is None:
                there = stack.enter_context(EngineCluster(n=size))
            seats = SideBySide(there) if side_by_side else InTurn(there)
        started = SweepRun(seats, prepared, settings)
        status = follow(started, shared.console())
    if status:
        raise typer.Exit(status)


def _source(task: str | None, data: str | None) -> Any:
    if task is None:
        return None
    if data is not None:
        raise typer.BadParameter("give --task or --data, not both")
    if task not in ("read", "sum"):
        raise typer.BadParameter(f"the task is 'read' or 'sum', not {task!r}")
    from mimokit.engine.data.sources import DigitData

    return DigitData(task)  # type: ignore[arg-type]


def _engines_for(experiments: Sequence[Experiment]) -> int:
    from mimokit.experiment.sweeps.experiments import largest_world

    return largest_world(experiments, MOST_ENGINES if len(experiments) > 1 else sys.maxsize)


def _runnable(file: str) -> ExperimentConfig:
    from mimokit.config import check_runnable
    from mimokit.config.checked_code import checked_code
    from mimokit.experiment.prepare import finalized_copy

    config = finalized_copy(file)
    check_runnable(config)
    checked_code(config)
    return config
