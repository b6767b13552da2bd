"""The world of a cluster: over which engines it stands, and how it is formed again."""

from __future__ import annotations

import functools
import math
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mimokit.cluster.backend import choose_backend
from mimokit.cluster.errors import ClusterError, EngineInUse
from mimokit.cluster.pool import Engine
from mimokit.cluster.process import StoppedProcesses, pid_here
from mimokit.cluster.remote import EnginePool
from mimokit.cluster.worker.task import Describe, InWorld, LeaveWorld, OpenStore
from mimokit.cluster.world import EngineFacts, World, lay_out, places_on_hosts
from mimokit.units import counted, span_text

SHORT_TASK_SECONDS = 60.0
FIRST_ANSWER_SECONDS = (10.0, 20.0, 60.0)
PAUSE_SECONDS = 0.1
KEY_BYTES = 32
SURE_SECONDS = 0.1
"""How long after a run no other client can have formed a world: calls in a loop need not ask."""


def in_use(slots: Sequence[int]) -> str:
    """The beginning of a sentence on engines that are in use."""
    number = "engines {} are" if len(slots) > 1 else "engine {} is"
    return number.format(span_text(slots)) + " in use"


class Formation:
    """Forms worlds over engines of a pool, one at a time, and replaces engines that have died.

    Attributes:
        world: the one that is formed, None before the first.
        members: the slots whose engines may be in a world.
    """

    def __init__(
        self, pool: EnginePool, timeout: float, places: tuple[int, ...] | None = None
    ) -> None:
        """Take the engines.

        Args:
            timeout: of collectives, in seconds.
            places: the number of each engine among those of its host; by default each world
                counts its own.
        """
        self.world: World | None = None
        self.members: set[int] = set()
        self.lent: set[int] = set()
        self._pool = pool
        self._timeout = timeout
        self._places = places
        self._facts: dict[int, EngineFacts] = {}
        self._pids: dict[int, int | None] = {}
        self._hosts: dict[int, str] = {}

    def ensure(self, world_size: int | None, idle: float = math.inf) -> World:
        """Return a world of a size that stands; of any size for None.

        Args:
            idle: seconds since the last run in the world has ended.

        Raises:
            ClusterError: it cannot be formed.
        """
        self.replace_dead()
        world = self.world
        if world is None or (world_size is not None and world_size != world.size):
            return self.form(self.slots(world_size, None))
        return world if self._stands(world, idle) else self.form(world.slots)

    def slots(self, world_size: int | None, ranks: Sequence[int] | None) -> tuple[int, ...]:
        """Return the slots of a world of a size, or those that are asked for.

        Raises:
            ClusterError: this cluster does not have them.
        """
        there = len(self._pool.engines)
        slots = tuple(ranks) if ranks is not None else tuple(range(world_size or there))
        if world_size is not None and not 1 <= world_size <= there:
            raise ClusterError(
                f"a world of {world_size} cannot be formed: this cluster has "
                f"{counted(there, 'engine')}"
            )
        if not slots or len(set(slots)) != len(slots) or not set(slots) <= set(range(there)):
            raise ClusterError(
                f"a world cannot be formed over the engines {list(slots)}: "
                f"they must be different ones of 0 to {there - 1}"
            )
        return slots

    def form(self, slots: tuple[int, ...]) -> World:
        """Form a new world.

        Raises:
            ClusterError: an engine is lent to a part, is used by another client, or does not
                answer.
        """
        self.check_free(slots)
        self.replace_dead()
        facts = self.describe(slots)
        places = self._places_of(slots, facts)
        backend = choose_backend(facts, places)
        engines = self._pool.engines
        first = engines[slots[0]].engine_id
        self._call([engines[slot].engine_id for slot in self.members - set(slots)], LeaveWorld())
        same_host = len({fact.host for fact in facts}) == 1
        store = OpenStore("127.0.0.1" if same_host else facts[0].address, self._timeout)
        (port,) = self._call([first], store)
        key = secrets.token_bytes(KEY_BYTES)
        specs = lay_out(facts, places, port, self._timeout, key, backend)
        self.world = World(specs[0].name, slots, specs)
        self.members = set(slots)
        return self.world

    def check_free(self, slots: Sequence[int]) -> None:
        """Raise ClusterError if slots are lent to a part."""
        if lent := sorted(self.lent.intersection(slots)):
            raise ClusterError(
                f"{in_use(lent)} by a part of this cluster: close that part, or take other engines"
            )

    def break_world(self) -> None:
        """Have the next run form the world again."""
        if self.world is not None:
            self.world = World("", self.world.slots, ())

    def lend(self, part: Formation, slots: tuple[int, ...]) -> None:
        """Leave some slots to the formation of a part."""
        if self.world is not None and set(self.world.slots).intersection(slots):
            self.break_world()
        part.members.update(place for place, slot in enumerate(slots) if slot in self.members)
        self.members.difference_update(slots)
        self.lent.update(slots)

    def take_back(self, part: Formation, slots: tuple[int, ...]) -> None:
        """Have the slots of a part again; their engines may still be in its world."""
        self.members.update(slots[place] for place in part.members)
        self.lent.difference_update(slots)

    def describe(self, slots: Sequence[int]) -> tuple[EngineFacts, ...]:
        """Ask engines what they are, again where they stay silent; replaces those that die.

        An engine is known to the controller a moment before its control channel is connected; on
        a busy machine the first question can fall into that gap and is lost. Engines are asked
        again before each world, so that what follows never waits behind another client's run.

        Raises:
            ClusterError: one never answers.
        """
        for patience in FIRST_ANSWER_SECONDS:
            ids = [self._pool.engines[slot].engine_id for slot in slots]
            try:
                answers = self._call(ids, Describe(), patience)
            except EngineInUse:
                raise
            except ClusterError as error:
                problem = error
                self.replace_dead()
            else:
                self._remember(slots, ids, answers)
                return tuple(answers)
        raise problem

    def places(self) -> tuple[int, ...]:
        """Return the number of each engine among those of its host.

        Raises:
            ClusterError: an engine does not answer.
        """
        if self._places is not None:
            return self._places
        return places_on_hosts(self.hosts())

    def hosts(self) -> tuple[str, ...]:
        """Return the host of each engine.

        Raises:
            ClusterError: an engine does not answer.
        """
        every = range(len(self._pool.engines))
        unknown = [slot for slot in every if slot not in self._hosts]
        if unknown:
            self.replace_dead()
            self.describe(unknown)
        return tuple(self._hosts[slot] for slot in every)

    def engine(self, slot: int) -> Engine:
        """Return the engine in a slot, with its process if that is here, else with its host."""
        engine, host = self._pool.engines[slot], self._hosts.get(slot)
        if host not in (None, socket.gethostname()):
            return replace(engine, host=host)
        return replace(engine, pid=self._pid_here(engine))

    def _pid_here(self, engine: Engine) -> int | None:
        return engine.pid if engine.pid is not None else self._pids.get(engine.engine_id)

    def replace_dead(self) -> None:
        """Replace engines that have died or stay stopped.

        Raises:
            ClusterError: they cannot be replaced, or the controller is gone.
        """
        self._pool.check()
        kept = [slot for slot in range(len(self._pool.engines)) if slot not in self.lent]
        self._give_up_frozen(kept)
        dead = [slot for slot in kept if not self._pool.alive(slot)]
        if not dead:
            return
        if self.world is not None and set(dead) & set(self.world.slots):
            self.break_world()
        self.members -= set(dead)
        for slot in dead:
            self._hosts.pop(slot, None)
        self._pool.replace(dead)

    def _give_up_frozen(self, slots: list[int]) -> None:
        watch = StoppedProcesses()
        while stopped := self._stopped(slots, watch):
            for engine in stopped:
                if watch.too_long(self._pid_here(engine)):
                    self._pool.kill(engine)
                    warnings.warn(
                        f"engine {engine.slot} (process {self._pid_here(engine)}) was stopped by a "
                        f"signal, did not go on and was killed; another takes its place",
                        RuntimeWarning,
                        stacklevel=2,
                    )
            time.sleep(PAUSE_SECONDS)

    def _stopped(self, slots: list[int], watch: StoppedProcesses) -> list[Engine]:
        engines = self._pool.engines
        return [
            engines[slot]
            for slot in slots
            if self._pool.alive(slot) and watch.seconds(self._pid_here(engines[slot])) is not None
        ]

    def _stands(self, world: World, idle: float) -> bool:
        if not world.name or idle < SURE_SECONDS:
            return bool(world.name)
        ids = [self._pool.engines[slot].engine_id for slot in world.slots]
        if self._pool.link.has_sent_tasks(ids):
            # The answers would wait for cells, for example, that run on the engines.
            return True
        try:
            return all(self._call(ids, InWorld(world.name)))
        except EngineInUse:
            raise
        except ClusterError:  # one has died just now; to form the world replaces it
            return False

    def _places_of(self, slots: tuple[int, ...], facts: tuple[EngineFacts, ...]) -> tuple[int, ...]:
        if self._places is not None:
            return tuple(self._places[slot] for slot in slots)
        return places_on_hosts([fact.host for fact in facts])

    def _remember(self, slots: Sequence[int], ids: list[int], answers: list[EngineFacts]) -> None:
        host = socket.gethostname()
        for slot, engine_id, facts in zip(slots, ids, answers, strict=True):
            self._hosts[slot] = facts.host
            if self._facts.get(engine_id) != facts:
                self._facts[engine_id] = facts
                self._pids[engine_id] = pid_here(facts, host)

    def _call(
        self, ids: list[int], task: Callable[[], Any], timeout: float = SHORT_TASK_SECONDS
    ) -> list[Any]:
        look = functools.partial(self._look, StoppedProcesses())
        return self._pool.link.call(ids, task, timeout, look)

    def _look(self, watch: StoppedProcesses, engine_id: int) -> None:
        self._pool.check()
        for engine in self._pool.engines:
            if engine.engine_id == engine_id and watch.too_long(self._pid_here(engine)):
                self._pool.kill(engine)
                raise ClusterError(
                    f"engine {engine.slot} (process {self._pid_here(engine)}) was stopped by a "
                    f"signal, did not go on and was killed"
                )
