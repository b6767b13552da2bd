"""The client's side of the engine server: local engines, watched and replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.link import connect
from mimokit.cluster.local.callers import Caller
from mimokit.cluster.local.entries import ClusterEntry, clear, connection_file
from mimokit.cluster.local.starting import StartOptions, called, start_server
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine, Linked, WeakListener
from mimokit.cluster.process import StoppedProcesses
from mimokit.cluster.symptoms import NO_DESCRIPTOR, SYMPTOMS
from mimokit.cluster.worker.interference import connections, strangers
from mimokit.cluster.worker.stack import STACK_SIGNAL, within_run
from mimokit.progress import SILENT, Bar

START_SECONDS = 120.0
STACK_SECONDS = 0.5
"""How long an engine of an idle machine may take to write its stack."""
CLOSE_SECONDS = 1.2
CONTINUE_SECONDS = 5.0
"""How long the controller or the engine server may be stopped before it is told to go on."""
NO_DESCRIPTOR_SIGN = "Too many open files"
NEW_CLUSTER = "close this cluster and start another"


class LocalPool(Linked):
    """Engines on this machine, children of one server process.

    Attributes:
        runs: the folder in which ranks record what they send, None if the engines end with this
            client.
    """

    def __init__(
        self, entry: ClusterEntry, server: psutil.Process, caller: Caller, listener: WeakListener
    ) -> None:
        """Take a server that is there; `start` and `connect` make one usable."""
        self.entry = entry
        self.directory = Path(entry.directory)
        self.runs = entry.runs if entry.stays else None
        self._server = server
        self._caller = caller
        self._listener = listener
        self._fork = entry.launch == "fork"
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pids: dict[int, int] = {}
        self._dead: dict[int, int] = {}
        self._killed: set[int] = set()
        self._failure: str | None = None
        self._controller: int | None = None
        self._last_id: int | None = None
        self._stopped = StoppedProcesses()
        self._closed = False
        self._slots = list(range(entry.engines))
        self._next_id = entry.engines
        self._reader = threading.Thread(target=self._read, name="mimokit-engines", daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, n: int, options: StartOptions, listener: WeakListener, progress: Bar
    ) -> LocalPool:
        """Start engines.

        Raises:
            ClusterError: they cannot be started, or the name is taken.
        """
        entry, server, caller = start_server(n, options)
        pool = cls(entry, server, caller, listener)
        with pool._or_end():
            for engine_id in pool._slots:
                pool._tell(command="start", engine_id=engine_id)
            pool._connect(progress)
        return pool

    @classmethod
    def connect(cls, name: str, listener: WeakListener) -> LocalPool:
        """Return the engines of a cluster that stays.

        Raises:
            ClusterError: there is no such cluster here, or another client uses it.
        """
        entry, caller = called(name)
        pool = cls(entry, psutil.Process(entry.pid), caller, listener)
        with pool._or_leave():
            pool._tell(command="take")
            pool._await_taken()
            pool._connect(SILENT)
        return pool

    def _connect(self, progress: Bar) -> None:
        self.link = connect(
            connection_file(self.directory), START_SECONDS * slowdown(), self._check
        )
        self._wait_registered([slot for slot in self._slots if slot not in self._dead], progress)

    def _await_taken(self) -> None:
        began = time.monotonic()
        while self._last_id is None:
            self._check()
            if time.monotonic() - began > START_SECONDS * slowdown():
                raise ClusterError(f"the cluster {self.entry.name!r} does not answer")
            time.sleep(0.02)
        there = sorted(self._pids)
        gone = range(self._last_id + 1, self._last_id + 1 + len(self._slots) - len(there))
        self._dead.update(dict.fromkeys(gone, 0))
        self._slots, self._next_id = [*there, *gone], self._last_id + 1 + len(gone)

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.end()
            raise

    @contextlib.contextmanager
    def _or_leave(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._leave()
            raise

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot."""
        return tuple(
            Engine(slot, engine_id, self._pids.get(engine_id))
            for slot, engine_id in enumerate(self._slots)
        )

    @property
    def failure(self) -> str | None:
        """Why no engine can be heard of any more, None if they can."""
        return self._failure

    @property
    def options(self) -> StartOptions:
        """How engines like these are started."""
        entry = self.entry
        name = entry.name if entry.stays else None
        return StartOptions(entry.launch == "fork", entry.preload, entry.timeout, name, entry.stays)

    @property
    def server_pid(self) -> int:
        """The process that the engines come from."""
        return int(self._server.pid)

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
        seconds = self._stopped.seconds(pid)
        if pid is None or seconds is None or seconds < CONTINUE_SECONDS:
            return
        what = f"{name} (process {pid}) was stopped by a signal"
        if seconds >= SYMPTOMS["stopped"].after:
            self._fail(f"{what} and does not go on")
            return
        os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on
            warnings.warn(f"{what} and was told to go on", RuntimeWarning, stacklevel=2)

    def kill(self, engine: Engine) -> None:
        """End an engine by force; returns at once, and the engine is not alive any more."""
        self._killed.add(engine.engine_id)
        self._tell(command="kill", engine_id=engine.engine_id)

    def in_reach(self, engine: Engine) -> bool:
        """It is on this host."""
        return True

    def written_stack(self, engine: Engine) -> str | None:
        """Return the stack that an engine writes into its log, None if that cannot be read."""
        log = self.directory / f"engine-{engine.engine_id}.log"
        try:
            before = log.stat().st_size
            os.kill(self._pids[engine.engine_id], STACK_SIGNAL)
            time.sleep(STACK_SECONDS * slowdown())
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
        self._wait_registered([self._slots[slot] for slot in slots], SILENT)

    def close(self) -> None:
        """End every process, or leave them if the cluster stays; returns within 2 s."""
        if self.entry.stays:
            self._leave()
        else:
            self.end()

    def end(self) -> None:
        """End every process; returns within 2 s."""
        self._leave(end=True)
        try:
            self._server.wait(CLOSE_SECONDS)
        except psutil.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        clear(self.entry)

    def _leave(self, end: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(AttributeError):
            self.link.close()
        if end:
            self._tell(command="end")
        self._caller.close()
        if self._reader is not threading.current_thread():
            self._reader.join(0.5)

    def _wait_registered(self, engine_ids: list[int], progress: Bar) -> None:
        began = time.monotonic()
        while True:
            there = set(self.link.live_ids()).intersection(engine_ids)
            progress.update(len(there))
            if len(there) == len(engine_ids):
                return
            self._check()
            for engine_id in self._dead.keys() & set(engine_ids):
                how = f"exit status {self._dead[engine_id]}"
                raise ClusterError(
                    f"engine {engine_id} ended while starting ({how}){self._log(engine_id)}"
                )
            waited = time.monotonic() - began
            if waited > START_SECONDS * slowdown():
                reason = f"{len(there)} of {len(engine_ids)} are there after {waited:.0f} s"
                raise ClusterError(f"the engines cannot be started: {reason}")
            time.sleep(0.02)

    def _check(self) -> None:
        self._continue_stopped()
        if self._failure is not None:
            verb = "used" if self.entry.pid else "started"
            raise ClusterError(f"the cluster {self.entry.name!r} cannot be {verb}: {self._failure}")

    def _log(self, engine_id: int) -> str:
        try:
            log = self.directory / f"engine-{engine_id}.log"
            text = log.read_text(errors="replace")[-2000:].strip()
        except OSError:
            return ""
        return f"; its last words:\n{text}" if text else ""

    def _cause(self, event: dict[str, Any]) -> str | None:
        """Return the signal that has ended an engine, and why where its log says that."""
        signal: str | None = event["signal"]
        if signal is None or NO_DESCRIPTOR_SIGN not in self._log(event["engine_id"]):
            return signal
        others = strangers(connections())
        return f"{signal}, {NO_DESCRIPTOR}" + (f": {others}" if others else "")

    def _tell(self, **command: object) -> None:
        with self._writing, contextlib.suppress(OSError):
            self._caller.say(command)

    def _read(self) -> None:
        while (events := self._caller.receive()) is not None:
            for event in events:
                self._hear(event)
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
            elif kind == "taken":
                self._last_id = event["last_id"]
        if kind == "failed":
            self._fail(event["message"])
        elif kind == "refused":
            self._fail(
                f"process {event['client']} of this machine uses it: close it there, or start "
                "another cluster"
            )
        elif kind == "plain":
            warnings.warn(
                f"the engines are started one by one, since the process they would be forked from "
                f"cannot be forked: {event['message']}",
                stacklevel=2,
            )
        elif kind == "died" and not self._closed:
            status = event["code"] if event["signal"] is None else None
            self._listener.hear_of_death(event["engine_id"], self._cause(event), status)
            with contextlib.suppress(AttributeError):
                self.link.forget(event["engine_id"])
