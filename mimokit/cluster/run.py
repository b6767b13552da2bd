"""A run in progress: its samples, its end, and the two ways to end it early."""

import contextlib
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimokit.cluster.errors import ClusterError, RunAborted
from mimokit.cluster.link import describe_remote
from mimokit.cluster.pool import Engine
from mimokit.cluster.run_record import RecordReader, RunRecord
from mimokit.cluster.sample_log import Sample, SampleLog
from mimokit.cluster.verdict import RankReport, verdict
from mimokit.cluster.watch import RankWatch, WatchedEngines
from mimokit.cluster.worker.task import RankOutcome
from mimokit.units import counted

LAST_SAMPLES_SECONDS = 10.0
"""How long to wait for samples that are still under way when a rank has returned."""
LATE_SAMPLES_SECONDS = 0.3
"""The same for a run that has failed."""
RECORD_SECONDS = 0.2
"""How often what ranks record is read."""


class ClusterRun:
    """A function running on the ranks of a cluster; `EngineCluster.submit` returns one.

    Everything here works while the notebook is free and while a cell blocks, since background
    threads do the listening.

    Attributes:
        name: the qualified name of the function.
    """

    def __init__(
        self,
        pool: WatchedEngines,
        name: str,
        engines: dict[int, Engine],
        on_end: Callable[[], object] = lambda: None,
        record: RunRecord | None = None,
        runs: Path | None = None,
    ) -> None:
        """Take the ranks.

        Args:
            on_end: called when every rank is back or gone.
            record: of a run that another client has started.
            runs: the folder in which runs are recorded, None where they are not.
        """
        ids = {rank: engine.engine_id for rank, engine in engines.items()}
        self._record = record or RunRecord(uuid.uuid4().hex, name, ids)
        self._runs = runs
        self.run_id = self._record.run_id
        self.name = name
        if record is None:
            self._write_record()
        self._engines, self._on_end = engines, on_end
        self._watch = RankWatch(pool, self.run_id, name, engines)
        self._log = SampleLog()
        self._finished, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._results: list[Any] = []
        self._started = time.monotonic() - max(0.0, time.time() - self._record.started)
        self._stopped: float | None = None

    def read_record(self, folder: Path) -> None:
        """Take what its ranks have recorded by now, and from now on what they record."""
        reader = RecordReader(folder, self.ranks)
        self._take(reader)

        def follow() -> None:
            while not self.done:
                time.sleep(RECORD_SECONDS)
                self._take(reader)

        threading.Thread(target=follow, name="mimokit-record", daemon=True).start()

    def _take(self, reader: RecordReader) -> None:
        for rank, told in reader.read():
            if isinstance(told, list):
                self.received(rank, told)
            else:
                self.returned(rank, told)

    def watch(self) -> None:
        """Begin to supervise; called by the cluster when the tasks are under way."""
        threading.Thread(target=self._supervise, name="mimokit-run", daemon=True).start()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks the function runs on."""
        return tuple(self._engines)

    def _write_record(self) -> None:
        with contextlib.suppress(OSError):
            if self._runs is not None:
                self._record.write(self._runs)

    @property
    def record_folder(self) -> str | None:
        """The folder in which its ranks record what they send, None where they do not."""
        return None if self._runs is None else str(self._runs / self.run_id)

    @property
    def note(self) -> Mapping[str, Any]:
        """What was remembered with the run."""
        return self._record.note

    def remember(self, note: Mapping[str, Any]) -> None:
        """Remember something with the run, for a client that connects later; JSON can say it."""
        self._record = replace(self._record, note=note)
        self._write_record()

    @property
    def done(self) -> bool:
        """Whether the run has a result or an error."""
        return self._finished.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, or that it took."""
        return (self._stopped or time.monotonic()) - self._started

    @property
    def idle(self) -> float:
        """Seconds since the run ended; 0 while it goes on."""
        return 0.0 if self._stopped is None else time.monotonic() - self._stopped

    @property
    def samples(self) -> list[Sample]:
        """All samples so far, in order of arrival; those of one rank in the order of emission."""
        return list(self._log)

    @property
    def sample_count(self) -> int:
        """The number of samples so far."""
        return len(self._log)

    def each_sample(self) -> Iterator[Sample]:
        """Yield the samples so far one after another, where `samples` has all at the same time."""
        return iter(self._log)

    def on_sample(self, callback: Callable[[Sample], object]) -> None:
        """Call `callback` with every sample, from a separate thread.

        Samples that have come before are given first, so none is missed.
        """
        self._log.listen(callback)

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the results, in rank order.

        Interrupting this wait leaves the run going; `abort` ends it.

        Raises:
            TimeoutError: no result after `timeout` seconds.
            RankError: if a rank raised.
            RankDied: if the process of a rank died, or did not run any more.
            RunAborted: if the run was aborted.
            ClusterError: if the controller or another part of the cluster is gone.
        """
        if not self._finished.wait(timeout):
            raise TimeoutError(f"the run has no result after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return list(self._results)

    def stop(self) -> None:
        """Ask the function to stop at its next look at `mimokit.cluster.should_stop`."""
        self._watch.stop()

    def abort(self) -> None:
        """End the run now: ranks that wait in a collective come back within a fraction of a second.

        Returns at once; `result` then raises `RunAborted`. Ranks that are not back after 3 s, and
        longer on a busy machine, are killed and replaced.
        """
        self._watch.abort()

    def end_idle(self) -> None:
        """End the run where a rank does nothing for 10 s longer than a step takes.

        By default a warning names such a rank, and others wait for it until their collective times
        out. Someone who begins the run anew has more of an early end.
        """
        self._watch.ends_idle = True

    @property
    def aborted(self) -> bool:
        """Whether `abort` has ended the run, or is about to."""
        return self._watch.aborted

    def wait_ended(self, timeout: float | None = None) -> bool:
        """Wait until every rank is back or gone, which may be after the error was raised."""
        return self._ended.wait(timeout)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every callback has seen every sample."""
        self._log.drain(timeout)

    def __repr__(self) -> str:
        state = "running" if not self.done else "failed" if self._error else "done"
        return (
            f"<ClusterRun of {self.name}: {state} on {counted(len(self._engines), 'rank')}, "
            f"{self.elapsed:.1f} s, {counted(self.sample_count, 'sample')}>"
        )

    # What comes from the engines, on the link's thread.

    def received(self, rank: int, batch: list[bytes]) -> None:
        """Samples of one rank have come."""
        self._log.receive(rank, batch)
        self._watch.standstill.reported(rank)

    def printed(self, rank: int, text: str) -> None:
        """A rank has printed: show it, but not the noise of connections that an abort breaks."""
        if self._watch.calls_back:
            return
        for line in text.splitlines():
            print(f"[rank {rank}] {line}", file=sys.stdout)

    def returned(self, rank: int, result: Any) -> None:
        """A rank's task is over."""
        if isinstance(result, RankOutcome):
            self._watch.report(rank, result)
        elif getattr(result, "ename", None) == "EngineError":
            self.lost(rank)
        else:
            error = ClusterError(describe_remote(self._engines[rank].engine_id, result))
            error.rank = rank
            self._watch.report(rank, error)

    def died(self, rank: int, signal: str | None, status: int | None = None) -> None:
        """The process of a rank is gone."""
        self._watch.died(rank, signal, status)

    def lost(self, rank: int) -> None:
        """The controller has given a rank up."""
        self._watch.lost(rank)

    def give_up(self, reason: str) -> None:
        """No rank can be heard of any more."""
        self._watch.give_up(reason)

    def engine_id(self, rank: int) -> int:
        """The engine that plays a rank in this run."""
        return self._engines[rank].engine_id

    def rank_of(self, engine_id: int) -> int | None:
        """The rank an engine plays in this run."""
        for rank, engine in self._engines.items():
            if engine.engine_id == engine_id:
                return rank
        return None

    def world_intact(self) -> bool:
        """Whether every rank that took part is still in its world."""
        return not self._watch.missing and all(
            isinstance(report, RankOutcome) and report.world_intact
            for report in self._watch.known().values()
        )

    # The supervising thread.

    def _supervise(self) -> None:
        watch = self._watch
        watch.await_trouble()
        if watch.missing:
            watch.call_back()
            self._await_samples(LATE_SAMPLES_SECONDS)
            self._settle()
            watch.end()
        else:
            self._await_samples(LAST_SAMPLES_SECONDS)
            self._settle()
        self._ended.set()
        watch.release()
        self._on_end()
        del self._on_end  # a run that is kept does not keep its cluster

    def _await_samples(self, timeout: float) -> None:
        reports = self._watch.known().items()
        sent = {rank: told.emitted for rank, told in reports if isinstance(told, RankOutcome)}
        self._log.await_counts(sent, timeout)

    def _settle(self) -> None:
        self._stopped = time.monotonic()
        self._error = self._find_error(self._watch.known())
        self._log.close()
        self._finished.set()

    def _find_error(self, reports: dict[int, RankReport]) -> BaseException | None:
        error = verdict(reports)
        back = {rank: told for rank, told in reports.items() if isinstance(told, RankOutcome)}
        succeeded = len(back) == len(self._engines) and not any(
            told.failure for told in back.values()
        )
        if self.aborted and (error is not None or not succeeded):
            return RunAborted(f"the run was aborted after {self.elapsed:.1f} s")
        if error is not None:
            return error
        try:
            values = [back[rank].value for rank in self._engines]
            self._results = [None if value is None else pickle.loads(value) for value in values]
        except Exception as problem:
            return ClusterError(f"a result cannot be read here: {problem}")
        return None
