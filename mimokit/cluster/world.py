"""What a rank needs to know to join a torch.distributed world, and what it reports about itself."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorldSpec:
    """One rank's place in one world.

    `local_rank` is the number of its engine among those of its host.
    """

    name: str
    """Of the world; no other world of any client has it."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    backend: str
    same_host: bool
    timeout: float
    """Seconds a collective may wait for its peers."""
    key: bytes = field(repr=False)
    """Signs what the ranks of this world write into its store."""


@dataclass(frozen=True)
class EngineFacts:
    """Where an engine sits."""

    pid: int
    host: str
    address: str
    """The address of its host as other hosts see it."""
    gpus: tuple[str, ...]
    """The GPUs that it sees, by names that no other GPU of its host has."""
    began: float
    """When its process began, in seconds since the epoch."""


@dataclass(frozen=True)
class World:
    """The world that is formed: which slot of the cluster plays which rank."""

    name: str
    """Empty once the world is broken."""
    slots: tuple[int, ...]
    specs: tuple[WorldSpec, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.slots)


def places_on_hosts(hosts: Sequence[str]) -> tuple[int, ...]:
    """The number of each engine among those of its host."""
    return tuple(hosts[:number].count(host) for number, host in enumerate(hosts))


def lay_out(
    facts: tuple[EngineFacts, ...],
    places: tuple[int, ...],
    port: int,
    timeout: float,
    key: bytes,
    backend: str,
) -> tuple[WorldSpec, ...]:
    """The place of every rank, in rank order; rank 0's engine hosts the store."""
    hosts = [fact.host for fact in facts]
    same_host = len(set(hosts)) == 1
    name = uuid.uuid4().hex
    return tuple(
        WorldSpec(
            name=name,
            rank=rank,
            size=len(facts),
            local_rank=places[rank],
            local_size=hosts.count(fact.host),
            address="127.0.0.1" if same_host else facts[0].address,
            port=port,
            backend=backend,
            same_host=same_host,
            timeout=timeout,
            key=key,
        )
        for rank, fact in enumerate(facts)
    )
