"""`EngineCluster`: engines that form a torch.distributed world and run functions on its ranks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Self

from mimokit.cluster import calls
from mimokit.cluster.call_file import PackedCall, in_file
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.formation import Formation, in_use
from mimokit.cluster.link import TaskEvents
from mimokit.cluster.local.pool import LocalPool
from mimokit.cluster.local.starting import StartOptions
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine, WeakListener
from mimokit.cluster.remote import ConnectedPool, EnginePool, PoolPart, checked_slots
from mimokit.cluster.run import ClusterRun
from mimokit.cluster.run_record import last_record
from mimokit.cluster.sample_log import Sample
from mimokit.cluster.worker.task import RankTask
from mimokit.cluster.world import World
from mimokit.progress import SILENT, shown
from mimokit.units import counted

DEFAULT_ENGINES = 8
INTERRUPT_SECONDS = 10.0
"""How long an aborted run may take to end on an idle machine: its ranks come back or are killed."""


class EngineCluster:
    """Engines on this machine or others, ready to run functions as ranks of one world.

    Args:
        n: how many engines; by default 8 local ones, or all of a running cluster.
        profile: the ipyparallel profile of a running cluster to connect to.
        cluster_file: the cluster or client connection file of a running cluster.
        launch: "fork" forks local engines from one process that has imported `preload`; "plain"
            starts ordinary ones; None forks where that is safe.
        preload: modules the forked engines have imported already.
        timeout: seconds a collective may wait for its peers, on hosts that are not busy; as many
            times more, up to 10, as processes share a core there when the world is formed.
        stay: whether engines on this machine, and what runs on them, outlive this process:
            `EngineCluster.connect(name)` finds them, `end()` or `mimokit clusters --end` ends them.
        name: of a cluster on this machine; by default one that no other has.

    Raises:
        ClusterError: if the cluster cannot be started or found.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        profile: str | None = None,
        cluster_file: str | Path | None = None,
        launch: Literal["fork", "plain"] | None = None,
        preload: Sequence[str] = ("mimokit.engine.preload", "mimokit.experiment.proofs_on_rank"),
        timeout: float = 30.0,
        progress: bool = True,
        stay: bool = False,
        name: str | None = None,
    ) -> None:
        calls.check_arguments(n, launch, timeout)
        self._prepare(timeout)
        listener = WeakListener(self)
        remote = profile is not None or cluster_file is not None
        if remote and (stay or name is not None):
            raise ClusterError("a running cluster has its name and stays: leave out stay and name")
        total = n or (0 if remote else DEFAULT_ENGINES)
        with shown("Starting engines", total, wanted=progress and total > 0) as bar:
            if remote:
                self._take(ConnectedPool(n, profile, cluster_file, listener, bar), timeout)
            else:
                options = StartOptions(calls.may_fork(launch), tuple(preload), timeout, name, stay)
                self._take(LocalPool.start(n or DEFAULT_ENGINES, options, listener, bar), timeout)

    def _prepare(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.RLock()
        self._joined = ""
        self._failed_idle = False
        self._run: ClusterRun | None = None
        self._parts: list[weakref.ref[EngineCluster]] = []
        self._closed = False

    @classmethod
    def connect(cls, name: str) -> EngineCluster:
        """Return a cluster that was started with `stay=True`, from another process.

        Its `last_run` is the one in progress or, if none is, the one that ended last, with all
        samples from its start.

        Raises:
            ClusterError: there is no such cluster on this host, it does not stay, or another
                process uses it.
        """
        cluster = cls.__new__(cls)
        cluster._prepare(0.0)
        pool = LocalPool.connect(name, WeakListener(cluster))
        cluster._take(pool, pool.entry.timeout)
        cluster._formation.members.update(range(len(pool.engines)))
        cluster._adopt(pool.runs)
        return cluster

    def _take(self, pool: EnginePool, timeout: float) -> None:
        self._timeout = timeout
        self._pool, self._formation = pool, Formation(pool, timeout)
        atexit.register(leave_quietly, weakref.ref(self))

    def _adopt(self, runs: Path | None) -> None:
        record = last_record(runs) if runs is not None else None
        if runs is None or record is None:
            return
        there = {engine.engine_id: engine for engine in self._pool.engines}
        engines = {
            rank: there.get(engine_id, Engine(-1, engine_id, None))
            for rank, engine_id in record.engines.items()
        }
        run = ClusterRun(self._pool, record.name, engines, self._replace_dead, record, runs)
        self._run = run
        run.read_record(runs / record.run_id)
        for rank, engine in engines.items():
            if engine.slot < 0 or not self._pool.alive(engine.slot):
                run.died(rank, None)
        run.watch()

    # What there is.

    def __len__(self) -> int:
        return len(self._pool.engines)

    @property
    def client(self) -> Any:
        """The ipyparallel client, for views and `%%px`."""
        return self._pool.link.client

    @property
    def is_local(self) -> bool:
        """Whether this process has started its engines, on this machine."""
        return isinstance(self._pool, LocalPool)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot; a slot keeps its place when its engine is replaced."""
        return self._pool.engines

    @property
    def ranks(self) -> tuple[Engine, ...]:
        """The engine of each rank of the current world; empty without a world."""
        world, engines = self._formation.world, self._pool.engines
        return () if world is None else tuple(engines[slot] for slot in world.slots)

    @property
    def world_size(self) -> int | None:
        """Ranks of the current world, None without a world."""
        return None if self._formation.world is None else self._formation.world.size

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of the engine in every slot; raises ClusterError if one does not answer."""
        return self._formation.hosts()

    @property
    def current_run(self) -> ClusterRun | None:
        """The run in progress, or None."""
        return None if self._run is None or self._run.done else self._run

    @property
    def last_run(self) -> ClusterRun | None:
        """The run in progress or the one that ended last, None before the first."""
        return self._run

    @property
    def name(self) -> str | None:
        """The name of a cluster on this machine, None of one that others have started."""
        return self._pool.entry.name if isinstance(self._pool, LocalPool) else None

    @property
    def server_pid(self) -> int | None:
        """The process that engines on this machine come from, None if others have started them."""
        return self._pool.server_pid if isinstance(self._pool, LocalPool) else None

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process ids of the engines, None where not known."""
        return tuple(engine.pid for engine in self._pool.engines)

    def __repr__(self) -> str:
        return f"<EngineCluster of {', '.join(self._states())}>"

    def _repr_html_(self) -> str:
        return " · ".join(("<b>EngineCluster</b>", *self._states()))

    def _states(self) -> tuple[str, str]:
        world = f"world of {self.world_size}" if self.world_size else "no world yet"
        state = f"{world}, running" if self.current_run is not None else world
        engines = f"{counted(len(self), 'engine')} ({self._pool.description})"
        return engines, "closed" if self._closed else state

    # What it does.

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        world_size: int | None = None,
        on_sample: Callable[[Sample], object] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a function on ranks of the world and return its results, in rank order.

        The notebook's stop button aborts the run on all ranks; the next run works.

        Args:
            function: sent by cloudpickle, so functions of a notebook or script work.
            ranks: the ranks to run on; all by default. The others stay idle.
            world_size: the size of the world to run in; by default that of the world that is
                formed, or all engines.
            on_sample: called with every sample, from another thread; has seen all of them when
                this returns.

        Raises:
            RankError: if a rank raised; holds that rank's traceback.
            RankDied: if the process of a rank died.
            ClusterError: if the run cannot be started, or the controller dies.
        """
        run, before = None, self._run
        try:
            run = self._launch(function, args, kwargs, ranks, world_size)
            if on_sample is not None:
                run.on_sample(on_sample)
            return run.result()
        except KeyboardInterrupt:
            begun = self._run  # an interrupt may come before this has a name here
            if begun is not None and begun is not before:
                begun.abort()
                begun.wait_ended(INTERRUPT_SECONDS * slowdown())
            raise
        finally:
            if on_sample is not None and run is not None and run.done:
                run.drain()

    def submit(
        self, function: Callable[..., Any], *args: Any, world_size: int | None = None, **kwargs: Any
    ) -> ClusterRun:
        """Start a function on all ranks and return at once.

        Raises:
            ClusterError: if the run cannot be started, for example since another is in progress.
        """
        return self._launch(function, args, kwargs, None, world_size)

    def form_world(
        self, world_size: int | None = None, ranks: Sequence[int] | None = None
    ) -> World:
        """Form a new world, over the first `world_size` engines or over some of them.

        Args:
            world_size: how many engines; all by default.
            ranks: the slots of the engines, in the order of the ranks they become.

        Raises:
            ClusterError: if that many engines are not there.
        """
        with self._lock:
            self._start_again()
            slots = self._formation.slots(world_size, ranks)
            self._await_idle()
            self._formation.world = None
            world = self._formation.form(slots)
            self._launch(calls.join_only, (), {}, None, None).result()
            return world

    def part(self, slots: Sequence[int]) -> EngineCluster:
        """Return a cluster over some of the engines, which runs next to other parts.

        A part has its own world, runs and failures, and replaces its own engines when they die.
        Until it is closed (`with cluster.part([0, 1]) as part:`) the whole and other parts cannot
        use its engines. Closing it ends its run and closes nothing of the whole.

        Args:
            slots: the places of the engines in this cluster, in the order of the part's.

        Raises:
            ClusterError: the cluster does not have these engines, or they are in use.
        """
        chosen = checked_slots(slots, len(self))
        with self._lock:
            self._check_free(chosen)
            numbers = self._formation.places()
            pool = PoolPart(
                self._pool, chosen, lambda: self._formation.take_back(formation, chosen)
            )
            formation = Formation(pool, self._timeout, tuple(numbers[slot] for slot in chosen))
            part = EngineCluster.__new__(EngineCluster)
            part._prepare(self._timeout)
            part._pool, part._formation = pool, formation
            self._formation.lend(formation, chosen)
            self._parts = [reference for reference in self._parts if reference() is not None]
            self._parts.append(weakref.ref(part))
            return part

    def close(self) -> None:
        """End the engines (or leave those that stay or are of others); may be called again.

        A part ends its run and gives its engines back. A run on engines that stay goes on.
        """
        if self._closed:
            return
        run = self.current_run
        if run is not None and not self.is_local:
            # Engines that go on must not go on with this.
            run.abort()
            run.wait_ended(INTERRUPT_SECONDS * slowdown())
        with self._lock if isinstance(self._pool, PoolPart) else contextlib.nullcontext():
            # A run that has ended may still be replacing engines: both clusters would do it.
            self._give_up(
                "the cluster was closed during the run"
                if self._pool.runs is None
                else f"this process has left the cluster {self.name!r}, where the run goes on"
            )
            self._pool.close()

    def end(self) -> None:
        """End the engines of this machine, also those that stay, and what runs on them."""
        if isinstance(self._pool, LocalPool) and not self._closed:
            self._give_up("the cluster was ended during the run")
            self._pool.end()
        self.close()

    def _leave(self) -> None:
        if self._pool.runs is None:
            self.close()
        else:
            self._closed = True
            self._pool.close()

    def _give_up(self, reason: str) -> None:
        self._closed = True
        if self._run is not None:
            self._run.give_up(reason)
        for part in self._open_parts():
            part._give_up(reason)

    def __del__(self) -> None:
        if "_pool" in self.__dict__:
            leave_quietly(lambda: self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How it does it.

    def _launch(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        ranks: Sequence[int] | None,
        world_size: int | None,
    ) -> ClusterRun:
        call, file = self._packed(function, args, kwargs)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        with self._lock:
            self._await_idle()
            self._start_again()
            idle = math.inf if self._run is None else self._run.idle
            world = self._formation.ensure(world_size, idle)
            chosen = calls.checked_ranks(ranks, world.size)
            if len(chosen) < world.size and self._joined != world.name:
                # Joining takes every rank, also those that stay idle afterwards.
                self._launch(calls.join_only, (), {}, None, None).result()
                self._await_idle()
            placed = {rank: self._formation.engine(world.slots[rank]) for rank in chosen}
            # To join a world is no run that anyone looks for.
            runs = None if function is calls.join_only else self._pool.runs

            def ended() -> None:
                if file is not None:
                    file.close()
                self._replace_dead()

            run = ClusterRun(self._pool, name, placed, ended, runs=runs)
            self._run = run
            try:
                self._start(run, world, call)
            except BaseException:
                run.abort()
                raise
            finally:
                run.watch()
            return run

    def _packed(self, *call: Any) -> tuple[PackedCall, IO[bytes] | None]:
        pool, pack = self._pool, functools.partial(calls.packed, call)
        # A client that leaves what stays would take the file with it.
        if isinstance(pool, LocalPool) and not pool.entry.stays:
            return in_file(pack, pool.directory) or (PackedCall(pack()), None)
        return PackedCall(pack()), None

    def _start(self, run: ClusterRun, world: World, call: PackedCall) -> None:
        sources = calls.cell_sources()
        for rank in run.ranks:
            task = RankTask(run.run_id, world.specs[rank], call, sources, run.record_folder)
            told = (run.returned, run.received, run.printed)
            events = TaskEvents(*(functools.partial(each, rank) for each in told))
            try:
                self._pool.link.start(run.engine_id(rank), task, events)
            except ClusterError:
                run.lost(rank)

    def _await_idle(self) -> None:
        if self._closed:
            raise ClusterError("this cluster is closed")
        if self._run is None:
            return
        if self._run.aborted:
            self._run.wait_ended(INTERRUPT_SECONDS * slowdown())
        if not self._run.done:
            raise ClusterError(
                f"a run of {self._run.name} has been in progress for {self._run.elapsed:.0f} s: "
                f"wait for its result() or end it with stop() or abort()"
            )
        self._run.wait_ended()
        world = self._formation.world
        if world is None:
            return
        if not self._run.world_intact():
            self._formation.break_world()
        elif len(self._run.ranks) == world.size:
            self._joined = world.name

    def _check_free(self, slots: tuple[int, ...]) -> None:
        if self._closed:
            raise ClusterError("this cluster is closed")
        self._formation.check_free(slots)
        run, world = self._run, self._formation.world
        if run is None or world is None or not set(world.slots).intersection(slots):
            return
        if not run.done and not run.aborted:
            raise ClusterError(
                f"{in_use(sorted(world.slots))} by a run of {run.name}: wait for its result() or "
                f"end it with stop() or abort()"
            )
        run.wait_ended(INTERRUPT_SECONDS * slowdown())

    def _open_parts(self) -> list[EngineCluster]:
        parts = [reference() for reference in self._parts]
        return [part for part in parts if part is not None and not part._closed]

    def hear_of_death(self, engine_id: int, signal: str | None, status: int | None = None) -> None:
        """The process of an engine is gone."""
        run = self._run
        rank = run.rank_of(engine_id) if run is not None else None
        if run is not None and rank is not None:
            run.died(rank, signal, status)
        for part in self._open_parts():
            part.hear_of_death(engine_id, signal, status)

    def hear_of_failure(self, reason: str) -> None:
        """No engine can be heard of any more."""
        self._failed_idle = self._run is None or self._run.done
        if self._run is not None:
            self._run.give_up(reason)
        for part in self._open_parts():
            part.hear_of_failure(reason)

    def _start_again(self) -> None:
        """Start engines anew whose controller or server has died while nothing ran.

        What engines kept between runs is gone, as it is with an engine that dies; a run that was in
        progress says why it ended, and leaves to its user what to do.
        """
        pool = self._pool
        if not (self._failed_idle and isinstance(pool, LocalPool)) or self._open_parts():
            return
        warnings.warn(
            f"{pool.failure}; its engines are started again", RuntimeWarning, stacklevel=4
        )
        pool.end()
        self._failed_idle, self._joined = False, ""
        self._pool = LocalPool.start(len(pool.engines), pool.options, WeakListener(self), SILENT)
        self._formation = Formation(self._pool, self._timeout)

    def _replace_dead(self) -> None:
        with self._lock, contextlib.suppress(ClusterError):
            if not self._closed:
                self._formation.replace_dead()


def leave_quietly(reference: Callable[[], EngineCluster | None]) -> None:
    """Leave the cluster that a weak reference leads to, if it is still there, whatever happens."""
    cluster = reference()
    if cluster is not None:
        with contextlib.suppress(Exception):
            cluster._leave()
