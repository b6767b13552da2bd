"""Child processes of the server, in separate process groups; they end with it."""

import contextlib
import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from mimokit.import_path import module_command

_PR_SET_PDEATHSIG = 1
MOST_DESCRIPTORS = 2**20
"""Some programs close all that a limit allows before they begin: it must not be endless."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def allow_descriptors() -> None:
    """Let this process and its children open as many files and connections as the system allows.

    Connections of other processes must not take the last ones from a rank.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MOST_DESCRIPTORS)
    if now != resource.RLIM_INFINITY and now < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def fork_process(log_file: Path, work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process; returns its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_child(server, log_file, work)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def execute_process(log_file: Path, module: str, *arguments: str) -> int:
    """Run a Python module in a fresh interpreter; returns its process id."""
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            module_command(module, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=die_with_parent,
        )
    # The server reaps its children itself; subprocess must not wait for this one behind its back.
    process.returncode = 0
    return process.pid


def kill_group(pid: int) -> None:
    """Kill a child and whatever it started (data loader workers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _become_child(server: int, log_file: Path, work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent()
        if os.getppid() != server:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect(log_file)
        _draw_new_seeds()
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _redirect(log_file: Path) -> None:
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, max(null, log) + 64)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # An engine that ends puts these back.
    sys.__dict__.update(__stdout__=sys.stdout, __stderr__=sys.stderr)


def _draw_new_seeds() -> None:
    # Forks would otherwise all draw the numbers their parent would have drawn next.
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
