"""The processes that torchrun or srun has started, with the face of a cluster for rank 0.

All ranks `serve` in their main threads, rank 0 as well: a second thread of it submits. What ranks
are, run and record are files of a folder that all hosts see and other users cannot enter. The store
of the job says where it is and what is there, and nothing of it is run or believed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import secrets
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from mimokit.cluster.backend import choose_backend
from mimokit.cluster.call_file import PackedCall
from mimokit.cluster.calls import packed
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.local.processes import die_with_parent
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine
from mimokit.cluster.run import ClusterRun
from mimokit.cluster.state_folder import compiler_caches
from mimokit.cluster.watch import REPEAT_SECONDS
from mimokit.cluster.worker.membership import describe_rank
from mimokit.cluster.worker.session import ABORT_MESSAGE, EngineSession, open_world_session
from mimokit.cluster.worker.stack import Place
from mimokit.cluster.worker.task import RankTask
from mimokit.cluster.world import EngineFacts, lay_out, places_on_hosts

FOLDER = "folder"
"""The entry of the store that names the folder."""
PREFIX = ".job-"
THERE, END = b"there", b"end"
ENDS = "a job replaces no single rank: start it again with --resume"
GONE = "the store of this job is gone, as its first host or torchrun's agent is"
START = timedelta(minutes=5)
COLLECTIVE_SECONDS = 300.0
"""How long a collective may wait for its peers; ranks that fail are noticed at once."""
POLL_SECONDS = 0.05
LEAVE_SECONDS = 10.0
"""How long a rank may take to end its function once the store is gone."""


def job_environment() -> bool:
    """Return whether this is a process of a job; describe one of srun as torchrun does."""
    given = os.environ
    if "SLURM_PROCID" in given and "RANK" not in given and "SLURM_NTASKS" in given:
        given["RANK"], given["WORLD_SIZE"] = given["SLURM_PROCID"], given["SLURM_NTASKS"]
        given.setdefault("MASTER_ADDR", given.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
        given.setdefault("MASTER_PORT", str(20_000 + int(given.get("SLURM_JOB_ID", 0)) % 20_000))
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= given.keys()


@dataclass(frozen=True)
class _Submitted:
    """What rank 0's second thread has its main thread hand out."""

    run_id: str
    call: PackedCall
    ranks: int
    backend: str


