"""Context parallelism at growing sequence length: `python -m benchmarks.context_parallel`.

One layer of a causal language model forward and backward, on 1, 2 and 4 ranks that share each
sequence by attention of our own, against Megatron's on one rank, which has the scores of all pairs
of tokens in memory. They take turns within one run.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks.table import show
from benchmarks.transfers import seconds_of_slowest
from mimokit.cluster import EngineCluster
from mimokit.config import ModuleArchitecture
from mimokit.planning.execution import ModuleExecution

TOKENS = (512, 1024, 2048)
CASES = {"Megatron's on 1 rank": 1, "1 rank": 1, "2 ranks": 2, "4 ranks": 4}
"""What is timed -> the ranks that share a sequence."""
BASE = next(iter(CASES))
WIDTH, HEADS, REPEATS = 256, 8, 5


def measure(tokens: int) -> dict[str, list[float]]:
    """Return case -> seconds of the slowest rank in each repetition; collective over four."""
    import torch

    from mimokit.engine.megatron import ensure_memory_buffer
    from mimokit.engine.models.rng import random_state_of, seed_modules
    from mimokit.engine.models.transformer import causal_mask

    torch.set_num_threads(1)
    ensure_memory_buffer()
    seed_modules(0, {"language": 0})
    blocks = {case: _block(context, case != BASE) for case, context in CASES.items()}
    times: dict[str, list[float]] = {case: [] for case in CASES}

    def step(case: str) -> None:
        block, context = blocks[case], CASES[case]
        if block is None:
            return
        hidden = torch.rand(tokens // context, 1, WIDTH, requires_grad=True)
        with random_state_of("language"):
            block(hidden, causal_mask(tokens, hidden.device)).sum().backward()

    for turn in range(1 + REPEATS):
        for case in CASES:
            taken = seconds_of_slowest(partial(step, case))
            if turn:
                times[case].append(taken)
    return times


def _block(context: int, own: bool) -> Any:
    """Return a layer whose sequences the first ranks of the world share; None on the others.

    Args:
        own: attention of our own also on one rank, as where samples are in a row.
    """
    import torch
    import torch.distributed as dist

    from mimokit.engine.megatron import AttnMaskType, ProcessGroupCollection, TransformerBlock
    from mimokit.engine.models.transformer import ModuleBuild, block_submodules, layer_spec

    shared, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        [[*range(context)], *([rank] for rank in range(context, 4))]
    )
    alone, _ = dist.new_subgroups_by_enumeration([[rank] for rank in range(4)])  # type: ignore[no-untyped-call]
    if dist.get_rank() >= context:
        return None
    network = ModuleArchitecture(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        seq_length=max(TOKENS),
        vocab_size=0,
    )
    execution = ModuleExecution(samples_in_row=own).resized(context=context)
    build = ModuleBuild("language", execution, network, network)
    names = ("tp", "pp", "dp", "ep", "expt_tp", "expt_dp", "tp_ep")
    groups = ProcessGroupCollection(**dict.fromkeys(names, alone), cp=shared, tp_cp=shared)
    torch.manual_seed(0)
    submodules = block_submodules(layer_spec(build, AttnMaskType.causal), build.config, groups)
    return TransformerBlock(config=build.config, spec=submodules, pg_collection=groups)


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    found = []
    with EngineCluster(n=4, progress=False) as cluster:
        for tokens in TOKENS:
            times = cluster.run(measure, tokens, world_size=4)[0]
            found += [_row(tokens, case, times[BASE], times[case]) for case in [*CASES][1:]]
    return found


def _row(tokens: int, case: str, base: list[float], own: list[float]) -> dict[str, Any]:
    ours, theirs = (statistics.median(times) * 1e3 for times in (own, base))
    return {
        "name": f"{tokens} tokens on {case}: {ours:.0f} ms, {BASE} {theirs:.0f} ms; times as fast",
        "measured": statistics.median(a / b for a, b in zip(base, own, strict=True)),
        "target": None,
        "unit": "",
        "ok": True,
    }


if __name__ == "__main__":
    show("Context parallelism", rows())
