"""What the executor adds to the work of stages: `python -m benchmarks.pipeline_overhead`.

Four stages on four ranks hand tensors of four numbers on. Empty stages show how many actions a rank
gets through in a second; stages that sleep show how far a 1F1B step is from the simulated one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.engine.pipeline.base_stage import PipelineStage, StageInput, StageOutput
from mimokit.engine.ragged import Ragged
from mimokit.planning.pipeline import PipelinePlan
from mimokit.planning.schedule import plan_schedule, simulate, stage_graph

STAGES = 4
REPEATS = 5
EMPTY_MICROBATCHES, SLEEPING_MICROBATCHES = 64, 8
FORWARD, BACKWARD = 0.05, 0.1
MOST_ABOVE_SIMULATED = 1.05


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.backward_time = backward
        time.sleep(forward)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_time)
        return gradient, None, None


def sleep(hidden: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
    """Return a copy after `forward` seconds; its gradient takes `backward` seconds."""
    result: torch.Tensor = _Sleep.apply(hidden, forward, backward)  # type: ignore[no-untyped-call]
    return result


class Sleeping(PipelineStage):
    """Sleeps where a stage would compute."""

    def __init__(self, place: int, forward: float, backward: float) -> None:
        super().__init__("language", place == 0, place == STAGES - 1)
        self._times = forward, backward

    def forward(self, given: StageInput) -> StageOutput:
        first = Ragged(torch.ones(4, requires_grad=True))
        received = next(iter(given.received.values()), first)
        return StageOutput(sleep(received.tensor, *self._times))

    def infer(self, given: Mapping[int, Any]) -> Ragged:
        raise NotImplementedError

    def loss(self, output: StageOutput, batch: Any) -> tuple[torch.Tensor, int] | None:
        return (output.tensor.sum(), 4) if self.last else None


def plan_of(num_microbatches: int) -> PipelinePlan:
    """Plan one module of four stages; only the last reads, as it needs labels."""
    graph = stage_graph({"language": ()}, {"language": STAGES})
    schedule = plan_schedule(graph, num_microbatches, loading=[STAGES - 1])
    return PipelinePlan(
        schedule, tuple(range(n, n + 1) for n in range(STAGES)), (("language", "text"),)
    )


def run_steps(plan: PipelinePlan, forward: float, backward: float) -> tuple[int, list[float]]:
    """Run this rank's stage several times; return its actions and the time of each run."""
    import itertools

    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.engine.pipeline.executor import StageExecutor
    from mimokit.engine.pipeline.steps import before_reduction
    from mimokit.engine.steps import exhaust
    from tests.toy_pipeline import Direct, ToyModel

    rank = dist.get_rank()
    direct = Direct(plan, rank, Mailbox(torch.device("cpu")))
    model = ToyModel(plan, {rank: Sleeping(rank, forward, backward)}, direct)
    actions, times = before_reduction(model), []
    for _ in range(1 + REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        exhaust(StageExecutor(model, itertools.repeat({})).run(actions))
        dist.barrier()
        times.append(time.perf_counter() - begin)
    return len(actions), times[1:]


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    empty, sleeping = plan_of(EMPTY_MICROBATCHES), plan_of(SLEEPING_MICROBATCHES)
    with EngineCluster(n=STAGES, progress=False) as cluster:
        fast = cluster.run(run_steps, empty, 0.0, 0.0)
        slow = cluster.run(run_steps, sleeping, FORWARD, BACKWARD)
    actions = max(count for count, _ in fast)
    rate = actions / statistics.median(fast[0][1])
    simulated = simulate(sleeping.schedule, FORWARD, BACKWARD).makespan
    ratios = [seconds / simulated for seconds in slow[0][1]]
    ratio = statistics.median(ratios)
    return [
        {
            "name": f"actions of empty stages, {STAGES} ranks, each",
            "measured": rate,
            "target": None,
            "unit": "actions/s",
            "ok": True,
        },
        {
            "name": f"1F1B, {STAGES} stages that sleep, against {simulated:.3g} s simulated "
            f"({min(ratios):.3f} to {max(ratios):.3f})",
            "measured": ratio,
            "target": MOST_ABOVE_SIMULATED,
            "unit": "",
            "ok": ratio <= MOST_ABOVE_SIMULATED,
        },
    ]


if __name__ == "__main__":
    show("Pipeline executor", rows())
