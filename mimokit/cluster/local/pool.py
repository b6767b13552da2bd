"""The client's side of the engine server: local engines, watched and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimokit.cluster.devices import HIDDEN, gpus_of_host
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.frozen import FROZEN_SECONDS, FrozenWatch
from mimokit.cluster.link import EngineLink, connect
from mimokit.cluster.local.commands import connection_file, profile_directory
from mimokit.cluster.pool import Engine, PoolListener, StartProgress
from mimokit.cluster.worker.stack import STACK_SIGNAL, within_run
from mimokit.units import counted

START_SECONDS = 120.0
STACK_SECONDS = 0.5
"""How long an engine may take to write its stack."""
CLOSE_SECONDS = 1.2
LONGEST_PLACE = 60
"""Characters of the path of the directory for temporary files; that of a socket may have 103."""
CONTINUE_SECONDS = 5.0
"""How long the controller or the engine server may be stopped before it is told to go on."""
NEW_CLUSTER = "close this cluster and start another"
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalPool:
    """Engines on this machine, children of one server process."""

    link: EngineLink

    def __init__(
        self,
        n: int,
        fork: bool,
        preload: Sequence[str],
        listener: PoolListener,
        progress: StartProgress,
    ) -> None:
        self._listener = listener
        self._fork = fork
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pids: dict[int, int] = {}
        self._dead: dict[int, int] = {}
        self._killed: set[int] = set()
        self._failure: str | None = None
        self._controller: int | None = None
        self._stopped = FrozenWatch()
        self._closed = False
        self._slots = list(range(n))
        self._next_id = n
        self.directory = _new_directory()
        profile_directory(self.directory).mkdir()
        self._server = self._start_server(preload)
        self._reader = threading.Thread(target=self._read, name="mimokit-engines", daemon=True)
        self._reader.start()
        try:
            self._start(progress)
        except BaseException:
            self.close()
            raise

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot."""
        return tuple(
            Engine(slot, engine_id, self._pids.get(engine_id))
            for slot, engine_id in enumerate(self._slots)
        )

    @property
    def description(self) -> str:
        """How the engines were started."""
        return "local, forked" if self._fork else "local"

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""
        engine_id = self._slots[slot]
        gone = engine_id in self._dead or engine_id in self._killed
        return not gone and self._failure is None and engine_id in self.link.live_ids()

    def check(self) -> None:
        """Raise ClusterError if no engine can be heard of any more."""
        self._continue_stopped()
        if self._failure is not None:
            raise ClusterError(f"{self._failure}: {NEW_CLUSTER}")

    def _continue_stopped(self) -> None:
        self._continue("the controller", self._controller)
        self._continue("the engine server", self._server.pid)

    def _continue(self, name: str, pid: int | None) -> None:
        """Have a process that all engines need go on after it was stopped by a signal."""
        seconds = self._stopped.stopped(pid)
        if pid is None or seconds is None or seconds < CONTINUE_SECONDS:
            return
        what = f"{name} (process {pid}) was stopped by a signal"
        if seconds >= FROZEN_SECONDS:
            self._fail(f"{what} and does not go on")
            return
        os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on
            warnings.warn(f"{what} and was told to go on", RuntimeWarning, stacklevel=2)

    def kill(self, engine: Engine) -> None:
        """End an engine by force; returns at once, and the engine is not alive any more."""
        self._killed.add(engine.engine_id)
        self._tell(command="kill", engine_id=engine.engine_id)

    def written_stack(self, engine: Engine) -> str | None:
        """Return the stack that an engine writes into its log, None if that cannot be read."""
        log = self.directory / f"engine-{engine.engine_id}.log"
        try:
            before = log.stat().st_size
            os.kill(self._pids[engine.engine_id], STACK_SIGNAL)
            time.sleep(STACK_SECONDS)
            return within_run(log.read_bytes()[before:].decode(errors="replace")) or None
        except (OSError, LookupError):
            return None

    def replace(self, slots: list[int]) -> None:
        """Start new engines in the slots of dead ones."""
        self.check()
        for engine in [self.engines[slot] for slot in slots]:
            # One that the controller has given up may still be there.
            self.kill(engine)
        with self._lock:
            for slot in slots:
                self._slots[slot] = self._next_id
                self._next_id += 1
        for slot in slots:
            self._tell(command="start", engine_id=self._slots[slot])
        self._wait_registered([self._slots[slot] for slot in slots], StartProgress.none())

    def close(self) -> None:
        """End every process; returns within 2 s."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(AttributeError):
            self.link.close()
        self._tell(command="close")
        try:
            self._server.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._close_pipes()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _close_pipes(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with contextlib.suppress(OSError):
            self._server.stdin.close()
        if self._reader is not threading.current_thread():
            self._reader.join(0.5)
        self._server.stdout.close()

    def _start_server(self, preload: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        for name in ONE_THREAD:
            environment.setdefault(name, "1")
        # An abort breaks connections: torch's C++ side would print a page for each.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # Counting GPUs must not open them in the server: an open GPU does not survive a fork.
        environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        if 0 < gpus_of_host() < len(self._slots):
            warnings.warn(
                f"{counted(len(self._slots), 'engine')} and {counted(gpus_of_host(), 'GPU')}: the "
                "engines compute on the CPU; start as many engines as GPUs to use these.",
                RuntimeWarning,
                stacklevel=2,
            )
            environment |= HIDDEN
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with (self.directory / "server.log").open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mimokit.cluster.local.server",
                    str(self.directory),
                    "fork" if self._fork else "plain",
                    *preload,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _start(self, progress: StartProgress) -> None:
        for engine_id in self._slots:
            self._tell(command="start", engine_id=engine_id)
        self.link = connect(connection_file(self.directory), START_SECONDS, self._check)
        self._wait_registered(self._slots, progress)

    def _wait_registered(self, engine_ids: list[int], progress: StartProgress) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            there = set(self.link.live_ids()).intersection(engine_ids)
            progress.show(len(there))
            if len(there) == len(engine_ids):
                return
            self._check()
            for engine_id in self._dead.keys() & set(engine_ids):
                how = f"exit status {self._dead[engine_id]}"
                raise ClusterError(
                    f"engine {engine_id} ended while starting ({how}){self._log(engine_id)}"
                )
            if time.monotonic() > deadline:
                reason = f"{len(there)} of {len(engine_ids)} are there after {START_SECONDS:.0f} s"
                raise ClusterError(f"the engines cannot be started: {reason}")
            time.sleep(0.02)

    def _check(self) -> None:
        self._continue_stopped()
        if self._failure is not None:
            raise ClusterError(f"the cluster cannot be started: {self._failure}")

    def _log(self, engine_id: int) -> str:
        try:
            text = (self.directory / f"engine-{engine_id}.log").read_text()[-2000:].strip()
        except OSError:
            return ""
        return f"; its last words:\n{text}" if text else ""

    def _tell(self, **command: object) -> None:
        pipe = self._server.stdin
        if pipe is not None:
            with self._writing, contextlib.suppress(OSError, ValueError):
                pipe.write(json.dumps(command).encode() + b"\n")
                pipe.flush()

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._hear(json.loads(line))
        self._fail("the engine server has died")

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._closed or self._failure is not None:
                return
            self._failure = reason
        self._listener.hear_of_failure(f"{reason}: {NEW_CLUSTER}")

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        with self._lock:
            if kind == "ready":
                self._fork = event["fork"]
                self._controller = event["controller"]
            elif kind == "started":
                self._pids[event["engine_id"]] = event["pid"]
            elif kind == "died":
                self._dead[event["engine_id"]] = event["code"]
        if kind == "failed":
            self._fail(event["message"])
        elif kind == "plain":
            warnings.warn(
                f"the engines are started one by one, since the process they would be forked from "
                f"cannot be forked: {event['message']}",
                stacklevel=2,
            )
        elif kind == "died" and not self._closed:
            self._listener.hear_of_death(event["engine_id"], event["signal"])
            with contextlib.suppress(AttributeError):
                self.link.forget(event["engine_id"])


def _new_directory() -> Path:
    """Return a new directory that nobody else can enter, with a path that sockets can have."""
    place = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(
            prefix="mimokit-cluster-", dir=place if len(place) <= LONGEST_PLACE else "/tmp"
        )
    )