class Job:
    """This process of a job; `submit` and `run` are for rank 0.

    Args:
        store: of torch.distributed, that all ranks reach.
        folder: for the files of the ranks, see `own_folder`.
    """

    def __init__(self, store: Any, rank: int, size: int, folder: Path) -> None:
        self.rank, self._size, self._store, self._folder = rank, size, store, folder
        self._session: EngineSession = open_world_session(None)
        self._write(f"facts-{rank}", describe_rank())
        others = range(size) if rank == 0 else ()
        self._facts: list[EngineFacts] = [self._read(f"facts-{other}") for other in others]
        self._waiting = queue.SimpleQueue[_Submitted | None]()
        self._submitted = 0
        self._current = 0, ""
        self._run: ClusterRun | None = None
        self._lost: str | None = None
        self._leaves = False

    @classmethod
    def of_environment(cls, results: Path) -> Job:
        """Join the job of the environment; this process ends with what has started it.

        Args:
            results: where all ranks see a new folder for their files.

        Raises:
            ClusterError: others could have written there, or this rank cannot.
        """
        from torch.distributed.rendezvous import rendezvous

        os.environ |= compiler_caches()
        die_with_parent(signal.SIGTERM if os.environ["RANK"] == "0" else signal.SIGKILL)
        store, rank, size = next(rendezvous("env://", timeout=START))
        try:
            if rank == 0:
                results.mkdir(parents=True, exist_ok=True)
                store.set(FOLDER, tempfile.mkdtemp(prefix=PREFIX, dir=results.absolute()))
            return cls(store, rank, size, own_folder(store.get(FOLDER).decode()))
        except OSError as error:
            raise ClusterError(f"the ranks of this job have no folder ({error})") from error

    def serve(self) -> None:
        """Do what rank 0 submits until the end, in the main thread.

        Raises:
            ClusterError: the store of the job is gone.
        """
        listener = threading.Thread(target=self._listen, name="mimokit-job", daemon=True)
        listener.start()
        try:
            for number in itertools.count():
                if self.rank == 0:
                    self._hand_out(number, self._waiting.get())
                if self._awaited(f"task-{number}") == END:
                    break
                specs, call = self._read(f"task-{number}")
                if self.rank < len(specs):
                    self._current = number, call.run_id
                    record = str(self._runs / call.run_id)
                    RankTask(call.run_id, specs[self.rank], call.call, record=record)()
            self._session.membership.leave()
            self._leaves = True
            listener.join()  # it must not use the store while the interpreter ends
            self._part()
        except ClusterError:
            raise
        except OSError as error:
            self.give_up(f"the folder of this job cannot be used ({error})")
            raise ClusterError(str(self._lost)) from error
        except RuntimeError as error:
            raise ClusterError(f"{GONE}: start the job again with --resume") from error

    def _hand_out(self, number: int, call: _Submitted | None) -> None:
        """Open the store of a world, and say with what key its ranks join and what they run."""
        if call is None:
            self._store.set(f"task-{number}", END)
            return
        facts = tuple(self._facts[: call.ranks])
        hosts = [fact.host for fact in facts]
        address = "127.0.0.1" if len({*hosts}) == 1 else facts[0].address
        port = self._session.membership.open_store(address, COLLECTIVE_SECONDS)
        given = places_on_hosts(hosts), port, COLLECTIVE_SECONDS, secrets.token_bytes(32)
        self._write(f"task-{number}", (lay_out(facts, *given, call.backend), call))

    def _part(self) -> None:
        left, deadline = self._store.add("left", 1), time.monotonic() + LEAVE_SECONDS
        while self.rank == 0 and left < self._size and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            left = self._store.add("left", 0)

    def _listen(self) -> None:
        try:
            while not self._leaves:
                time.sleep(POLL_SECONDS)
                number, run_id = self._current
                if self.rank == 0:
                    self.check()  # also once the run has failed: others hear of a death first
                if self._store.check([f"abort/{number}"]):
                    self._session.abort(run_id)
                    time.sleep(REPEAT_SECONDS)
        except RuntimeError:
            if not self._leaves:
                self.give_up(GONE)
                self._session.abort(self._current[1])
                time.sleep(LEAVE_SECONDS * slowdown())
                os._exit(1)  # nothing else would end this process

    def _awaited(self, name: str) -> bytes:
        while not self._store.check([name]):
            time.sleep(POLL_SECONDS)
        return bytes(self._store.get(name))

    @property
    def _runs(self) -> Path:
        return self._folder / "runs"

    def _write(self, name: str, content: object) -> None:
        (self._folder / name).write_bytes(pickle.dumps(content))
        self._store.set(name, THERE)

    def _read(self, name: str) -> Any:
        self._store.get(name)  # waits for it
        os.listdir(self._folder)  # NFS then looks for files that were not there before
        return pickle.loads((self._folder / name).read_bytes())

    # What rank 0 does.

    def __len__(self) -> int:
        return self._size

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """End the job afterwards, and remove its files."""
        try:
            yield
        finally:
            self._waiting.put(None)
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, function: Callable[..., Any], /, *args: Any, world_size: int) -> list[Any]:
        """Run a function on the first ranks, and return its results in rank order."""
        return self.submit(function, *args, world_size=world_size).result()

    def submit(self, function: Callable[..., Any], /, *args: Any, world_size: int) -> ClusterRun:
        """Start a function on the first ranks and return at once.

        Raises:
            ClusterError: a rank is lost, or the function cannot be sent.
        """
        if self._run is not None:
            self._run.wait_ended()
        if self._lost is not None:
            raise ClusterError(self._lost)
        facts = self._facts[:world_size]
        backend = choose_backend(facts, places_on_hosts([fact.host for fact in facts]))
        hosts = [None if fact.host == self._facts[0].host else fact.host for fact in facts]
        engines = {
            rank: Engine(rank, rank, fact.pid, ENDS, host)
            for rank, (fact, host) in enumerate(zip(facts, hosts, strict=True))
        }
        run = ClusterRun(self, function.__qualname__, engines, runs=self._runs)
        call = PackedCall(packed((function, args, {})))
        self._run, self._submitted = run, self._submitted + 1
        self._waiting.put(_Submitted(run.run_id, call, world_size, backend))
        run.read_record(self._runs / run.run_id)
        run.watch()
        return run

    def give_up(self, reason: str) -> None:
        """The job ends: end the run with what is known."""
        self.check()  # a death is why jobs mostly end
        run, self._lost = self._run, self._lost or f"{reason}; {ENDS}"
        if run is not None and not run.done:
            run.give_up(self._lost)
            self._session.abort(run.run_id)

    # What a run needs of its cluster.

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """Pass a message on: an abort to all ranks, a stop to this one, which tells the others."""
        if message == ABORT_MESSAGE:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"abort/{self._submitted - 1}", "1")
        elif engine.slot == 0:
            self._session.stop(content["run_id"])

    def kill(self, engine: Engine) -> None:
        """End a rank that does not come back; nothing here can replace it."""
        self._lost = self._lost or f"rank {engine.slot} does not come back; {ENDS}"
        if engine.slot and engine.host is None and engine.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(engine.pid, signal.SIGKILL)

    def place(self, engine: Engine) -> Place | None:
        """Say nothing against a rank; where it was, its traceback says after an abort."""
        return Place("  where it was is not known in a job\n", waits=True)

    def in_reach(self, engine: Engine) -> bool:
        """What has started the job ends it when a host is gone."""
        return True

    def written_stack(self, engine: Engine) -> str | None:
        """The stack that a rank would write is not ours to read."""
        return None

    def check(self) -> None:
        """Report the first rank on this host whose process is gone; others follow it."""
        run = self._run
        for rank, fact in enumerate(self._facts):
            gone = fact.host == self._facts[0].host and not psutil.pid_exists(fact.pid)
            if gone and self._lost is None and run is not None:
                self._lost = f"rank {rank} (process {fact.pid}) has died; {ENDS}"
                if rank in run.ranks:
                    run.died(rank, None)


def own_folder(name: str) -> Path:
    """Return the folder that the store names, where only this user can have written.

    Raises:
        ClusterError: it is of no job, or others can enter it.
    """
    folder = Path(name)
    facts = folder.lstat()
    private = stat.S_ISDIR(facts.st_mode) and not stat.S_IMODE(facts.st_mode) & 0o077
    if not folder.name.startswith(PREFIX) or facts.st_uid != os.geteuid() or not private:
        raise ClusterError(f"others can enter {folder}, or it is not the folder of a job")
    return folder
