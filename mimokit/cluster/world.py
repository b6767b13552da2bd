"""What a rank needs to know to join a torch.distributed world, and what it reports about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorldSpec:
    """One rank's place in one world; a new generation is a new world, even of the same size."""

    generation: int
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


@dataclass(frozen=True)
class EngineFacts:
    """Where an engine sits."""

    pid: int
    host: str
    address: str
    """The address of its host as other hosts see it."""
    gpus: int


@dataclass(frozen=True)
class World:
    """The world that is formed: which slot of the cluster plays which rank."""

    generation: int
    slots: tuple[int, ...]
    specs: tuple[WorldSpec, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.slots)


def choose_backend(facts: tuple[EngineFacts, ...]) -> str:
    """`nccl` (with gloo for CPU tensors) if every rank has a separate GPU, else `gloo`."""
    hosts = [fact.host for fact in facts]
    own_gpu = all(fact.gpus >= hosts.count(fact.host) for fact in facts)
    return "cpu:gloo,cuda:nccl" if own_gpu else "gloo"


def lay_out(
    facts: tuple[EngineFacts, ...], generation: int, port: int, timeout: float
) -> tuple[WorldSpec, ...]:
    """The place of every rank, in rank order; rank 0's engine hosts the store."""
    hosts = [fact.host for fact in facts]
    same_host = len(set(hosts)) == 1
    return tuple(
        WorldSpec(
            generation=generation,
            rank=rank,
            size=len(facts),
            local_rank=hosts[:rank].count(fact.host),
            local_size=hosts.count(fact.host),
            address="127.0.0.1" if same_host else facts[0].address,
            port=port,
            backend=choose_backend(facts),
            same_host=same_host,
            timeout=timeout,
        )
        for rank, fact in enumerate(facts)
    )
