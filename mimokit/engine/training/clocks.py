"""Brings the clocks of all ranks together, and says how well that is known."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device

ROUNDS = 30
REFERENCE = 0


@dataclass(frozen=True)
class ClockOffset:
    """How this rank's clock stands to that of rank 0, in seconds.

    Attributes:
        offset: to be added to a time of this rank.
        error: the true offset is within `offset - error` and `offset + error`.
    """

    offset: float
    error: float


def now() -> float:
    """Return seconds on this rank's clock; on CUDA after the work queued so far is done."""
    torch.cuda.synchronize()
    return time.perf_counter()


def align_clocks(rounds: int = ROUNDS) -> ClockOffset:
    """Ask rank 0 for the time, over and over. Collective over the world.

    Of all rounds the one that was answered soonest counts: rank 0 read its clock at some time
    between question and answer, so the middle is off by at most half of the round
    (Cristian, "Probabilistic clock synchronization", 1989).

    Args:
        rounds: questions of every rank.
    """
    rank = dist.get_rank()
    best = ClockOffset(0.0, 0.0)
    for asking in range(dist.get_world_size()):
        if asking != REFERENCE:
            if rank == REFERENCE:
                _answer(asking, rounds)
            elif rank == asking:
                best = _ask(rounds)
        dist.barrier()
    return best


def _answer(asking: int, rounds: int) -> None:
    time_here = torch.zeros(1, dtype=torch.float64, device=rank_device())
    for _ in range(rounds):
        dist.recv(time_here, asking)
        time_here[0] = now()
        dist.send(time_here, asking)


def _ask(rounds: int) -> ClockOffset:
    message = torch.zeros(1, dtype=torch.float64, device=rank_device())
    answers = []
    for _ in range(rounds):
        asked = now()
        dist.send(message, REFERENCE)
        dist.recv(message, REFERENCE)
        answered = now()
        middle = (asked + answered) / 2
        answers.append(ClockOffset(float(message) - middle, (answered - asked) / 2))
    return min(answers, key=lambda answer: answer.error)
