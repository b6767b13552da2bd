"""The check that the tensor-parallel ranks of a module agree on its output, and when it is made."""

import math
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.digests import digest

SHARE = 0.01
"""Of the time of a loop that its checks take, at most."""


class EveryCall:
    """Every call of a bridge checks."""

    def begin_step(self) -> None:
        """Begin a step of the loop."""

    def run(self, check: Callable[[], None]) -> None:
        """Call the check."""
        check()


class NoCall(EveryCall):
    """No call checks, as a comparison of tensors names what is wrong itself."""

    def run(self, check: Callable[[], None]) -> None:
        """Leave the check out."""


class OneStepOfN(EveryCall):
    """The first two steps check, then one of N, so that checks take at most 1 % of the time.

    N follows from the time of the last checks and from that of the shortest step without them, on
    the rank on which their quotient is largest. The first step is not timed, since it warms up.

    Attributes:
        every: N; 1 until it is known.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every = 1
        self._clock = clock
        self._step, self._next = -1, 0
        self._began, self._shortest = math.nan, math.inf
        self._checking = self._agreeing = 0.0

    def begin_step(self) -> None:
        """Begin a step of the loop. Collective over the world after a timed step that checked."""
        now = self._clock()
        if self._step > 0:
            self._shortest = min(self._shortest, now - self._began - self._checking)
            if self._step == self._next:
                self.every = steps_between(self._largest_share())
                self._agreeing = self._clock() - now
        if self._step == self._next:
            self._next += self.every
        self._step += 1
        self._began, self._checking = self._clock(), 0.0

    def _largest_share(self) -> float:
        share = (self._checking + self._agreeing) / self._shortest
        of_rank = torch.tensor(share, dtype=torch.float64, device=rank_device())
        dist.all_reduce(of_rank, dist.ReduceOp.MAX)
        return float(of_rank)

    def run(self, check: Callable[[], None]) -> None:
        """Call the check in a step that is due."""
        if self._step != self._next:
            return
        begin = self._clock()
        check()
        self._checking += self._clock() - begin


def steps_between(share: float) -> int:
    """Return the steps of which one checks, where its checks take as long as `share` steps."""
    return max(1, math.ceil(share / SHARE))


class ReplicaMismatchError(RuntimeError):
    """The tensor-parallel ranks of a module have different outputs."""


class ReplicaCheck:
    """Compares what the tensor-parallel ranks of a module give to the next one.

    Attributes:
        checks: decides which calls compare; by default all do.
        comparisons: how many did, which are as many collectives of the tensor-parallel group.

    Args:
        source_tensor_group: its tensor-parallel ranks with this rank, and context-parallel ones;
            they must have the same output.
    """

    def __init__(self, source: str, source_tensor_group: dist.ProcessGroup) -> None:
        self.checks = EveryCall()
        self.comparisons = 0
        self.source, self._tensor_group = source, source_tensor_group

    @property
    def compares(self) -> bool:
        """Whether the source has tensor-parallel ranks that could differ."""
        return self._tensor_group.size() > 1

    def check_if_due(self, embeddings: torch.Tensor) -> None:
        """Check in a call that is due; see `check_replicas`."""
        self.checks.run(lambda: self.check_replicas(embeddings))

    def check_replicas(self, embeddings: torch.Tensor) -> None:
        """Reject outputs that differ between the source's tensor-parallel ranks.

        Only one copy of each replica is used, so a difference would be dropped silently and the
        gradient would be wrong.

        Raises:
            ReplicaMismatchError: on all of these ranks, with module and ranks.
        """
        if not self.compares:
            return
        self.comparisons += 1
        own = digest(embeddings)[None]
        gathered = [torch.empty_like(own) for _ in range(self._tensor_group.size())]
        dist.all_gather(gathered, own, group=self._tensor_group)
        first, *digests = torch.cat(gathered).tolist()
        ranks = dist.get_process_group_ranks(self._tensor_group)
        other = [rank for rank, value in zip(ranks[1:], digests, strict=True) if value != first]
        if other:
            raise ReplicaMismatchError(
                f"The output of module {self.source!r} differs between its tensor-parallel "
                f"ranks: rank {ranks[0]} and {_listed(other)} hold different values; every "
                "tensor-parallel rank must end with the same output."
            )


def _listed(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def check_rarely(of_rank: Iterable[ReplicaCheck], anywhere: bool | None = None) -> EveryCall:
    """Let all checks of a rank take place in one step of N; the loop says when a step begins.

    Args:
        anywhere: whether any rank of the world compares, on which all of them then agree; None: as
            many do as on this rank.
    """
    comparisons = list(of_rank)
    if not (any(check.compares for check in comparisons) if anywhere is None else anywhere):
        return EveryCall()
    rarely = OneStepOfN()
    for check in comparisons:
        check.checks = rarely
    return rarely
