"""The executor on shared ranks against a loop: `python -m benchmarks.shared_loop [ROUNDS]`.

The loop is written for one encoder before a language model, as the one that the executor replaced:
encoder, bridge, language model, and back. Both compute the same layout in turn within one run, with
the same stages, bridge, update and data. Time is that of a core in the thread that computes, which
waiting for other ranks is not part of.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE

RANKS, ROUNDS, TARGET = 4, 60, 0.97
LAYOUTS = {
    "one rank": ((1, 1), (1, 1)),
    "fan-in": ((1, 4), (2, 2)),
    "fan-out": ((4, 1), (2, 2)),
}
"""Name -> (tensor, data) of encoder and language model."""


def step_times(plan: Any, config: ExperimentConfig, rounds: int) -> list[tuple[float, float]]:
    """Return seconds of a core for a step by the executor and by the loop, per round."""
    import time

    import torch.distributed as dist

    from mimokit.engine.pipeline.steps import forward_backward_steps
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared

    def executed(state: Any) -> float:
        losses = exhaust(forward_backward_steps(state.iterator, state.model))
        return sum(loss.loss_sum for loss in losses)

    seconds: tuple[list[float], list[float]] = [], []
    with prepared(RunOfRank(plan, config)) as state:
        for number in range(3 + rounds):
            ways = list(zip((executed, _looped), seconds, strict=True))
            for way, own in ways if number % 2 else reversed(ways):
                dist.barrier()
                begin = time.thread_time()
                state.update.zero()
                loss = way(state)
                state.update.reduce()
                state.update.clip(state.update.norm())
                state.update.step()
                own.append(time.thread_time() - begin)
                assert loss > 0
    return list(zip(*(own[3:] for own in seconds), strict=True))


def _looped(state: Any) -> float:
    """Compute the micro-batches of a step; return the sum of their losses."""
    from contextlib import ExitStack

    modules = state.model.modules()
    count = state.model.program.schedule.num_microbatches
    total = 0.0
    with ExitStack() as accumulating:
        for module in modules.values():
            accumulating.enter_context(module.no_sync())
        for _ in range(count - 1):
            total += _microbatch(state, modules)
    return total + _microbatch(state, modules)


def _microbatch(state: Any, modules: Any) -> float:
    import torch

    from mimokit.engine.data.batch import check_tokens, to_device
    from mimokit.engine.data.check import check_keys
    from mimokit.engine.device import rank_device
    from mimokit.engine.pipeline.base_stage import StageInput
    from mimokit.engine.pipeline.loaded_batch import LoadedBatch
    from mimokit.engine.ragged import Ragged

    model = state.model
    ((edge,),) = [model.program.graph.incoming[i] for i in model.stages if i == max(model.stages)]
    encoder, language = model.stages[edge.source], model.stages[edge.destination]
    batch = next(state.iterator)
    check_keys(batch)
    check_tokens(batch, model.special_token_ids, model.tokens_per_item)
    loaded = LoadedBatch(model.plan, modules, to_device(batch, rank_device()))
    rows = loaded.rows_of_group(encoder.name, model.tokens_per_item)
    output = encoder.forward(StageInput(loaded.of_module(encoder.name)))
    left = output.tensor.detach().requires_grad_()
    crossed = model.bridges[encoder.name](left, rows)
    taken = crossed.detach().requires_grad_()
    words = loaded.of_module(language.name)
    samples = loaded.rows_of(model.language_module_name, encoder.name, rows)
    given = StageInput(words, {edge.index: Ragged(taken, samples)})
    loss, tokens = language.loss(language.forward(given), words)
    value = float(loss.detach())
    loss.backward()
    torch.autograd.backward(crossed, taken.grad)
    torch.autograd.backward(output.tensor, left.grad)
    modules[language.name].num_tokens += tokens
    return value


def rows(rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """Yield the figures of the table."""
    with EngineCluster(n=RANKS, progress=False) as cluster:
        for name, layout in LAYOUTS.items():
            config = digits_config(*layout, num_microbatches=2)
            config.model.get_architecture(LANGUAGE).num_layers = 2
            plan = mimokit.plan(config)
            pairs = cluster.run(step_times, plan, config, rounds, world_size=plan.world_size)[0]
            measured = statistics.median(loop / executor for executor, loop in pairs)
            yield {
                "name": f"{name}: steps per second of a core over those of the loop",
                "measured": measured,
                "target": f"at least {TARGET}",
                "unit": "",
                "ok": measured >= TARGET,
            }


if __name__ == "__main__":
    given = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    show("The executor on shared ranks against a loop", list(rows(given)))
