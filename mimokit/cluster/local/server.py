"""The process that local engines come from.

It starts the controller, imports what every rank needs, forks (or executes) engines, tells the
client at once when one of them dies, and ends them all when it is told to or, unless the cluster
stays, when the client is gone. It has one thread and opens no GPU, since neither survives a fork.
Standard input is the socket on which it listens for clients; it obeys one at a time.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

import psutil

from mimokit.cluster.local import commands
from mimokit.cluster.local.apps import CONTROLLER, ENGINE, run_app
from mimokit.cluster.local.callers import Caller
from mimokit.cluster.local.entries import ClusterEntry, clear
from mimokit.cluster.local.private_network import enter_private_network
from mimokit.cluster.local.processes import (
    allow_descriptors,
    execute_process,
    fork_process,
    kill_group,
)
from mimokit.cluster.sockets import name_sockets
from mimokit.import_path import found
from mimokit.units import counted

ORPHAN_CHECK_SECONDS = 0.5
CONTROLLER_CHECK_SECONDS = 0.01


class EngineServer:
    """The children of this process."""

    def __init__(self, entry: ClusterEntry, listener: socket.socket | None = None) -> None:
        """Take what to start.

        Args:
            listener: for clients, of which one is connecting; None: nobody can speak to it.
        """
        self._entry = entry
        self._directory = Path(entry.directory)
        self._fork = entry.launch == "fork"
        self._listener = listener
        self._callers: list[Caller] = []
        self._client: Caller | None = None
        self._parent = os.getppid()
        self._pid = os.getpid()
        self._controller: int | None = None
        self._engines: dict[int, int] = {}
        self._last_id = -1
        self._wanted: list[int] = []
        self._ended = False

    def serve(self) -> None:
        """Work until a client ends it or, unless the cluster stays, is gone."""
        try:
            self._client = self._accept()
            self._register()
            self._start_controller()
            self._import_preload()
            self._say_ready()
            self._listen()
        finally:
            self._end_all()

    def _register(self) -> None:
        try:
            self._entry.write()
        except OSError as error:
            if self._entry.stays:
                self._give_up(f"nobody could find it again, as its entry is not written ({error})")

    def _give_up(self, reason: str) -> NoReturn:
        self._say(event="failed", message=reason)
        raise SystemExit(1)

    def _start_controller(self) -> None:
        directory = self._directory
        arguments = [*commands.controller_arguments(directory), *commands.on_sockets(directory)]
        log = self._directory / "controller.log"
        if self._fork:
            import ipyparallel.controller.app  # noqa: F401  (shared by the fork)
        self._controller = self._start_app(CONTROLLER, log, arguments)

    def _start_app(self, kind: str, log: Path, arguments: list[str]) -> int:
        directory = self._entry.directory
        if self._fork:
            return fork_process(log, lambda: run_app(kind, directory, arguments))
        return execute_process(log, run_app.__module__, kind, directory, *arguments)

    def _import_preload(self) -> None:
        if not self._fork:
            return
        gc.disable()  # modules stay: collections while they are imported find nothing
        import ipykernel.debugger  # noqa: F401  (as an engine does when it starts)
        import ipyparallel.engine.app
        import ipyparallel.engine.kernel  # noqa: F401

        import mimokit.cluster.worker.task  # noqa: F401

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in self._entry.preload:
                self._import(name)
        self._fork = self._may_fork()
        # Collections in forks would copy each shared page they write; one here would free no page.
        gc.freeze()
        gc.enable()

    def _import(self, name: str) -> None:
        try:
            found(lambda: importlib.import_module(name))
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._give_up(f"the module {name!r} cannot be imported: {cause}")

    def _may_fork(self) -> bool:
        torch = sys.modules.get("torch")
        reason = None
        if (torch is not None and torch.cuda.is_initialized()) or _gpu_is_open():
            reason = "it has opened the GPU"
        elif _thread_count() > 1:
            reason = f"it has {counted(_thread_count(), 'thread')}"
        if reason:
            self._say(event="plain", message=reason)
        return reason is None

    def _listen(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        assert self._listener is not None
        while not self._ended and (self._entry.stays or os.getppid() == self._parent):
            patience = CONTROLLER_CHECK_SECONDS if self._wanted else ORPHAN_CHECK_SECONDS
            sources: list[Any] = [wake_read, self._listener, *self._callers]
            ready, _, _ = select.select(sources, [], [], patience)
            if wake_read in ready:
                os.read(wake_read, 4096)
            for caller in [caller for caller in self._callers if caller in ready]:
                self._hear(caller)
            if self._listener in ready:
                self._accept()
            self._reap()
            self._start_wanted()

    def _accept(self) -> Caller:
        assert self._listener is not None
        caller = Caller(self._listener.accept()[0])
        self._callers.append(caller)
        if not caller.is_owner:
            self._drop(caller)
        return caller

    def _hear(self, caller: Caller) -> None:
        try:
            said = caller.receive()
        except ValueError:  # no message of ours
            said = None
        if said is None:
            self._drop(caller)
        for command in said or ():
            self._obey(caller, command)

    def _drop(self, caller: Caller) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
            caller.close()
        if caller is self._client:
            self._client = None
            self._ended = self._ended or not self._entry.stays

    def _obey(self, caller: Caller, command: dict[str, Any]) -> None:
        kind = command["command"]
        if kind == "end":
            self._ended = True
        elif kind == "look":
            client = self._client.pid if self._client is not None else None
            self._answer(caller, event="state", client=client, engines=len(self._engines))
        elif kind == "take":
            self._take(caller)
        elif caller is self._client and kind == "start":
            self._wanted.append(command["engine_id"])
        elif caller is self._client and kind == "kill":
            pid = self._engines.get(command["engine_id"])
            if pid is not None:
                kill_group(pid)

    def _take(self, caller: Caller) -> None:
        if self._client is not None and psutil.pid_exists(self._client.pid):
            self._answer(caller, event="refused", client=self._client.pid)
            return
        self._client = caller
        self._say_ready()
        for engine_id, pid in self._engines.items():
            self._say(event="started", engine_id=engine_id, pid=pid)
        self._say(event="taken", last_id=self._last_id)

    def _start_wanted(self) -> None:
        if self._wanted and (connection := commands.engine_connection(self._directory)):
            name_sockets(connection)
            for engine_id in self._wanted:
                self._start_engine(engine_id)
            self._wanted.clear()

    def _start_engine(self, engine_id: int) -> None:
        arguments = commands.engine_arguments(self._directory, engine_id)
        log = self._directory / f"engine-{engine_id}.log"
        pid = self._start_app(ENGINE, log, arguments)
        self._engines[engine_id] = pid
        self._last_id = max(self._last_id, engine_id)
        self._say(event="started", engine_id=engine_id, pid=pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # What the dead one had started (data loader workers) would outlive it.
            kill_group(pid)
            self._report_death(pid, os.waitstatus_to_exitcode(status))

    def _report_death(self, pid: int, code: int) -> None:
        if pid == self._controller:
            self._say(event="failed", message="the ipyparallel controller has died")
        for engine_id, engine_pid in list(self._engines.items()):
            if engine_pid == pid:
                del self._engines[engine_id]
                name = signal.Signals(-code).name if code < 0 else None
                self._say(event="died", engine_id=engine_id, pid=pid, signal=name, code=code)

    def _end_all(self) -> None:
        if os.getpid() != self._pid:
            return
        children = [*self._engines.values()]
        if self._controller is not None:
            children.append(self._controller)
        for pid in children:
            kill_group(pid)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        clear(self._entry)

    def _say_ready(self) -> None:
        self._say(event="ready", fork=self._fork, controller=self._controller)

    def _say(self, **event: object) -> None:
        if self._client is not None:
            self._answer(self._client, **event)

    def _answer(self, caller: Caller, **event: object) -> None:
        try:
            caller.say(event)
        except OSError:  # it is gone, so there is nothing left to report to
            self._drop(caller)


def _thread_count() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _gpu_is_open() -> bool:
    # Merely counting GPUs opens other device files, which do survive a fork.
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith("/dev/nvidia-uvm"):
                return True
    return False


def main() -> None:
    """Serve: the argument is the entry of the cluster as JSON, standard input the socket."""
    enter_private_network()
    allow_descriptors()
    entry = ClusterEntry.of_json(sys.argv[1]).of_this_process()
    # What is forked or imported has no business with the socket.
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    EngineServer(entry, listener).serve()


if __name__ == "__main__":
    main()
