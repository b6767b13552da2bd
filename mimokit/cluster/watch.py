"""Watches the ranks of a run until all are back or gone, and says what happened to them."""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mimokit.cluster import process
from mimokit.cluster.errors import WAITED_FOR, ClusterError, RankDied, RankFrozen
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine
from mimokit.cluster.standstill import Standstill, places_text
from mimokit.cluster.symptoms import SYMPTOMS, sentence
from mimokit.cluster.verdict import Busy, RankReport, only_echoes
from mimokit.cluster.worker.session import ABORT_MESSAGE, STOP_MESSAGE
from mimokit.cluster.worker.stack import Place
from mimokit.cluster.worker.task import RankOutcome
from mimokit.units import listed

if TYPE_CHECKING:
    from mimokit.cluster.job import Job
    from mimokit.cluster.remote import EnginePool

LOOK_SECONDS = 0.25
"""How often the ranks that are waited for are looked at."""
VERDICT_SECONDS = 2.0
"""How long after an abort the ranks may take to report before the error is raised without them.

On a busy machine this and the limits of the table are longer.
"""
REPEAT_SECONDS = 0.5
"""How often an abort is repeated to ranks that are not back."""


WatchedEngines: TypeAlias = "EnginePool | Job"
"""Who knows the engines of a run."""


