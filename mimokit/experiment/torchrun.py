"""A sweep under torchrun: every process calls `run_job`, rank 0 decides what runs.

One config without a notebook and without a cluster:
torchrun --nproc-per-node 8 -m mimokit.experiment.torchrun configs/digits_colocated.yaml
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.torchrun.messages import RankWork
from mimokit.cluster.torchrun.store import JobStore, started_by_torchrun
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config.runtime import Evaluations
from mimokit.config.user_code import NO_CODE, UserCode, named_modules
from mimokit.config.user_modules import forget
from mimokit.config_files import config_from_mapping
from mimokit.experiment import on_rank
from mimokit.experiment.prepare import REFUSED
from mimokit.experiment.sweeps.options import SweepRequest
from mimokit.planning import plan_layout
from mimokit.planning.types import LayoutPlan

if TYPE_CHECKING:
    from mimokit.cluster.torchrun.cluster import TorchrunCluster
    from mimokit.experiment.sweeps.report import Following

NOT_STARTED = (
    "This command runs under torchrun: python -m torch.distributed.run --nproc-per-node N -m "
    "mimokit.experiment ...; without torchrun use `mimokit run`."
)


def run_job(request: SweepRequest) -> int:
    """Take part in a sweep as the rank that torchrun says; return the exit status.

    Rank 0 writes the folder. A rank that raises fails its experiment only: the ranks form a new
    world for the next one. A rank that dies ends the job; `--resume` goes on in a new one.
    """
    if not started_by_torchrun():
        print(NOT_STARTED)
        return REFUSED
    if int(os.environ["RANK"]) != 0:
        # Ctrl-C reaches every process; rank 0 decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from mimokit.cluster.torchrun.member import Member

        try:
            Member(JobStore.from_environment(), TRAINING).serve()
        except ClusterError as error:
            print(error, flush=True)
            return 1
        return 0
    from mimokit.cluster.torchrun.cluster import TorchrunCluster

    try:
        return _Driver(TorchrunCluster(JobStore.from_environment(), TRAINING), request).run()
    except ClusterError as error:
        print(error, flush=True)
        return 1


def training_to_json(
    plan: LayoutPlan,
    config: ExperimentConfig,
    evaluations: Evaluations | None,
    trace: bool,
    peak_flops: float | None,
    code: UserCode,
) -> dict[str, Any]:
    """Return the arguments of `train_rank` without the plan, which every rank makes itself.

    Raises:
        ClusterError: data or code of the caller would have to cross.
    """
    if code != NO_CODE:
        raise ClusterError(
            "under torchrun ranks take data and code from the config alone; name the data in "
            "data.source, and builders of modules, loss_func and forward_step where they belong"
        )
    return {
        "config": config.to_mapping(),
        "evaluations": None if evaluations is None else asdict(evaluations),
        "trace": trace,
        "peak_flops": peak_flops,
    }


def training_from_json(content: Mapping[str, Any], ranks: int) -> tuple[Any, ...]:
    """Return the arguments of `train_rank` on one of so many ranks."""
    config = config_from_mapping(content["config"]).finalize(ranks)
    tests = content["evaluations"]
    evaluations = None if tests is None else Evaluations(**tests)
    return plan_layout(config), config, evaluations, content["trace"], content["peak_flops"]


def _train(content: Mapping[str, Any], ranks: int) -> None:
    """Train one of the configs of a job, with the user's files as they are now."""
    arguments = training_from_json(content, ranks)
    forget(named_modules(arguments[1]))
    on_rank.train_rank(*arguments)


TRAINING = RankWork(on_rank.train_rank, training_to_json, _train)


class _Driver:
    """Rank 0: a thread drives the sweep while the main thread trains."""

    def __init__(self, cluster: TorchrunCluster, request: SweepRequest) -> None:
        self._cluster = cluster
        self._request = request
        self._status = 1
        self._following: Following | None = None

    def run(self) -> int:
        """Drive the sweep and train; return the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # A handler must take no lock that the interrupted code may hold.
            signal.signal(number, lambda signal_number, _: self._later(signal_number))
        thread = threading.Thread(target=self._drive, name="mimokit-driver", daemon=True)
        thread.start()
        try:
            self._cluster.member.serve()
        except ClusterError:
            self._status = 1  # the driver says why, after it has written what is known
        thread.join()
        return self._status

    def _later(self, number: int) -> None:
        action = self._interrupt if number == signal.SIGINT else self._terminate
        threading.Thread(target=action, daemon=True).start()

    def _interrupt(self) -> None:
        if self._following is not None:
            self._following.interrupt()

    def _terminate(self) -> None:
        if self._following is not None:
            self._following.sweep.stop()
        self._cluster.give_up("torchrun has ended the job")

    def _drive(self) -> None:
        try:
            self._status = self._sweep()
        except ConfigError as error:
            print(error, flush=True)
            self._status = REFUSED
        except Exception:
            traceback.print_exc()
        finally:
            self._cluster.end()

    def _sweep(self) -> int:
        from rich.console import Console

        from mimokit.experiment.sweeps.report import Following
        from mimokit.experiment.sweeps.runner import SweepRun
        from mimokit.experiment.sweeps.start import InTurn

        request, console = self._request, Console(soft_wrap=not sys.stdout.isatty())
        options = request.options()
        prepared = request.prepare(request.find(), len(self._cluster), console)
        started = SweepRun(InTurn(self._cluster), prepared, options)
        self._following = Following(started, console)
        return self._following.wait()


def main(file: str) -> None:
    """Train the layout of a config; rank 0 prints every `log_interval` iterations."""
    raise typer.Exit(run_job(SweepRequest(file)))


if __name__ == "__main__":
    typer.run(main)
