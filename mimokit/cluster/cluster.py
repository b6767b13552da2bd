"""`EngineCluster`: engines that form a torch.distributed world and run functions on its ranks."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from mimokit.cluster.calls import (
    cell_sources,
    check_arguments,
    checked_ranks,
    join_only,
    may_fork,
    packed,
)
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.local.pool import LocalPool
from mimokit.cluster.pool import DeathListener, Engine, EnginePool, Progress, close_quietly
from mimokit.cluster.remote import ConnectedPool
from mimokit.cluster.run import ClusterRun, RankEvents
from mimokit.cluster.sample_log import Sample
from mimokit.cluster.worker.task import Describe, LeaveWorld, OpenStore, RankTask
from mimokit.cluster.world import EngineFacts, World, lay_out

DEFAULT_ENGINES = 8
SHORT_TASK_SECONDS = 60.0
FIRST_ANSWER_SECONDS = (10.0, 20.0, 60.0)
INTERRUPT_SECONDS = 5.0


class EngineCluster:
    """Engines on this machine or others, ready to run functions as ranks of one world.

    Args:
        n: how many engines; by default 8 local ones, or all of a running cluster.
        profile: the ipyparallel profile of a running cluster to connect to.
        cluster_file: the cluster or client connection file of a running cluster.
        launch: "fork" forks local engines from one process that has imported `preload`; "plain"
            starts ordinary ones; None forks where that is safe.
        preload: modules the forked engines have imported already.
        timeout: seconds a collective may wait for its peers.
        progress: whether to show the start.

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
        preload: Sequence[str] = ("mimokit.engine.preload",),
        timeout: float = 30.0,
        progress: bool = True,
    ) -> None:
        check_arguments(n, launch, timeout)
        self._timeout = timeout
        self._lock = threading.RLock()
        self._facts: dict[int, EngineFacts] = {}
        self._world: World | None = None
        self._members: set[int] = set()
        self._generation = 0
        self._joined = 0
        self._run: ClusterRun | None = None
        self._closed = False
        on_death = _weak_listener(self)
        remote = profile is not None or cluster_file is not None
        bar = Progress((n or (0 if remote else DEFAULT_ENGINES)) if progress else 0)
        try:
            self._pool: EnginePool = (
                ConnectedPool(n, profile, cluster_file, on_death, bar)
                if remote
                else LocalPool(n or DEFAULT_ENGINES, may_fork(launch), preload, on_death, bar)
            )
        finally:
            bar.close()
        atexit.register(close_quietly, weakref.ref(self))

    # What there is.

    def __len__(self) -> int:
        return len(self._pool.engines)

    @property
    def client(self) -> Any:
        """The ipyparallel client, for views and `%%px`."""
        return self._pool.link.client

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot; a slot keeps its place when its engine is replaced."""
        return self._pool.engines

    @property
    def world_size(self) -> int | None:
        """Ranks of the current world, None without a world."""
        return self._world.size if self._world is not None else None

    @property
    def current_run(self) -> ClusterRun | None:
        """The run in progress, or None."""
        return None if self._run is None or self._run.done else self._run

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process ids of the engines, None where not known."""
        return tuple(engine.pid for engine in self._pool.engines)

    def __repr__(self) -> str:
        return f"<EngineCluster of {len(self)} engines ({self._pool.description}), {self._state()}>"

    def _repr_html_(self) -> str:
        return (
            f"<b>EngineCluster</b> · {len(self)} engines ({self._pool.description}) · "
            f"{self._state()}"
        )

    def _state(self) -> str:
        if self._closed:
            return "closed"
        world = f"world of {self._world.size}" if self._world else "no world yet"
        return f"{world}, running" if self.current_run is not None else world

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
            args: its positional arguments.
            ranks: the ranks to run on; all by default. The others stay idle.
            world_size: the size of the world to run in; by default that of the world that is
                formed, or all engines.
            on_sample: called with every sample, from another thread; has seen all of them when
                this returns.
            kwargs: its keyword arguments.

        Raises:
            RankError: if a rank raised; holds that rank's traceback.
            RankDied: if the process of a rank died.
            ClusterError: if the run cannot be started.
        """
        run = self._launch(function, args, kwargs, ranks, world_size)
        if on_sample is not None:
            run.on_sample(on_sample)
        try:
            return run.result()
        except KeyboardInterrupt:
            run.abort()
            run.wait_ended(INTERRUPT_SECONDS)
            raise
        finally:
            if on_sample is not None and run.done:
                run.drain()

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        world_size: int | None = None,
        **kwargs: Any,
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
            slots = self._slots(world_size, ranks)
            self._await_idle()
            self._world = None
            self._form(slots)
            self._launch(join_only, (), {}, None, None).result()
            assert self._world is not None
            return self._world

    def close(self) -> None:
        """End the engines (or disconnect from those of others); may be called again."""
        if self._closed:
            return
        self._closed = True
        run = self._run
        if run is not None:
            run.give_up("the cluster was closed during the run")
        self._pool.close()

    def __del__(self) -> None:
        if "_pool" in self.__dict__:
            close_quietly(lambda: self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        call = packed(function, args, kwargs)
        name = getattr(function, "__qualname__", type(function).__qualname__)
        with self._lock:
            self._await_idle()
            world = self._ensure_world(world_size)
            chosen = checked_ranks(ranks, world.size)
            if len(chosen) < world.size and self._joined != world.generation:
                # Joining takes every rank, also those that stay idle afterwards.
                self._launch(join_only, (), {}, None, None).result()
                self._await_idle()
            engines = self._pool.engines
            run = ClusterRun(self, name, {rank: engines[world.slots[rank]] for rank in chosen})
            self._run = run
            try:
                self._start(run, world, call)
            except BaseException:
                run.abort()
                raise
            finally:
                run.watch()
            return run

    def _start(self, run: ClusterRun, world: World, call: bytes) -> None:
        sources = cell_sources()
        for rank in run.ranks:
            task = RankTask(run.run_id, world.specs[rank], call, sources)
            try:
                self._pool.link.start(run.engine_id(rank), task, RankEvents(run, rank))
            except ClusterError:
                run.died(rank, None)

    def _await_idle(self) -> None:
        if self._closed:
            raise ClusterError("this cluster is closed")
        if self._run is None:
            return
        if not self._run.done:
            raise ClusterError(
                f"a run of {self._run.name} has been in progress for {self._run.elapsed:.0f} s: "
                f"wait for its result() or end it with stop() or abort()"
            )
        self._run.wait_ended()
        if self._world is None:
            return
        if not self._run.world_intact():
            self._world = self._broken(self._world)
        elif len(self._run.ranks) == self._world.size:
            self._joined = self._world.generation

    def _broken(self, world: World) -> World:
        return World(-1, world.slots, ())

    def _ensure_world(self, world_size: int | None) -> World:
        self._replace_dead()
        world = self._world
        if world is None or (world_size is not None and world_size != world.size):
            return self._form(self._slots(world_size, None))
        return world if world.generation >= 0 else self._form(world.slots)

    def _slots(self, world_size: int | None, ranks: Sequence[int] | None) -> tuple[int, ...]:
        slots = tuple(ranks) if ranks is not None else tuple(range(world_size or len(self)))
        if world_size is not None and not 1 <= world_size <= len(self):
            raise ClusterError(
                f"a world of {world_size} cannot be formed: this cluster has {len(self)} engines"
            )
        if not slots or len(set(slots)) != len(slots) or not set(slots) <= set(range(len(self))):
            raise ClusterError(
                f"a world cannot be formed over the engines {list(slots)}: "
                f"they must be different ones of 0 to {len(self) - 1}"
            )
        return slots

    def _form(self, slots: tuple[int, ...]) -> World:
        self._replace_dead()
        engines = self._pool.engines
        facts = self._describe([engines[slot] for slot in slots])
        link, first = self._pool.link, engines[slots[0]]
        leaving = [engines[slot].engine_id for slot in self._members - set(slots)]
        link.call(leaving, LeaveWorld(), SHORT_TASK_SECONDS)
        same_host = len({fact.host for fact in facts}) == 1
        store = OpenStore("127.0.0.1" if same_host else facts[0].address, self._timeout)
        (port,) = link.call([first.engine_id], store, SHORT_TASK_SECONDS)
        self._generation += 1
        specs = lay_out(facts, self._generation, port, self._timeout)
        self._world = World(self._generation, slots, specs)
        self._members = set(slots)
        return self._world

    def _describe(self, engines: list[Engine]) -> tuple[EngineFacts, ...]:
        unknown = [engine.engine_id for engine in engines if engine.engine_id not in self._facts]
        answers = self._first_answers(unknown)
        self._facts.update(zip(unknown, answers, strict=True))
        return tuple(self._facts[engine.engine_id] for engine in engines)

    def _first_answers(self, engines: list[int]) -> list[EngineFacts]:
        """Ask engines what they are, again where they stay silent.

        An engine is known to the controller a moment before its control channel is connected; on
        a busy machine the first question can fall into that gap and is lost.

        Raises:
            ClusterError: if one never answers, or the process that they come from has died.
        """
        for patience in FIRST_ANSWER_SECONDS[:-1]:
            try:
                return self._pool.link.call(engines, Describe(), patience)
            except ClusterError:
                self._replace_dead()
        return self._pool.link.call(engines, Describe(), FIRST_ANSWER_SECONDS[-1])

    def _replace_dead(self) -> None:
        dead = [slot for slot in range(len(self)) if not self._pool.alive(slot)]
        if dead:
            if self._world is not None and set(dead) & set(self._world.slots):
                self._world = self._broken(self._world)
            self._members -= set(dead)
            self._pool.replace(dead)

    def hear_of_death(self, engine_id: int, signal: str | None) -> None:
        """The process of an engine is gone."""
        run = self._run
        rank = run.rank_of(engine_id) if run is not None else None
        if run is not None and rank is not None:
            run.died(rank, signal)

    # What a run needs of its cluster.

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """Send a control message to an engine."""
        with contextlib.suppress(OSError):
            self._pool.link.control(engine.engine_id, message, content)

    def kill(self, engine: Engine) -> None:
        """End an engine by force; it is replaced."""
        self._pool.kill(engine.slot)

    def ended(self, run: ClusterRun) -> None:
        """Replace dead engines once every rank of the run has returned or died."""
        with self._lock, contextlib.suppress(ClusterError):
            if not self._closed:
                self._replace_dead()


def _weak_listener(cluster: EngineCluster) -> DeathListener:
    # The pool's threads must not keep a forgotten cluster, and so its engines, alive.
    reference = weakref.ref(cluster)

    def listen(engine_id: int, signal: str | None) -> None:
        owner = reference()
        if owner is not None:
            owner.hear_of_death(engine_id, signal)

    return listen
