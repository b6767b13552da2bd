"""Precision, shards, overlap: `python -m benchmarks.precision_speed`.

Two replicas of the digits model and of a wider one take steps in each way. The ways take turns
within one run, so that a machine whose speed drifts slows all. Memory is that of a process that
knows one way alone: the most in a step, above what it had before the model was built.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE

RANKS, ROUNDS = 2, 9
WAYS: Mapping[str, tuple[str | None, dict[str, bool]]] = {
    "fp32": (None, {}),
    "fp32, distributed optimizer": (None, {"use_distributed_optimizer": True}),
    "fp32, layers in full shards": (None, {"use_megatron_fsdp": True}),
    "fp32, overlapped reduction": (None, {"overlap_grad_reduce": True}),
    "bf16": ("bf16", {}),
    "bf16, distributed optimizer": ("bf16", {"use_distributed_optimizer": True}),
}
"""Name -> precision, and fields of all modules' parallelism."""
MODELS = {"digits": (64, 2), "wider": (512, 6)}
"""Name -> width and layers of the language model."""


def _config(model: str, way: str) -> ExperimentConfig:
    (width, layers), (precision, fields) = MODELS[model], WAYS[way]
    config = digits_config((1, RANKS), (1, RANKS), precision=precision)
    network = config.model.get_architecture(LANGUAGE)
    network.hidden_size, network.num_layers = width, layers
    sizes = config.model.module_parallelisms
    for name, own in sizes.items():
        sizes[name] = own.model_copy(update=fields)
    return config


def step_times(laid_out: list[tuple[Any, Any]]) -> list[list[float]]:
    """Return seconds per way and round; the ways take turns."""
    import time

    import torch.distributed as dist

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    with ExitStack() as stack:
        states = [
            stack.enter_context(prepared(RunOfRank(plan, config))) for plan, config in laid_out
        ]
        seconds: list[list[float]] = [[] for _ in states]
        for _ in range(2 + ROUNDS):
            for state, own in zip(states, seconds, strict=True):
                dist.barrier()
                begin = time.perf_counter()
                exhaust(training_step(state))
                own.append(time.perf_counter() - begin)
        return [own[2:] for own in seconds]


def peak_bytes(plan: Any, config: Any) -> int:
    """Return the most private memory of a step on this rank, above that before there is a model."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.memory import memory_meter
    from mimokit.engine.training.optimizer_step import prepared, training_step

    meter = memory_meter()
    meter.start()
    before = meter.read().allocated
    with prepared(RunOfRank(plan, config)) as state:
        exhaust(training_step(state))
        meter.start()
        exhaust(training_step(state))
        return meter.read().peak - before


def rows() -> Iterator[dict[str, Any]]:
    """Yield the figures of the table."""
    for model in MODELS:
        configs = {way: _config(model, way) for way in WAYS}
        laid_out = [(mimokit.plan(config), config) for config in configs.values()]
        with EngineCluster(n=RANKS, progress=False) as cluster:
            seconds = cluster.run(step_times, laid_out, world_size=RANKS)[0]
        for (way, config), own in zip(configs.items(), seconds, strict=True):
            ratios = [there / here for there, here in zip(own, seconds[0], strict=True)]
            with EngineCluster(n=RANKS, progress=False) as cluster:
                plan = mimokit.plan(config)
                peak = max(cluster.run(peak_bytes, plan, config, world_size=RANKS))
            yield _row(f"{model}: {way}, step", 1e3 * statistics.median(own), "ms")
            yield _row(f"{model}: {way}, step over that of fp32", statistics.median(ratios), "")
            yield _row(f"{model}: {way}, most memory of a rank", peak / 2**20, "MiB")


def _row(name: str, measured: float, unit: str) -> dict[str, Any]:
    return {"name": name, "measured": measured, "target": None, "unit": unit, "ok": True}


def _as_they_come(figures: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in figures:
        print(f"{row['name']}: {row['measured']:.3g} {row['unit']}", flush=True)
        yield row


if __name__ == "__main__":
    show("Precision, shards, overlap", _as_they_come(rows()))
