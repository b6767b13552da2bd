"""Runs experiments on the ranks that torchrun or srun has started; rank 0 decides what runs.

python -m torch.distributed.run --nproc-per-node 8 -m mimokit.experiment
--experiments-dir configs/ablations --results-dir results
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.job import Job, job_environment
from mimokit.cluster.patience import slowdown
from mimokit.config import ConfigError
from mimokit.experiment.refusals import REFUSED
from mimokit.experiment.results.folder import DEFAULT_RESULTS
from mimokit.experiment.sweeps.options import (
    ConfigOption,
    Data,
    ExperimentsDir,
    FromStep,
    ResultsDir,
    Resume,
    Strict,
    SweepRequest,
    TimeLimit,
    Trace,
    named_experiments,
)

if TYPE_CHECKING:
    from mimokit.experiment.sweeps.report import Following

NOT_STARTED = (
    "This command runs under torchrun or srun: python -m torch.distributed.run --nproc-per-node N "
    "-m mimokit.experiment ...; without them use `mimokit run`."
)
END_SECONDS = 60.0
"""How long rank 0 may take to write what is known once the job ends."""


class _Driver:
    """Rank 0: a thread drives while the main thread works."""

    def __init__(self, job: Job, request: SweepRequest, verify: bool) -> None:
        self._job, self._request = job, request
        self._drives = self._verify if verify else self._sweep
        self._status = 1
        self._following: Following | None = None

    def run(self) -> int:
        actions = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._terminate}
        for number, action in actions.items():
            # A handler must take no lock that the interrupted code may hold.
            signal.signal(number, lambda *_, action=action: _later(action))
        thread = threading.Thread(target=self._drive, name="mimokit-driver", daemon=True)
        thread.start()
        try:
            self._job.serve()
        except ClusterError:
            self._status = 1  # the driver says why, after it has written what is known
        thread.join()
        return self._status

    def _interrupt(self) -> None:
        if self._following is not None:
            self._following.interrupt()

    def _terminate(self) -> None:
        threading.Timer(END_SECONDS * slowdown(), os._exit, [1]).start()
        if self._following is not None:
            self._following.sweep.stop()
        self._job.give_up("the job was ended by what has started it")

    def _drive(self) -> None:
        try:
            with self._job.submitting():
                self._status = self._drives()
        except ConfigError as error:
            print(error, flush=True)
            self._status = REFUSED
        except ClusterError as error:
            print(error, flush=True)
        except Exception:
            traceback.print_exc()

    def _sweep(self) -> int:
        from rich.console import Console

        from mimokit.experiment.sweeps.report import Following
        from mimokit.experiment.sweeps.runner import SweepRun
        from mimokit.experiment.sweeps.start import InTurn

        request, console = self._request, Console(soft_wrap=not sys.stdout.isatty())
        options = request.options()
        prepared = request.prepare(request.find(), len(self._job), console)
        started = SweepRun(InTurn(self._job), prepared, options)
        self._following = Following(started, console)
        return self._following.wait()

    def _verify(self) -> int:
        from rich.console import Console

        from mimokit.experiment.verification import verify

        job: Any = self._job
        report = verify(job, str(self._request.experiments))
        Console(soft_wrap=not sys.stdout.isatty()).print(report)
        return 0 if report.passed else 1


def _later(action: Callable[[], None]) -> None:
    threading.Thread(target=action, daemon=True).start()


def run_job(request: SweepRequest, verify: bool = False) -> int:
    """Take part in a job as the rank that the environment says; return the exit status.

    A rank that raises fails its experiment only: the ranks form a new world for the next one. A
    rank that dies ends the job; `--resume` goes on in a new one.
    """
    if not job_environment():
        print(NOT_STARTED)
        return REFUSED
    results = Path(request.results_dir or request.resume or DEFAULT_RESULTS)
    try:
        if os.environ["RANK"] == "0":
            return _Driver(Job.of_environment(results), request, verify).run()
        for number in (signal.SIGINT, signal.SIGTERM):
            # They reach every process; rank 0 decides what they mean.
            signal.signal(number, lambda *_: None)
        Job.of_environment(results).serve()
    except ClusterError as error:
        print(error, flush=True)
        return 1
    return 0


def main(
    file: Annotated[str | None, typer.Argument(help="A YAML config.")] = None,
    config: ConfigOption = None,
    experiments_dir: ExperimentsDir = None,
    results_dir: ResultsDir = None,
    resume: Resume = None,
    from_step: FromStep = None,
    strict: Strict = False,
    time_limit: TimeLimit = None,
    trace: Trace = False,
    data: Data = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that FILE computes what one process computes.")
    ] = False,
) -> None:
    """Train one config, or all in a folder, on the ranks of this job."""
    experiments = named_experiments(file, config, experiments_dir, resume)
    request = SweepRequest(
        experiments,
        results_dir,
        resume,
        strict,
        time_limit,
        trace,
        source=data,
        from_step=from_step,
    )
    raise typer.Exit(run_job(request, verify))


if __name__ == "__main__":
    typer.run(main)
