"""A layer of experts, ours and Megatron's own: `python -m benchmarks.expert_dispatch`.

Four ranks send the same tokens to four experts and back, forward and backward, in turn within one
run: Megatron's layer with our router and experts, and with its own. Its own drops tokens by rank,
ours by sample. Each is timed with one expert on a rank, and with all experts on every rank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ModuleArchitecture, ModuleParallelismConfig
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.ranks import ModuleRanks

RANKS, SAMPLES, REPEATS = 4, 4, 25
TOKENS, WIDTH = 256, 256
CASES: dict[str, dict[str, Any]] = {"no token dropped": {}, "capacity 1": {"capacity": 1.0}}


def network(capacity: float | None = None) -> ModuleArchitecture:
    """Return the network of which a layer is timed."""
    return ModuleArchitecture(
        num_layers=1,
        hidden_size=WIDTH,
        num_attention_heads=4,
        ffn_hidden_size=2 * WIDTH,
        seq_length=TOKENS,
        vocab_size=16,
        gated_linear_unit=True,
        add_bias_linear=False,
        num_moe_experts=RANKS,
        moe_expert_capacity_factor=capacity,
    )


def measure(expert_parallel: int, capacity: float | None) -> list[tuple[float, float]]:
    """Time both layers on this rank and all others; return pairs (ours, Megatron's)."""
    import torch

    from benchmarks.transfers import seconds_of_slowest
    from mimokit.engine.megatron import get_gpt_layer_local_spec
    from mimokit.engine.models.experts import experts_spec
    from mimokit.engine.models.transformer import transformer_config
    from mimokit.engine.parallel.grids import create_module_grids, process_groups

    torch.set_num_threads(1)
    sizes = ModuleParallelismConfig(data_parallel=RANKS, expert_parallel=expert_parallel)
    groups = process_groups(*create_module_grids(ModuleRanks.of("module", sizes)), None)
    described = network(capacity)
    execution = ModuleExecution().resized(data=RANKS, expert=expert_parallel)
    megatrons = get_gpt_layer_local_spec(num_experts=RANKS).submodules.mlp
    hidden = torch.randn(TOKENS, SAMPLES, WIDTH)

    def passes(spec: Any) -> Callable[[], object]:
        torch.manual_seed(0)
        built = _built(spec, transformer_config(described, execution), groups)
        built.set_layer_number(1)
        return lambda: built(hidden.clone().requires_grad_())[0].sum().backward()

    both = passes(experts_spec(described)), passes(megatrons)
    pairs = [tuple(map(seconds_of_slowest, both)) for _ in range(REPEATS + 2)]
    return pairs[2:]  # type: ignore[return-value]


def _built(spec: Any, config: Any, groups: Any) -> Any:
    """Build a layer as Megatron does, until 0.16 from a spec and later from a partial."""
    from mimokit.engine.megatron import ModuleSpec, build_module

    if isinstance(spec, ModuleSpec):
        return build_module(spec, config=config, pg_collection=groups)
    return spec(config=config, pg_collection=groups)


def rows() -> list[dict[str, Any]]:
    """Return the figures of the table."""
    figures = []
    with EngineCluster(n=RANKS, progress=False) as cluster:
        for name, case in CASES.items():
            for parallel in (RANKS, 1):
                pairs = cluster.run(measure, parallel, case.get("capacity"), world_size=RANKS)[0]
                figures.append(_row(f"{RANKS // parallel} of {RANKS} experts, {name}", pairs))
    return figures


def _row(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "name": f"{name}: {ours * 1e3:.1f} ms, Megatron's {theirs * 1e3:.1f} ms; times as fast",
        "measured": statistics.median(b / a for a, b in pairs),
        "target": None,
        "unit": "",
        "ok": True,
    }


if __name__ == "__main__":
    show("A layer of experts", rows())
