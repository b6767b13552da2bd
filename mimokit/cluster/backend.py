"""The backend of a world, which follows from the GPU that each rank computes on."""

from collections import Counter
from collections.abc import Sequence

from mimokit.cluster.devices import VISIBLE, gpu_number
from mimokit.cluster.errors import ClusterError
from mimokit.cluster.world import EngineFacts
from mimokit.units import counted

NCCL, GLOO = "cpu:gloo,cuda:nccl", "gloo"


def choose_backend(facts: Sequence[EngineFacts], places: Sequence[int]) -> str:
    """Return `nccl` (with gloo for CPU tensors) if every rank has a separate GPU, else `gloo`.

    A rank with GPUs keeps its tensors on one of them, which gloo neither sends nor reduces in
    buckets; so ranks either have one each, or none has any. Ranks of a host see as many GPUs as
    each other: a rank counts through those that it sees.

    Raises:
        ClusterError: ranks share a GPU, only some of them have one, or those of a host see
            different numbers of them.
    """
    devices = [_device_of(fact, place) for fact, place in zip(facts, places, strict=True)]
    without = [rank for rank, device in enumerate(devices) if device is None]
    if len(without) == len(devices):
        return GLOO
    if without:
        rank, other = without[0], next(r for r, device in enumerate(devices) if device is not None)
        raise ClusterError(
            f"rank {rank} on {facts[rank].host} sees no GPU, but rank {other} on "
            f"{facts[other].host} sees {counted(len(facts[other].gpus), 'GPU')}; give every engine "
            f"a GPU, or start all of them with {VISIBLE}= to compute on CPUs"
        )
    _check_counts(facts)
    (host, gpu), most = Counter(devices).most_common(1)[0]  # type: ignore[misc]
    if most > 1:
        raise ClusterError(
            f"{most} ranks on {host} share the GPU {gpu}, which gloo and nccl cannot do; form a "
            f"world of as many ranks as there are GPUs, or start the engines with {VISIBLE}= to "
            "compute on CPUs"
        )
    return NCCL


def _device_of(fact: EngineFacts, place: int) -> tuple[str, str] | None:
    if not fact.gpus:
        return None
    return fact.host, fact.gpus[gpu_number(place, len(fact.gpus))]


def _check_counts(facts: Sequence[EngineFacts]) -> None:
    first: dict[str, int] = {}
    for rank, fact in enumerate(facts):
        other = first.setdefault(fact.host, rank)
        if len(fact.gpus) != len(facts[other].gpus):
            raise ClusterError(
                f"rank {other} on {fact.host} sees {counted(len(facts[other].gpus), 'GPU')}, but "
                f"rank {rank} on the same host sees {len(fact.gpus)}; start all engines of a host "
                f"with the same number of GPUs in {VISIBLE}"
            )
