"""Our executor and Megatron's multi-module 1F1B: `python -m benchmarks.megatron_1f1b`.

Four modules of one stage on four ranks hand four numbers on, in turn within one run: stages that do
nothing, and stages that sleep. Megatron's makes its token counter and buffers on "cuda" and its
groups for NCCL; here it is given the CPU and gloo. Before 0.18 it has no such schedule, and there
are no rows.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.pipeline_overhead import BACKWARD, FORWARD, STAGES, Sleeping, plan_of, sleep
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.planning.pipeline import PipelinePlan
from tests.megatron_on_gloo import HAS_COLOCATED_BRIDGE, groups_of_gloo

CASES = {"do nothing, 64 micro-batches": (64, 0.0, 0.0), "sleep, 8": (8, FORWARD, BACKWARD)}
REPEATS = 7
MODULES = [f"module{place}" for place in range(STAGES)]


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that are asked for on CUDA."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "cpu"
        return function(*args, **options)


class MegatronStage(torch.nn.Module):
    """The stage of this rank, as Megatron's schedule calls it."""

    def __init__(self, config: Any, rank: int, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.config, self.rank, self.seconds = config, rank, seconds
        self.received: Any = None

    def set_input_tensor(self, received: list[Any]) -> None:
        self.received = received[0]

    def forward(self) -> Any:
        hidden = torch.ones(1, 1, 4, requires_grad=True)
        if self.rank:
            hidden = self.received[MODULES[self.rank - 1]]
        result = sleep(hidden, *self.seconds)
        return result if self.rank == STAGES - 1 else {MODULES[self.rank]: result}


def megatrons(rank: int, microbatches: int, seconds: tuple[float, float]) -> Callable[[], object]:
    """Return a call that runs Megatron's schedule on this rank. Collective over the world."""
    from megatron.core.pipeline_parallel import multimodule_communicator, schedules
    from megatron.core.process_groups_config import MultiModuleProcessGroupCollection

    from mimokit.engine.megatron import HyperCommGrid, ProcessGroupCollection, TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=4, num_attention_heads=1, use_cpu_initialization=True,
        pipeline_dtype=torch.float32, variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the only one with variable_seq_lengths
    )  # fmt: skip
    axes = ("tp", "cp", "dp", "pp")
    with groups_of_gloo():
        grids = {
            name: HyperCommGrid([1] * 4, list(axes), rank_offset=place, backend="gloo")
            for place, name in enumerate(MODULES)
        }
        for grid in grids.values():
            for axis in axes:
                grid.create_pg([axis])
        follow = dict(zip(MODULES, [[name] for name in MODULES[1:]] + [[]], strict=True))
        communicator = multimodule_communicator.MultiModulePipelineCommunicator(
            grids, follow, config, dim_mapping={"s": 0, "b": 1, "h": 2}
        )
    own = MODULES[rank]
    groups = MultiModuleProcessGroupCollection(
        {own: ProcessGroupCollection(**{axis: grids[own].get_pg([axis]) for axis in axes})},
        language_model_module_name=own if rank == STAGES - 1 else None,
    )
    stage = MegatronStage(config, rank, seconds)

    def loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return output.sum(), {}

    def step() -> None:
        with OnCpu():
            schedules.forward_backward_pipelining_without_interleaving(
                forward_step_func=lambda data, model: (model(), loss),
                data_iterator=None, model=[stage], num_microbatches=microbatches, seq_length=1,
                micro_batch_size=1, p2p_communicator=communicator, pg_collection=groups,
            )  # fmt: skip

    return step


def measure(
    plan: PipelinePlan, microbatches: int, seconds: tuple[float, float]
) -> list[tuple[float, float]]:
    """Run both in turn; return pairs (ours, Megatron's) of seconds."""
    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.engine.pipeline.executor import StageExecutor
    from mimokit.engine.pipeline.steps import before_reduction
    from mimokit.engine.steps import exhaust
    from tests.toy_pipeline import Direct, ToyModel

    rank = dist.get_rank()
    model = ToyModel(
        plan, Sleeping(rank, *seconds), rank, Direct(plan, rank, Mailbox(torch.device("cpu")))
    )
    actions = before_reduction(model)

    def ours() -> None:
        exhaust(StageExecutor(model, itertools.repeat({})).run(actions))

    def timed(call: Callable[[], object]) -> float:
        dist.barrier()
        begin = time.perf_counter()
        call()
        dist.barrier()
        return time.perf_counter() - begin

    theirs = megatrons(rank, microbatches, seconds)
    return [(timed(ours), timed(theirs)) for _ in range(1 + REPEATS)][1:]


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    if not HAS_COLOCATED_BRIDGE:
        return []
    figures = []
    with EngineCluster(n=STAGES, progress=False) as cluster:
        for name, (microbatches, *seconds) in CASES.items():
            pairs = cluster.run(measure, plan_of(microbatches), microbatches, tuple(seconds))[0]
            ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
            figures.append(
                {
                    "name": f"stages that {name}: {ours:.3f} s, Megatron's {theirs:.3f} s; "
                    "times as fast",
                    "measured": statistics.median(second / first for first, second in pairs),
                    "target": None,
                    "unit": "",
                    "ok": True,
                }
            )
    return figures


if __name__ == "__main__":
    show("1F1B over modules", rows())
