"""The processes that torchrun or srun has started, with the face of a cluster for rank 0.

All ranks `serve` in their main threads, rank 0 as well: a second thread of it submits. Calls,
samples and results are files of a folder that all hosts see and other users cannot enter. The store
of the job says where they are, signed.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import os
import secrets
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
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
from mimokit.cluster.state_folder import compiler_caches, state_folder
from mimokit.cluster.watch import REPEAT_SECONDS
from mimokit.cluster.worker.membership import describe
from mimokit.cluster.worker.session import ABORT_MESSAGE, EngineSession, open_session
from mimokit.cluster.worker.stack import Place
from mimokit.cluster.worker.task import RankTask
from mimokit.cluster.world import EngineFacts, lay_out, places_on_hosts
from mimokit.units import counted

KEY_VARIABLE = "MIMOKIT_JOB_KEY"
"""A secret text that only the ranks of a job know, for hosts without a common home."""
KEY_FILE = "job.key"
KEY_BYTES, MOST_KEY_BYTES = 32, 2**16
"""At least: fewer can be guessed, and a file of none is what is left of a full disk."""
SAME_KEY = f"give all hosts one home directory, or the same secret text in {KEY_VARIABLE}"


def user_key() -> bytes:
    """Return the key of this user: that of the environment, or else of a file.

    The file is made at the first call, in `state_folder()`. Nobody else can read it.

    Raises:
        ClusterError: others can read the file or its folder or own them, there is no place for it,
            or the key is too short.
    """
    if (given := os.environ.get(KEY_VARIABLE)) is not None:
        return _long_enough(given.encode(), KEY_VARIABLE)
    try:
        return _of_file(state_folder() / KEY_FILE)
    except OSError as error:
        raise ClusterError(
            f"the key of this job cannot be kept in a file ({error}); {SAME_KEY}"
        ) from error


def _long_enough(key: bytes, place: object) -> bytes:
    if len(key) < KEY_BYTES:
        raise ClusterError(
            f"{place} has a key of {counted(len(key), 'byte')}, and a key has {KEY_BYTES} or more: "
            "take 64 hexadecimal digits of `openssl rand -hex 32`, or delete it"
        )
    return key


def _of_file(file: Path) -> bytes:
    if not file.exists():
        # A link is there at once and whole, whichever of several ranks makes it.
        own = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as text:
            text.write(secrets.token_hex(KEY_BYTES))
            text.flush()
            os.fsync(text.fileno())  # a power cut must not leave an empty one
        try:
            with contextlib.suppress(FileExistsError):
                os.link(own, file)
        finally:
            own.unlink()
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as content:
        facts = os.fstat(content.fileno())
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise ClusterError(f"{file} is the key of your jobs, and others can read it: delete it")
        return _long_enough(content.read(MOST_KEY_BYTES), file)


ENDS = "a job replaces no single rank: start it again with --resume"
CALL = "call"
"""The file with the pickled function and arguments of a run, next to what ranks record."""
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


class Job:
    """This process of a job; `submit` and `run` are for rank 0.

    Args:
        store: of torch.distributed, that all ranks reach.

    Raises:
        ClusterError: the ranks have no common key.
    """

    def __init__(self, store: Any, rank: int, size: int, key: bytes) -> None:
        from mimokit.cluster.worker.signed_store import SignedStore

        self.rank, self._size = rank, size
        self._store = SignedStore(store, key)
        # What was signed for another job of this user must not hold in this one.
        own = json.dumps([asdict(describe()), secrets.token_hex(16)])
        self._store.set(f"facts/{rank}", own)
        told = [self._told("facts", other) for other in range(size)]
        self._key = hmac.digest(key, repr(told).encode(), "sha256")
        self._store = SignedStore(store, self._key)
        facts = [json.loads(text)[0] for text in told]
        self._facts = [EngineFacts(**{**one, "gpus": tuple(one["gpus"])}) for one in facts]
        self._session: EngineSession = open_session(None)
        self._submitted = 0
        self._current = 0, ""
        self._run: ClusterRun | None = None
        self._folder = Path()
        self._lost: str | None = None
        self._leaves = False

    @classmethod
    def of_environment(cls) -> Job:
        """Join the job of the environment; this process ends with what has started it."""
        from torch.distributed.rendezvous import rendezvous

        os.environ |= compiler_caches()
        die_with_parent(signal.SIGTERM if os.environ["RANK"] == "0" else signal.SIGKILL)
        store, rank, size = next(rendezvous("env://", timeout=START))
        return cls(store, rank, size, user_key())

    def serve(self) -> None:
        """Do what rank 0 submits until the end, in the main thread.

        Raises:
            ClusterError: the store of the job is gone.
        """
        listener = threading.Thread(target=self._listen, name="mimokit-job", daemon=True)
        listener.start()
        try:
            for number in itertools.count():
                task = json.loads(self._awaited(f"task/{number}"))
                if task is None:
                    break
                if self.rank < task["ranks"]:
                    self._work(number, **task)
            self._session.membership.leave()
            self._leaves = True
            listener.join()  # it must not use the store while the interpreter ends
            self._part()
        except ClusterError:
            raise
        except RuntimeError as error:
            raise ClusterError(f"{GONE}: start the job again with --resume") from error

    def _work(self, number: int, run_id: str, folder: str, ranks: int, backend: str) -> None:
        facts = self._facts[:ranks]
        here = len({fact.host for fact in facts}) == 1
        if self.rank == 0:
            address = "127.0.0.1" if here else facts[0].address
            port = self._session.membership.open_store(address, COLLECTIVE_SECONDS)
            self._store.set(f"port/{number}", str(port))
        port = int(self._awaited(f"port/{number}"))
        key = hmac.digest(self._key, b"world %d" % number, "sha256")
        places = places_on_hosts([fact.host for fact in facts])
        specs = lay_out(tuple(facts), places, port, COLLECTIVE_SECONDS, key, backend)
        call = own_file(Path(folder) / CALL)
        self._current = number, run_id
        RankTask(run_id, specs[self.rank], PackedCall(call), record=folder)()

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
        return self._store.get(name)

    # What rank 0 does.

    def __len__(self) -> int:
        return self._size

    @contextlib.contextmanager
    def submitting(self, folder: Path) -> Iterator[None]:
        """Keep files of all runs in a new folder next to the results; end the job afterwards."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".job-", dir=folder.absolute(), ignore_cleanup_errors=True
        ) as name:
            self._folder = Path(name)
            try:
                yield
            finally:
                with contextlib.suppress(RuntimeError):
                    self._store.set(f"task/{self._submitted}", "null")

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
        run = ClusterRun(self, function.__qualname__, engines, runs=self._folder)
        folder = self._folder / run.run_id
        (folder / CALL).write_bytes(packed(function, args, {}))
        task = {"run_id": run.run_id, "folder": str(folder), "ranks": world_size}
        self._run = run
        self._store.set(f"task/{self._submitted}", json.dumps({**task, "backend": backend}))
        self._submitted += 1
        run.read_record(folder)
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

    def _told(self, name: str, rank: int) -> bytes:
        try:
            return self._store.get(f"{name}/{rank}")
        except RuntimeError as error:
            raise ClusterError(
                f"what rank {rank} says in the store of this job is not signed with the key of "
                f"rank {self.rank}: {SAME_KEY}"
            ) from error


def own_file(path: Path) -> bytes:
    """Return the content of a file; raises ClusterError if other users can write it."""
    facts = path.parent.parent.stat()
    if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise ClusterError(f"others can enter {path.parent.parent}, which has files of this job")
    return path.read_bytes()
