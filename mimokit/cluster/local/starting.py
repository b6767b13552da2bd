"""Starts the engine server of a local cluster, or finds one that stays."""

import contextlib
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from mimokit.cluster.devices import HIDDEN, gpus_of_host
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.local.callers import Caller, call, listen_in
from mimokit.cluster.local.entries import ClusterEntry, clear, entry_of, new_folder
from mimokit.cluster.state_folder import compiler_caches
from mimokit.import_path import handed_on, module_command
from mimokit.units import counted

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class StartOptions:
    """How engines are started.

    Attributes:
        fork: from one process that has imported `preload`; else they are ordinary processes.
        name: of the cluster; None: one that no other has.
        stays: whether they outlive this process.
        timeout: of collectives, in seconds.
    """

    fork: bool
    preload: tuple[str, ...]
    timeout: float
    name: str | None = None
    stays: bool = False


def start_server(n: int, options: StartOptions) -> tuple[ClusterEntry, psutil.Popen, Caller]:
    """Start an engine server for so many engines, and connect to it.

    Raises:
        ClusterError: another cluster has the name, or the folder for state is another user's.
    """
    environment = _environment(n)
    directory = new_folder(options.name)
    entry = ClusterEntry(
        directory=str(directory),
        launch="fork" if options.fork else "plain",
        stays=options.stays,
        engines=n,
        timeout=options.timeout,
        preload=options.preload,
    )
    with contextlib.ExitStack() as failed:
        failed.callback(clear, entry)
        with listen_in(directory) as listener, (directory / "server.log").open("wb") as log:
            caller = call(directory)
            failed.callback(caller.close)
            server = psutil.Popen(
                module_command("mimokit.cluster.local.server", json.dumps(asdict(entry))),
                stdin=listener,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        failed.pop_all()
    return entry, server, caller


def called(name: str) -> tuple[ClusterEntry, Caller]:
    """Return a cluster of this machine by its name, and a connection to its engine server.

    Raises:
        ClusterError: there is none of this name here, or it does not answer.
    """
    entry = entry_of(name)
    if not entry.stays:
        raise ClusterError(
            f"the cluster {name!r} ends with the process that started it: start one with stay=True"
        )
    try:
        return entry, call(Path(entry.directory))
    except OSError as error:
        raise ClusterError(f"the cluster {name!r} does not answer: {error}") from None


def _environment(n: int) -> dict[str, str]:
    environment = dict(os.environ)
    for name in ONE_THREAD:
        environment.setdefault(name, "1")
    # An abort breaks connections: torch's C++ side would print a page for each.
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Counting GPUs must not open them in the server: an open GPU does not survive a fork.
    environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # pandas imports pyarrow, whose allocator would start a thread: a process with two cannot fork.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    if 0 < gpus_of_host() < n:
        warnings.warn(
            f"{counted(n, 'engine')} and {counted(gpus_of_host(), 'GPU')}: the "
            "engines compute on the CPU; start as many engines as GPUs to use these.",
            RuntimeWarning,
            stacklevel=2,
        )
        environment |= HIDDEN
    environment["PYTHONPATH"] = handed_on()
    environment |= compiler_caches()
    return environment
