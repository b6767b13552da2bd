"""Context parallelism at growing sequence length: `python -m tests.benchmarks.context_parallel`.

One layer of a causal language model forward and backward, on 1, 2 and 4 ranks that share each
sequence. On one rank Megatron's attention has the scores of all pairs of tokens in memory; on
several, a rank has its own queries and torch's kernels. Sizes take turns within one run.
"""

from __future__ import annotations

import statistics
from typing import Any

from mimokit.cluster import EngineCluster
from mimokit.config import ModuleArchitecture
from mimokit.planning.execution import ModuleExecution
from tests.benchmarks.table import show
from tests.benchmarks.transfers import seconds_of_slowest

TOKENS = (512, 1024, 2048)
CONTEXTS = (1, 2, 4)
WIDTH, HEADS, REPEATS = 256, 8, 5


def measure(tokens: int) -> dict[int, list[float]]:
    """Return ranks -> seconds of the slowest rank in each repetition; collective over four."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.megatron import ensure_memory_buffer
    from mimokit.engine.models.rng import random_state_of, seed_modules
    from mimokit.engine.models.transformer import causal_mask

    torch.set_num_threads(1)
    ensure_memory_buffer()
    seed_modules(0, {"language": 0})
    blocks = {context: _block(context) for context in CONTEXTS}
    times: dict[int, list[float]] = {context: [] for context in CONTEXTS}

    def step(context: int) -> None:
        if dist.get_rank() >= context:
            return
        hidden = torch.rand(tokens // context, 1, WIDTH, requires_grad=True)
        with random_state_of("language"):
            blocks[context](hidden, causal_mask(tokens, hidden.device)).sum().backward()

    for turn in range(1 + REPEATS):
        for context in CONTEXTS:
            taken = seconds_of_slowest(lambda context=context: step(context))  # type: ignore[misc]
            if turn:
                times[context].append(taken)
    return times


def _block(context: int) -> Any:
    """Return a layer whose sequences the first ranks of the world share; None on the others."""
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
    execution = ModuleExecution(context_parallel=context)
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
            one = statistics.median(times[1])
            for context in CONTEXTS[1:]:
                median = statistics.median(times[context])
                name = f"{tokens} tokens on {context} ranks: {median * 1e3:.0f} ms, on 1 rank"
                found.append(
                    {
                        "name": f"{name} {one * 1e3:.0f} ms; times as fast",
                        "measured": statistics.median(
                            a / b for a, b in zip(times[1], times[context], strict=True)
                        ),
                        "target": None,
                        "unit": "",
                        "ok": True,
                    }
                )
    return found


if __name__ == "__main__":
    show("Context parallelism", rows())
