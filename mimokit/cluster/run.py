"""A run in progress: its samples, its end, and the two ways to end it early."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimokit.cluster.errors import WAITED_FOR, ClusterError, RunAborted
from mimokit.cluster.frozen import LOOK_SECONDS, FrozenWatch, computes, is_stopped
from mimokit.cluster.idle import IdleWatch
from mimokit.cluster.link import describe_remote
from mimokit.cluster.out_of_memory import cause_of_death, kernel_kills
from mimokit.cluster.owner import NoOwner, RunOwner
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine
from mimokit.cluster.progress import Progress, places_text
from mimokit.cluster.run_record import CALL_FILE, RunRecord, SampleFiles
from mimokit.cluster.sample_log import Sample, SampleLog
from mimokit.cluster.verdict import Busy, Death, Frozen, RankReport, only_echoes, verdict
from mimokit.cluster.worker.session import ABORT_MESSAGE, STOP_MESSAGE
from mimokit.cluster.worker.stack import Place
from mimokit.cluster.worker.task import RankOutcome
from mimokit.units import counted, listed

VERDICT_SECONDS = 2.0
"""How long after an abort the ranks may take to report before the error is raised without them.

On a busy machine this and the next limit are longer.
"""
KILL_SECONDS = 3.0
"""How long after an abort a rank may take to come back before it is killed."""
REPEAT_SECONDS = 0.5
"""How often an abort is repeated to ranks that are not back."""
LAST_SAMPLES_SECONDS = 10.0
"""How long to wait for samples that are still under way when a rank has returned."""
STOPPED = "was stopped by a signal, did not go on and was killed"
SILENT = "did not answer and was killed"
AWAY = "cannot be reached"
LOST = "has died or cannot be reached"


class ClusterRun:
    """A function running on the ranks of a cluster; `EngineCluster.submit` returns one.

    Everything here works while the notebook is free and while a cell blocks, since background
    threads do the listening.

    Attributes:
        name: the qualified name of the function.
    """

    def __init__(
        self,
        owner: RunOwner,
        name: str,
        engines: dict[int, Engine],
        record: RunRecord | None = None,
        runs: Path | None = None,
    ) -> None:
        """Take the ranks.

        Args:
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
        self._owner = owner
        self._engines = engines
        self._changed = threading.Condition()
        self._reports: dict[int, RankReport] = {}
        self._log = SampleLog()
        self._progress = Progress()
        self._ends_idle = False
        self._away: set[int] = set()
        self._kernel_kills = kernel_kills()
        self._aborted = False
        self._aborting = False
        self._finished = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._results: list[Any] = []
        self._started = time.monotonic() - max(0.0, time.time() - self._record.started)
        self._stopped: float | None = None

    def watch(self) -> None:
        """Begin to supervise; called by the cluster when the tasks are under way."""
        threading.Thread(target=self._supervise, name="mimokit-run", daemon=True).start()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks the function runs on."""
        return tuple(self._engines)

    def _write_record(self) -> None:
        """Write what the run is; without it the run goes on, and no other client finds it."""
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

    def record_call(self, call: bytes) -> None:
        """Write the pickled function and arguments, for a client that begins the run anew."""
        with contextlib.suppress(OSError):
            if self._runs is not None:
                (self._runs / self.run_id / CALL_FILE).write_bytes(call)

    def go_on_with(self, earlier: ClusterRun) -> None:
        """Keep the record of a run that has ended with the record of this one."""
        before = (*earlier._record.earlier, earlier.run_id)
        self._record = replace(self._record, earlier=before)
        self._write_record()

    def first_call(self) -> bytes:
        """Return the pickled function and arguments of the first run that this one goes on with.

        Raises:
            ClusterError: they were not recorded.
        """
        first = (*self._record.earlier, self.run_id)[0]
        try:
            return ((self._runs or Path()) / first / CALL_FILE).read_bytes()
        except OSError as error:
            raise ClusterError(f"the call of the run was not recorded: {error}") from None

    def earlier_samples(self) -> Iterator[Sample]:
        """Yield the samples of the runs that this one goes on with."""
        for run_id in self._record.earlier:
            files, log = SampleFiles((self._runs or Path()) / run_id), SampleLog()
            while (told := files.next()) is not None:
                log.receive(*told)
            yield from log

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
        for engine in self._engines.values():
            self._owner.tell(engine, STOP_MESSAGE, {"run_id": self.run_id})

    def abort(self) -> None:
        """End the run now: ranks that wait in a collective come back within a fraction of a second.

        Returns at once; `result` then raises `RunAborted`. Ranks that are not back after 3 s, and
        longer on a busy machine, are killed and replaced.
        """
        with self._changed:
            # After a rank's own failure an abort changes nothing: the failure is what is reported.
            self._aborted = self._aborted or not self._in_trouble()
            self._changed.notify_all()

    def end_idle(self) -> None:
        """End the run where a rank does nothing for 10 s longer than a step takes.

        By default a warning names such a rank, and others wait for it until their collective times
        out. Someone who begins the run anew has more of an early end.
        """
        self._ends_idle = True

    @property
    def aborted(self) -> bool:
        """Whether `abort` has ended the run, or is about to."""
        return self._aborted

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
        self._progress.reported(rank)
        with self._changed:
            self._changed.notify_all()

    def printed(self, rank: int, text: str) -> None:
        """A rank has printed: show it, but not the noise of connections that an abort breaks."""
        if self._aborting:
            return
        for line in text.splitlines():
            print(f"[rank {rank}] {line}", file=sys.stdout)

    def returned(self, rank: int, result: Any) -> None:
        """A rank's task is over."""
        if isinstance(result, RankOutcome):
            self._report(rank, result)
        elif getattr(result, "ename", None) == "EngineError":
            self.lost(rank)
        else:
            error = ClusterError(describe_remote(self._engines[rank].engine_id, result))
            error.rank = rank
            self._report(rank, error)

    def died(self, rank: int, signal: str | None) -> None:
        """The process of a rank is gone."""
        cause = cause_of_death(signal, self._kernel_kills)
        self._report(rank, Death(self._engines[rank], cause))

    def lost(self, rank: int) -> None:
        """The controller has given a rank up: its process has died, or its heart does not beat."""
        self._freeze(rank, LOST)

    def give_up(self, reason: str) -> None:
        """No rank can be heard of any more."""
        for rank in self._missing():
            self._report(rank, ClusterError(reason))

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
        return len(self._reports) == len(self._engines) and all(
            isinstance(report, RankOutcome) and report.world_intact
            for report in self._reports.values()
        )

    def _report(self, rank: int, report: RankReport) -> None:
        with self._changed:
            self._reports.setdefault(rank, report)
            self._changed.notify_all()

    # The supervising thread.

    def _supervise(self) -> None:
        self._wait_for_trouble()
        if self._missing():
            began, patience = time.monotonic(), slowdown()
            if not self._is_cut_off():  # then nothing that comes later is the cause
                self._call_back(began + VERDICT_SECONDS * patience)
            if only_echoes(self._known()):
                self._call_back(began + KILL_SECONDS * patience)
                self._name_silent()
            self._wait_last_samples(0.3)
            self._settle()
            self._call_back(began + KILL_SECONDS * patience)
            self._kill(self._missing())
        else:
            self._wait_last_samples(LAST_SAMPLES_SECONDS)
            self._settle()
        self._ended.set()
        self._owner.ended()
        # A run that is kept does not keep its cluster.
        self._owner = NoOwner()

    def _wait_for_trouble(self) -> None:
        """Wait until all ranks are back or one has failed; looks at those that are silent."""
        watch = FrozenWatch()
        idle = IdleWatch(self._idle_place)
        while not self._wait_back_or_trouble(LOOK_SECONDS):
            try:
                self._owner.check()
            except ClusterError as error:
                # Engines that can be reached later must not go on with this.
                self._tell_abort(self._missing())
                self.give_up(str(error))
            for rank in self._missing():
                if watch.frozen(self._owner.pid_here(self._engines[rank])):
                    self._freeze(rank, STOPPED)
            if (step := self._progress.step) is not None:
                self._name_idle(idle.idle(self._missing(), self._progress.silence - step), step)
            if (how := self._progress.standstill()) is not None:
                self._tell_standstill(how, self._places(self._missing()))

    def _name_idle(self, places: Mapping[int, Place | None], step: float) -> None:
        """Tell of ranks that do nothing, or end them; stopped processes have time to go on."""
        idle = {
            rank: place
            for rank, place in places.items()
            if self._ends_idle or not is_stopped(self._owner.pid_here(self._engines[rank]))
        }
        if not idle or (self._progress.told and not self._ends_idle):
            return
        how = f"did nothing for {self._progress.silence:.0f} s, where a step takes {step:.2g} s"
        if not self._ends_idle:
            named = listed([f"rank {rank}{_at(self._engines[rank])}" for rank in idle])
            self._tell_standstill(f"{named} {how}", idle)
            return
        self._progress.told = True
        for rank, place in idle.items():
            if place is None:
                self._end_silent(rank)
            else:
                self._freeze(rank, f"{how}, and was killed", place.stack)

    def _end_silent(self, rank: int) -> None:
        """End a rank that does not answer; one on a host that is out of reach is only told to."""
        engine = self._engines[rank]
        if is_stopped(self._owner.pid_here(engine)):
            self._freeze(rank, STOPPED)
        elif rank not in self._away:
            self._freeze(rank, SILENT, self._owner.written_stack(engine))
        else:
            self._tell_abort([rank])
            self._report(rank, Frozen(replace(engine, remedy=WAITED_FOR), AWAY))

    def _tell_standstill(self, how: str, at: Mapping[int, Place | None]) -> None:
        places = places_text(at)
        told = f"the run of {self.name} stands still: {how}; abort() ends it. It is here:\n{places}"
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        self._progress.told = True

    def _wait_back_or_trouble(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._all_back() or self._in_trouble(), seconds)

    def _places(self, ranks: Sequence[int]) -> dict[int, Place | None]:
        """Ask ranks at the same time where they are."""
        if not ranks:
            return {}
        with ThreadPoolExecutor(len(ranks)) as threads:
            return dict(zip(ranks, threads.map(self._place, ranks), strict=True))

    def _place(self, rank: int) -> Place | None:
        """Ask a rank where it is; remember one that does not answer as its host is out of reach."""
        engine, thread = self._engines[rank], ThreadPoolExecutor(1, "mimokit-reach")
        in_reach = thread.submit(self._owner.in_reach, engine)  # meanwhile, since both take long
        thread.shutdown(wait=False)
        place = self._owner.place(engine)
        if place is None and not in_reach.result():
            self._away.add(rank)
        return place

    def _idle_place(self, rank: int) -> Place | None:
        """Ask a rank where it is; code that lets no other thread run may be at work."""
        place = self._place(rank)
        if place is None and computes(self._owner.pid_here(self._engines[rank])):
            return Place("  it computes and does not answer\n")
        return place

    def _freeze(self, rank: int, how: str, stack: str | None = None) -> None:
        self._report(rank, Frozen(self._engines[rank], how, stack))
        self._owner.kill(self._engines[rank])

    def _name_silent(self) -> None:
        """Tell ranks whose process does not answer from those that are only slow; kill both."""
        for rank, place in self._places(self._missing()).items():
            if place is None or is_stopped(self._owner.pid_here(self._engines[rank])):
                self._end_silent(rank)
            else:
                self._report(rank, Busy(self._engines[rank], place.stack))
                self._owner.kill(self._engines[rank])

    def _all_back(self) -> bool:
        return len(self._reports) == len(self._engines)

    def _in_trouble(self) -> bool:
        return self._aborted or any(
            not isinstance(report, RankOutcome) or report.failure is not None
            for report in self._reports.values()
        )

    def _is_cut_off(self) -> bool:
        """Whether a rank is on a host that is out of reach, of which its peers hear late."""
        return any(
            isinstance(report, Frozen) and report.how == AWAY for report in self._known().values()
        )

    def _known(self) -> dict[int, RankReport]:
        with self._changed:
            return dict(self._reports)

    def _missing(self) -> list[int]:
        return [rank for rank in self._engines if rank not in self._reports]

    def _call_back(self, deadline: float) -> None:
        # Said more than once: a rank that is just connecting has nothing to break off yet.
        self._aborting = True
        while (missing := self._missing()) and time.monotonic() < deadline:
            self._tell_abort(missing)
            self._wait_back(min(deadline, time.monotonic() + REPEAT_SECONDS))

    def _tell_abort(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._owner.tell(self._engines[rank], ABORT_MESSAGE, {"run_id": self.run_id})

    def _wait_back(self, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(self._all_back, max(0.0, deadline - time.monotonic()))

    def _kill(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._owner.kill(self._engines[rank])
        self._wait_back(time.monotonic() + KILL_SECONDS)

    def _wait_last_samples(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(self._samples_complete, timeout)

    def _samples_complete(self) -> bool:
        return all(
            self._log.count(rank) >= report.emitted
            for rank, report in self._reports.items()
            if isinstance(report, RankOutcome)
        )

    def _settle(self) -> None:
        self._stopped = time.monotonic()
        self._error = self._find_error(self._known())
        self._log.close()
        self._finished.set()

    def _find_error(self, reports: dict[int, RankReport]) -> BaseException | None:
        error = verdict(reports)
        if self._aborted and (error is not None or not self._all_succeeded(reports)):
            return RunAborted(f"the run was aborted after {self.elapsed:.1f} s")
        if error is not None:
            return error
        try:
            self._results = [self._value(reports[rank]) for rank in self._engines]
        except Exception as problem:
            return ClusterError(f"a result cannot be read here: {problem}")
        return None

    def _all_succeeded(self, reports: dict[int, RankReport]) -> bool:
        return len(reports) == len(self._engines) and all(
            isinstance(report, RankOutcome) and report.failure is None
            for report in reports.values()
        )

    def _value(self, report: RankReport) -> Any:
        assert isinstance(report, RankOutcome)
        return pickle.loads(report.value) if report.value is not None else None


def _at(engine: Engine) -> str:
    return "" if engine.host is None else f" on host {engine.host}"


class RankEvents:
    """Passes on what one rank sends during a run."""

    def __init__(self, run: ClusterRun, rank: int) -> None:
        self._run = run
        self._rank = rank

    def samples(self, batch: list[bytes]) -> None:
        """Take samples as they arrive."""
        self._run.received(self._rank, batch)

    def output(self, text: str) -> None:
        """Take what the rank printed."""
        self._run.printed(self._rank, text)

    def finished(self, result: Any) -> None:
        """Take the rank's result."""
        self._run.returned(self._rank, result)