class RankWatch:
    """Watches the ranks of one run; `symptoms` has what it looks for.

    Attributes:
        reports: what is known of ranks that are back or gone, in order of arrival.
        standstill: since when no rank has reported.
        aborted: whether the user has ended the run, or is about to.
        ends_idle: whether a rank that does nothing ends the run; else a warning names it.
        calls_back: whether ranks were told to come back: what they print then is noise.
    """

    def __init__(
        self, pool: WatchedEngines, run_id: str, name: str, engines: dict[int, Engine]
    ) -> None:
        self._pool = pool
        self._run_id, self._name, self._engines = run_id, name, engines
        self._changed = threading.Condition()
        self._stopped = process.StoppedProcesses()
        self._kernel_kills = process.kernel_kills()
        self._away: set[int] = set()
        self.reports: dict[int, RankReport] = {}
        self.standstill = Standstill(self._idle_place)
        self.aborted = self.ends_idle = self.calls_back = False
        self._end = 0.0

    # What others tell it.

    def report(self, rank: int, report: RankReport) -> None:
        """A rank is back or gone; what is said first of it counts."""
        with self._changed:
            self.reports.setdefault(rank, report)
            self._changed.notify_all()

    def died(self, rank: int, signal: str | None, status: int | None = None) -> None:
        """The process of a rank is gone."""
        engine, cause = self._engines[rank], process.cause_of_death(signal, self._kernel_kills)
        self.report(rank, RankDied(rank, engine.pid, cause, engine.remedy, engine.host, status))

    def lost(self, rank: int) -> None:
        """The controller has given a rank up: its process has died, or its heart does not beat."""
        self._freeze(rank, sentence("lost"))

    def give_up(self, reason: str) -> None:
        """No rank can be heard of any more."""
        for rank in self.missing:
            self.report(rank, ClusterError(reason))

    def stop(self) -> None:
        """Raise the flag that the function looks at."""
        for engine in self._engines.values():
            self._pool.tell(engine, STOP_MESSAGE, {"run_id": self._run_id})

    def abort(self) -> None:
        """End the run now."""
        with self._changed:
            # After a rank's own failure an abort changes nothing: the failure is what is reported.
            self.aborted = self.aborted or not self.in_trouble
            self._changed.notify_all()

    # What is known.

    @property
    def missing(self) -> list[int]:
        """The ranks that are neither back nor gone."""
        return [rank for rank in self._engines if rank not in self.reports]

    @property
    def in_trouble(self) -> bool:
        """Whether the run is aborted or a rank has failed."""
        return self.aborted or any(
            not isinstance(report, RankOutcome) or report.failure is not None
            for report in self.known().values()
        )

    def known(self) -> dict[int, RankReport]:
        """Return what is known by now of ranks that are back or gone."""
        with self._changed:
            return dict(self.reports)

    # What it does, in the thread of the run.

    def await_trouble(self) -> None:
        """Wait until all ranks are back or one has failed; looks at those that are silent."""
        while not self._await(lambda: not self.missing or self.in_trouble, LOOK_SECONDS):
            try:
                self._pool.check()
            except ClusterError as error:
                # Engines that can be reached later must not go on with this.
                self._tell_abort(self.missing)
                self.give_up(str(error))
            for rank in self.missing:
                if self._stopped.too_long(_pid_here(self._engines[rank])):
                    self._freeze(rank, sentence("stopped"))
            self._look_for_idle()
            if self.standstill.is_total:
                self._tell(self._what("still"), self._places(self.missing))

    def call_back(self) -> None:
        """Have ranks come back after trouble; find a cause where none is known."""
        self._end = time.monotonic() + SYMPTOMS["silent"].after * slowdown()
        if not self._is_cut_off():  # then nothing that comes later is the cause
            self._call_until(time.monotonic() + VERDICT_SECONDS * slowdown())
        if only_echoes(self.known()):
            self._call_until(self._end)
            self._name_silent()

    def end(self) -> None:
        """Kill the ranks that do not come back."""
        self._call_until(self._end)
        for rank in self.missing:
            self._pool.kill(self._engines[rank])
        self._await(lambda: not self.missing, SYMPTOMS["silent"].after)

    def release(self) -> None:
        """All ranks are back or gone: let go of the pool, which a run that is kept outlives."""
        self._pool = cast(WatchedEngines, _Nobody())

    # How it does it.

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, seconds))

    def _look_for_idle(self) -> None:
        still, step = self.standstill, self.standstill.step
        if step is None:
            return
        idle = {
            rank: place
            for rank, place in still.idle(self.missing, still.silence - step).items()
            if self.ends_idle or not process.is_stopped(_pid_here(self._engines[rank]))
        }
        if not idle or (still.told and not self.ends_idle):
            return
        how = self._what("idle")
        if not self.ends_idle:
            named = listed([f"rank {rank}{_at(self._engines[rank])}" for rank in idle])
            self._tell(f"{named} {how}", idle)
            return
        still.told = True
        for rank, place in idle.items():
            if place is None:
                self._end_silent(rank)
            else:
                self._freeze(rank, f"{how}, and was killed", place.stack)

    def _what(self, symptom: str) -> str:
        return sentence(symptom, silence=self.standstill.silence, step=self.standstill.step)

    def _tell(self, how: str, at: Mapping[int, Place | None]) -> None:
        text = f"the run of {self._name} stands still: {how}; abort() ends it. It is here:\n"
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, the run goes on
            warnings.warn(text + places_text(at), RuntimeWarning, stacklevel=2)
        self.standstill.told = True

    def _end_silent(self, rank: int) -> None:
        engine = self._engines[rank]
        if process.is_stopped(_pid_here(engine)):
            self._freeze(rank, sentence("stopped"))
        elif rank not in self._away:
            self._freeze(rank, sentence("silent"), self._pool.written_stack(engine))
        else:
            self._tell_abort([rank])
            how = sentence("away")
            self.report(rank, RankFrozen(rank, engine.pid, how, WAITED_FOR, host=engine.host))

    def _freeze(self, rank: int, how: str, stack: str | None = None) -> None:
        engine = self._engines[rank]
        error = RankFrozen(rank, engine.pid, how, engine.remedy, stack, engine.host)
        self.report(rank, error)
        self._pool.kill(engine)

    def _name_silent(self) -> None:
        for rank, place in self._places(self.missing).items():
            if place is None or process.is_stopped(_pid_here(self._engines[rank])):
                self._end_silent(rank)
            else:
                self.report(rank, Busy(place.stack))
                self._pool.kill(self._engines[rank])

    def _places(self, ranks: Sequence[int]) -> dict[int, Place | None]:
        if not ranks:
            return {}
        with ThreadPoolExecutor(len(ranks)) as threads:
            return dict(zip(ranks, threads.map(self._place, ranks), strict=True))

    def _place(self, rank: int) -> Place | None:
        engine, thread = self._engines[rank], ThreadPoolExecutor(1, "mimokit-reach")
        in_reach = thread.submit(self._pool.in_reach, engine)  # meanwhile: both take long
        thread.shutdown(wait=False)
        place = self._pool.place(engine)
        if place is None and not in_reach.result():
            self._away.add(rank)
        return place

    def _idle_place(self, rank: int) -> Place | None:
        """Ask a rank where it is; code that lets no other thread run may be at work."""
        place = self._place(rank)
        if place is None and process.computes(_pid_here(self._engines[rank])):
            return Place("  it computes and does not answer\n")
        return place

    def _is_cut_off(self) -> bool:
        """Whether a rank is on a host that is out of reach, of which its peers hear late."""
        return any(
            isinstance(report, RankFrozen) and report.how == sentence("away")
            for report in self.known().values()
        )

    def _call_until(self, deadline: float) -> None:
        # Said more than once: a rank that is just connecting has nothing to break off yet.
        self.calls_back = True
        while (missing := self.missing) and (left := deadline - time.monotonic()) > 0:
            self._tell_abort(missing)
            self._await(lambda: not self.missing, min(left, REPEAT_SECONDS))

    def _tell_abort(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._pool.tell(self._engines[rank], ABORT_MESSAGE, {"run_id": self._run_id})


class _Nobody:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def _pid_here(engine: Engine) -> int | None:
    return engine.pid if engine.host is None else None


def _at(engine: Engine) -> str:
    return "" if engine.host is None else f" on host {engine.host}"
