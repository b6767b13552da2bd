"""A sweep under torchrun: every process calls `run_job`, rank 0 decides what runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from mimokit.config import ConfigError
from mimokit.experiment.prepare import REFUSED
from mimokit.experiment.sweeps.options import SweepRequest
from mimokit.experiment.torchrun.store import JobStore, started_by_torchrun

if TYPE_CHECKING:
    from mimokit.experiment.sweeps.report import Following
    from mimokit.experiment.torchrun.cluster import TorchrunCluster

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
        from mimokit.experiment.torchrun.member import Member

        Member(JobStore.from_environment()).serve()
        return 0
    from mimokit.experiment.torchrun.cluster import TorchrunCluster

    return _Driver(TorchrunCluster(JobStore.from_environment()), request).run()


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
            signal.signal(number, lambda given, _: self._later(given))
        thread = threading.Thread(target=self._drive, name="mimokit-driver", daemon=True)
        thread.start()
        self._cluster.member.serve()
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
        from mimokit.experiment.sweeps.seats import InTurn

        request, console = self._request, Console(soft_wrap=not sys.stdout.isatty())
        options = request.options()
        prepared = request.prepare(request.find(), len(self._cluster), console)
        started = SweepRun(InTurn(self._cluster), prepared, options)
        self._following = Following(started, console)
        return self._following.wait()
