"""The ranks of a torchrun job with the face of a cluster, for rank 0 to submit to."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.frozen import pid_here
from mimokit.cluster.link import ANSWER_SECONDS
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine
from mimokit.cluster.run import ClusterRun
from mimokit.cluster.torchrun.member import Member
from mimokit.cluster.torchrun.messages import (
    RankWork,
    Task,
    message_from_json,
    outcome_from_json,
)
from mimokit.cluster.torchrun.store import JobStore
from mimokit.cluster.worker.session import ABORT_MESSAGE, STOP_MESSAGE
from mimokit.cluster.worker.stack import Place

POLL_SECONDS = 0.05
ENDS = "torchrun replaces no single rank: start the job again with --resume"


class OwnSink:
    """Hands the samples of rank 0 to the run in this very process."""

    def __init__(self, run: ClusterRun) -> None:
        self._run = run
        self._sent = 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Take a message."""
        self._sent += 1
        self._run.received(0, [pickle.dumps(dict(message))])

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> int:
        """Return the number of messages."""
        return self._sent


class TorchrunCluster:
    """Works on the ranks of the job; lives on rank 0, next to its main thread.

    torchrun replaces no single rank: after one has died nothing more can run, and `submit` says
    so.
    """

    def __init__(self, store: JobStore, work: RankWork) -> None:
        self._store = store
        self._work = work
        self._number = 0
        self._run: ClusterRun | None = None
        self._lost: str | None = None
        self.member = Member(store, work, self._own_sink)

    def __len__(self) -> int:
        return self._store.size

    def submit(
        self, function: Callable[..., Any], /, *arguments: Any, world_size: int
    ) -> ClusterRun:
        """Start the job's work on the first ranks and return at once.

        Raises:
            ClusterError: it is another function, its arguments do not cross, or a rank is lost.
        """
        if function is not self._work.function:
            raise ClusterError(
                f"under torchrun ranks run {self._work.function.__qualname__}, nothing else; start "
                "a cluster for it"
            )
        content = self._work.to_json(*arguments)
        if self._lost is not None:
            raise ClusterError(self._lost)
        if self._run is not None:
            self._run.wait_ended()
        facts = self.member.facts
        engines = {rank: Engine(rank, rank, facts[rank].pid, ENDS) for rank in range(world_size)}
        run = ClusterRun(self, function.__qualname__, engines)
        self._run = run
        number, self._number = self._number, self._number + 1
        task = Task(content, world_size, last=False)
        self._store.put(f"task/{number}", task.to_text())
        collect = threading.Thread(target=self._listen, args=(run, number), daemon=True)
        collect.start()
        run.watch()
        return run

    def end(self) -> None:
        """Let all ranks leave the job."""
        with contextlib.suppress(ClusterError):  # then they leave by themselves
            self._store.put(f"task/{self._number}", Task().to_text())

    def give_up(self, reason: str) -> None:
        """torchrun ends the job, mostly as a rank has died: end the run with what is known."""
        run = self._run
        if run is not None and not run.done:
            self._note_deaths(run, set(run.ranks))
            run.give_up(reason)
            self.member.abort(self._number - 1)
        self._lost = self._lost or f"{reason}; {ENDS}"

    # What a run needs of its cluster.

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """Pass a message on; all ranks receive an abort, and rank 0 alone a stop."""
        if message == STOP_MESSAGE and engine.slot == 0:
            self.member.stop(self._number - 1)
        elif message == ABORT_MESSAGE:
            number = self._number - 1
            with contextlib.suppress(RuntimeError):
                self._store.put(f"abort/{number}", "1")
            if engine.slot == 0:
                self.member.abort(number)

    def kill(self, engine: Engine) -> None:
        """A rank does not come back, and nothing here can replace it."""
        self._lost = f"rank {engine.slot} does not come back; {ENDS}"

    def pid_here(self, engine: Engine) -> int | None:
        """The process id of a rank on this host, None of one elsewhere."""
        return pid_here(self.member.facts[engine.slot], self.member.facts[0].host)

    def place(self, engine: Engine) -> Place | None:
        """Where the main thread of a rank is, None if its process does not answer."""
        number, seconds = self._number - 1, ANSWER_SECONDS * slowdown()
        with contextlib.suppress(ClusterError):
            self._store.put(f"where/{number}/{engine.slot}", "")
            late = time.monotonic() + seconds
            answer = f"here/{number}/{engine.slot}"
            if self._store.wait(answer, lambda: time.monotonic() > late) is not None:
                return Place.from_json(json.loads(self._store.take(answer) or b'{"stack": ""}'))
        return None

    def in_reach(self, engine: Engine) -> bool:
        """torchrun ends the job when a host is gone."""
        return True

    def written_stack(self, engine: Engine) -> str | None:
        """A rank of torchrun writes none."""
        return None

    def check(self) -> None:
        """The store of the job lives as long as the job."""

    def ended(self) -> None:
        """Every rank of the run is back or gone."""

    # What comes from the other ranks.

    def _own_sink(self, number: int) -> OwnSink:
        assert self._run is not None
        return OwnSink(self._run)

    def _listen(self, run: ClusterRun, number: int) -> None:
        try:
            self._collect(run, number)
        except ClusterError as error:
            self._lost = self._lost or str(error)
            run.give_up(str(error))

    def _collect(self, run: ClusterRun, number: int) -> None:
        """Pass on samples and outcomes of all ranks, and deaths of ranks on this machine."""
        batches = dict.fromkeys(run.ranks, 0)
        open_ranks = set(run.ranks)
        while open_ranks and not run.wait_ended(POLL_SECONDS):
            for rank in sorted(open_ranks):
                batches[rank] = self._pass_samples(run, number, rank, batches[rank])
                text = self._store.take(f"outcome/{number}/{rank}")
                if text is not None:
                    self._pass_samples(run, number, rank, batches[rank])
                    run.returned(rank, outcome_from_json(text))
                    open_ranks.discard(rank)
            self._note_deaths(run, open_ranks)

    def _pass_samples(self, run: ClusterRun, number: int, rank: int, batch: int) -> int:
        """Pass on the batches of a rank from a number on; return the number of the next one."""
        while rank and (text := self._store.take(_batch(number, rank, batch))):
            batch += 1
            messages = [message_from_json(entry) for entry in json.loads(text)]
            run.received(rank, [pickle.dumps(message) for message in messages])
        return batch

    def _note_deaths(self, run: ClusterRun, ranks: set[int]) -> None:
        """Report the first rank on this machine whose process is gone; others follow it."""
        here = self.member.facts[0].host
        for rank in sorted(ranks):
            fact = self.member.facts[rank]
            if fact.host == here and self._lost is None and _gone(fact.pid):
                self._lost = f"rank {rank} (process {fact.pid}) has died; {ENDS}"
                run.died(rank, None)


def _batch(number: int, rank: int, batch: int) -> str:
    return f"samples/{number}/{rank}/{batch}"


def _gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
