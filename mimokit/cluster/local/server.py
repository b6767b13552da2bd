"""The process that local engines come from: `python -m mimokit.cluster.local.server`.

It starts the controller, imports what every rank needs, forks (or executes) engines, tells the
client at once when one of them dies, and ends them all when the client closes it or is gone. It
has one thread and opens no GPU, since neither survives a fork. Commands come as JSON lines on
standard input, events go as JSON lines to standard output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from mimokit.cluster.local import commands
from mimokit.cluster.local.processes import execute_process, fork_process, kill_group
from mimokit.cluster.sockets import name_sockets
from mimokit.units import counted

ORPHAN_CHECK_SECONDS = 0.5
CONTROLLER_CHECK_SECONDS = 0.01


class EngineServer:
    """The children of this process."""

    def __init__(self, directory: Path, fork: bool, preload: list[str]) -> None:
        self._directory = directory
        self._fork = fork
        self._preload = preload
        self._client = os.getppid()
        self._pid = os.getpid()
        self._controller: int | None = None
        self._engines: dict[int, int] = {}
        self._wanted: list[int] = []
        self._ended = False
        self._buffer = b""

    def serve(self) -> None:
        """Work until the client closes it or is gone."""
        try:
            self._start_controller()
            self._import_preload()
            self._say(event="ready", fork=self._fork, controller=self._controller)
            self._listen()
        finally:
            self._end_all()

    def _start_controller(self) -> None:
        directory = self._directory
        arguments = [*commands.controller_arguments(directory), *commands.on_sockets(directory)]
        log = self._directory / "controller.log"
        if self._fork:
            import ipyparallel.controller.app  # noqa: F401  (shared by the fork)

            self._controller = fork_process(log, lambda: _run_controller(arguments))
        else:
            command = ["-m", commands.CONTROLLER_MODULE, *arguments]
            self._controller = execute_process(log, command)

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
            for name in self._preload:
                self._import(name)
        self._fork = self._may_fork()
        gc.collect()
        # Collections in the forks would otherwise write to, and so copy, every shared page.
        gc.freeze()
        gc.enable()

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._say(event="failed", message=f"the module {name!r} cannot be imported: {cause}")
            raise SystemExit(1) from error

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
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while not self._ended and os.getppid() == self._client:
                patience = CONTROLLER_CHECK_SECONDS if self._wanted else ORPHAN_CHECK_SECONDS
                for key, _ in selector.select(patience):
                    if key.fd == 0:
                        self._read_commands()
                    else:
                        os.read(wake_read, 4096)
                self._reap()
                self._start_wanted()

    def _read_commands(self) -> None:
        chunk = os.read(0, 65536)
        if not chunk:
            self._ended = True
            return
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if command["command"] == "close":
            self._ended = True
        elif command["command"] == "start":
            self._wanted.append(command["engine_id"])
        elif command["command"] == "kill":
            pid = self._engines.get(command["engine_id"])
            if pid is not None:
                kill_group(pid)

    def _start_wanted(self) -> None:
        """Start the engines that were asked for, once there is a controller to register with."""
        if self._wanted and (connection := commands.engine_connection(self._directory)):
            name_sockets(connection)
            for engine_id in self._wanted:
                self._start_engine(engine_id)
            self._wanted.clear()

    def _start_engine(self, engine_id: int) -> None:
        arguments = commands.engine_arguments(self._directory, engine_id)
        log = self._directory / f"engine-{engine_id}.log"
        if self._fork:
            pid = fork_process(log, lambda: _run_engine(arguments))
        else:
            pid = execute_process(log, ["-m", commands.ENGINE_MODULE, *arguments])
        self._engines[engine_id] = pid
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
        shutil.rmtree(self._directory, ignore_errors=True)

    def _say(self, **event: object) -> None:
        line = json.dumps(event).encode() + b"\n"
        try:
            os.write(self._event_pipe, line)
        except OSError:
            # The client is gone, so there is nothing to report to.
            self._ended = True

    _event_pipe = 1


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


def _run_controller(arguments: list[str]) -> None:
    from ipyparallel.controller.app import IPController

    from mimokit.cluster.local.processes import die_with_parent

    os.register_at_fork(after_in_child=die_with_parent)
    IPController.launch_instance(argv=arguments)


def _run_engine(arguments: list[str]) -> None:
    from ipyparallel.engine.app import IPEngine

    IPEngine.launch_instance(argv=arguments)


def main() -> None:
    """Serve: arguments are the directory, `fork` or `plain`, and the modules to import first."""
    directory, launch, *preload = sys.argv[1:]
    # Imports may print; the pipe is for events only.
    EngineServer._event_pipe = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    EngineServer(Path(directory), launch == "fork", preload).serve()


if __name__ == "__main__":
    main()
