"""`Trainer`: fits a torch model under a strategy between nodes; each node is an engine."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import nn

from mimokit import cluster as on_rank
from mimokit.cluster import EngineCluster
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.user_modules import ReadAfresh
from mimokit.experiment.results import (
    PROJECT,
    Folder,
    LoggedRun,
    fit_loggers,
    name_problem,
    probe_folder,
)
from mimokit.extras.strategies.fits import checkpoint
from mimokit.extras.strategies.fits.arguments import (
    FitArguments,
    check_fit_arguments,
    check_fit_data,
    check_fit_model,
    check_optimizers,
    given,
    strategy_of_fit,
)
from mimokit.extras.strategies.fits.job import FitJob, Source
from mimokit.extras.strategies.fits.node import fit_node
from mimokit.extras.strategies.fits.records import MODEL, Begun
from mimokit.extras.strategies.fits.run import FitDescription, FitLayout, FitRun, FitSetting
from mimokit.extras.strategies.fits.tables import check_tables
from mimokit.extras.strategies.nodes.strategy import Strategy
from mimokit.progress import shown
from mimokit.result_files import FitFile, write_json

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _taking(
    arguments: Callable[Arguments, FitArguments],
) -> Callable[
    [Callable[[Trainer, FitArguments], Result]], Callable[Concatenate[Trainer, Arguments], Result]
]:

    def decorate(
        method: Callable[[Trainer, FitArguments], Result],
    ) -> Callable[Concatenate[Trainer, Arguments], Result]:
        @functools.wraps(method)
        def taking(self: Trainer, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return method(self, given(*args, **kwargs))

        me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        known = inspect.signature(arguments).parameters.values()
        taking.__signature__ = inspect.Signature([me, *known])  # type: ignore[attr-defined]
        return taking

    return decorate


class Trainer:
    """Fits a model under a strategy between nodes.

    Args:
        model: `model(batch)` returns the loss, a scalar tensor. It is not changed.
        train_dataset: a dataset that nodes share out, as `DistributedSampler` does, or a factory
            `f(node, nodes, train_dataset: bool)` that is called on each node and returns its own.
        val_dataset: likewise.
        cluster: engines to run on; None: each fit starts as many as it needs.
    """

    def __init__(
        self,
        model: nn.Module,
        train_dataset: Source,
        val_dataset: Source,
        cluster: EngineCluster | None = None,
    ) -> None:
        self.model, self.train_dataset, self.val_dataset = model, train_dataset, val_dataset
        self.cluster = cluster
        self._minibatch_sizes: dict[tuple[int, int], int] = {}

    @_taking(FitArguments)
    def fit(self, arguments: FitArguments) -> nn.Module:
        """Fit, and return a model with the mean of all nodes' weights.

        `FitArguments` says what the arguments are. Floating-point buffers are averaged too; of
        other buffers those of node 0 are taken. The folder `log_dir/run_name` has config.json,
        train.csv, validation.csv, communication.csv and drift.csv.

        Raises:
            ConfigError: an argument is wrong.
            TypeError: an argument is unknown; names the right one.
            FitError: a node could not begin or go on; names it.
            RankDied: the process of a node died.
        """
        run = self._start(arguments)
        with shown(f"Fitting {run.config.name}", total=arguments.max_steps) as bar:
            run.on_sample(lambda sample: bar.update(getattr(sample, "iteration", None)))
            model = run.result().model
        assert model is not None
        return model

    @_taking(FitArguments)
    def start(self, arguments: FitArguments) -> FitRun:
        """Start a fit and return at once, for `LiveMonitor`; rejects arguments as `fit` does."""
        return self._start(arguments)

    def _start(self, arguments: FitArguments) -> FitRun:
        engines = None if self.cluster is None else len(self.cluster)
        nodes = check_fit_arguments(arguments, engines)
        check_fit_model(self.model)
        check_fit_data(self.train_dataset, self.val_dataset, arguments.val_size)
        loggers = fit_loggers(arguments.wandb_project)
        strategy = strategy_of_fit(arguments)
        check_optimizers(strategy, self.model, arguments.max_steps)
        plan = strategy.plan_for(self.model, nodes, arguments.seed)
        self._check_checkpoints(arguments)
        folder, name = _folder(arguments, strategy)
        try:
            job = self._job(arguments, strategy, nodes, name)
            content = _content(arguments, strategy, nodes, name)
            write_json(folder.path / FitFile.CONFIG, content)
            cluster = self.cluster or EngineCluster(nodes, progress=False)
            run = cluster.submit(_fit_rank, ReadAfresh(job), world_size=nodes)
        except BaseException:
            folder.release()
            raise
        setting = FitSetting(
            model=self.model,
            folder=folder,
            loggers=loggers,
            logged=LoggedRun(name, (MODEL,), content, json.dumps(content, indent=2)),
            per_row=arguments.log_x_axis,
            plan=plan,
            network=arguments.network,
            own_cluster=cluster if self.cluster is None else None,
            remember=lambda begun: self._remember(begun, nodes, arguments),
        )
        description = FitDescription(name, arguments.max_steps or 0)
        return FitRun(run, description, FitLayout(content["strategy"], nodes), setting)

    def _job(self, arguments: FitArguments, strategy: Strategy, nodes: int, name: str) -> FitJob:
        network = arguments.network
        emulated = network is not None and network.emulate
        minibatch_size = arguments.minibatch_size
        if minibatch_size is None and not arguments.force_minibatch_recalculate:
            minibatch_size = self._minibatch_sizes.get((nodes, arguments.batch_size))
        return FitJob(
            **vars(arguments)
            | {
                "model": self.model,
                "strategy": strategy,
                "train": self.train_dataset,
                "validation": self.val_dataset,
                "checkpoints": _checkpoints(arguments, name),
                "minibatch_size": minibatch_size,
                "dataloader_kwargs": dict(arguments.dataloader_kwargs or {}),
                "pace": network.collective_seconds if network and emulated else None,
                "speeds": network.speeds if network and emulated else (),
            }
        )

    def _check_checkpoints(self, arguments: FitArguments) -> None:
        """Check that there is one to go on from and that new ones can be written.

        Nodes on other machines have other disks; there they check it themselves.
        """
        if self.cluster is not None and not self.cluster.is_local:
            return
        if arguments.resume and arguments.run_name is not None:
            where = _checkpoints(arguments, arguments.run_name)
            names = (checkpoint.LAST, checkpoint.BEFORE)
            if not any(path.name in names for path in where.glob("*/*")):
                sentence = checkpoint.none_in(where)
                raise ConfigError([Problem("fit", "resume", True, sentence)])
        if arguments.checkpoint_interval is not None:
            probe_folder(arguments.save_dir)

    def _remember(self, begun: Begun, nodes: int, arguments: FitArguments) -> None:
        if arguments.minibatch_size is None:
            self._minibatch_sizes[nodes, arguments.batch_size] = begun.minibatch_size


def _fit_rank(job: FitJob) -> Any:
    return fit_node(job, on_rank.emit, on_rank.should_stop)


def _checkpoints(arguments: FitArguments, name: str) -> Path:
    return Path(arguments.save_dir).absolute() / (arguments.wandb_project or PROJECT) / name


def _folder(arguments: FitArguments, strategy: Strategy) -> tuple[Folder, str]:
    logs, name = Path(arguments.log_dir), arguments.run_name
    if name is None:
        stem = f"{_name_of(strategy)}_{datetime.now():%Y%m%d_%H%M%S}"
        names = (stem if number == 1 else f"{stem}_{number}" for number in range(1, 10_000))
        name = next(name for name in names if not os.path.exists(logs / name))
    elif sentence := name_problem(name):
        raise ConfigError([Problem("fit", "run_name", name, sentence)])
    elif os.path.exists(logs / name) and not arguments.resume:
        sentence = (
            f"fit: run_name is {name}, and {logs / name} exists; choose another name, or go on "
            "with it by resume=True."
        )
        raise ConfigError([Problem("fit", "run_name", name, sentence)])
    if arguments.resume:
        check_tables(logs / name)
    return Folder.claim(logs / name), name


def _content(arguments: FitArguments, strategy: Strategy, nodes: int, name: str) -> dict[str, Any]:
    plain = (int, float, str, bool, type(None))
    values: dict[str, Any] = {}
    for argument in fields(FitArguments):
        value = getattr(arguments, argument.name)
        if isinstance(value, Mapping | list | tuple):
            value = _jsonable(value)
        values[argument.name] = value if isinstance(value, (*plain, dict, list)) else str(value)
    described = strategy.config.model_dump(exclude={"replicas"}) if strategy.config else {}
    further = {key: value for key, value in vars(strategy).items() if isinstance(value, plain)}
    optimizer = getattr(strategy, "optim_spec", None)
    return values | {
        "strategy": _name_of(strategy),
        "strategy_arguments": {**further, **described, "optim_spec": repr(optimizer)},
        "num_nodes": nodes,
        "run_name": name,
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value if isinstance(value, int | float | str | bool | None) else repr(value)


def _name_of(strategy: Strategy) -> str:
    return strategy.config.name if strategy.config is not None else type(strategy).__name__
