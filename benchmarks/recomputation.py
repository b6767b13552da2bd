"""What recomputation costs in time and saves in memory, on one rank.

The three modes are built in one process and take turns, block by block, so that a machine whose
speed drifts slows all alike. Memory is what autograd keeps of a micro-batch when its backward pass
begins, without parameters: a process on a CPU returns little of what it frees to the system.
`python -m benchmarks.recomputation [ROUNDS]`.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.sizes import RECOMPUTE_NAMES
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE

ROUNDS, WARMUP, STEPS = 20, 2, 2


def wider() -> ExperimentConfig:
    """Return the digits with a language model of 6 layers, 256 wide."""
    config = digits_config()
    network = config.model.get_architecture(LANGUAGE)
    network.num_layers, network.hidden_size = 6, 256
    return config


def _with(config: ExperimentConfig, mode: str) -> ExperimentConfig:
    for module in config.model.module_parallelisms.values():
        module.recompute_granularity = None if mode == "none" else mode  # type: ignore[assignment]
    return config


def measure_on_rank(
    configs: dict[str, ExperimentConfig], rounds: int
) -> dict[str, tuple[float, int]]:
    """Return mode -> median seconds of a step, and bytes kept for its backward pass."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    with contextlib.ExitStack() as stack:
        states = {
            mode: stack.enter_context(prepared(RunOfRank(mimokit.plan(config), config)))
            for mode, config in configs.items()
        }
        seconds: dict[str, list[float]] = {mode: [] for mode in states}
        for number in range(WARMUP + rounds):
            for mode in list(states)[:: 1 if number % 2 else -1]:
                begin = time.perf_counter()
                for _ in range(STEPS):
                    exhaust(training_step(states[mode]))
                if number >= WARMUP:
                    seconds[mode].append((time.perf_counter() - begin) / STEPS)
        return {mode: (statistics.median(seconds[mode]), _kept(states[mode])) for mode in states}


def _kept(state: Any) -> int:
    """Return the bytes that autograd keeps of a micro-batch."""
    import torch

    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import training_step
    from mimokit.step_kinds import StepKind

    modules = state.model.modules().values()
    weights = {p.untyped_storage().data_ptr() for one in modules for p in one.parameters()}
    sizes: dict[int, int] = {}
    totals: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def observe(step: Any) -> None:
        if step.name == StepKind.BACKWARD and not totals:
            totals.append(sum(sizes.values()))

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        exhaust(training_step(state), observe)
    return totals[0]


def rows(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure and return the rows of the table."""
    found = []
    with EngineCluster(n=1, progress=False) as cluster:
        for name, make in (("digits", digits_config), ("wider model", wider)):
            configs = {mode: _with(make(), mode) for mode in RECOMPUTE_NAMES}
            (measured,) = cluster.run(measure_on_rank, configs, rounds, world_size=1)
            for mode, (seconds, kept) in measured.items():
                found.append(_row(f"{name}, recompute {mode}: step", 1e3 * seconds, "ms"))
                found.append(_row(f"{name}, recompute {mode}: kept", kept / 1e6, "MB"))
    return found


def _row(name: str, measured: float, unit: str) -> dict[str, Any]:
    return {"name": name, "measured": measured, "target": None, "unit": unit, "ok": True}


if __name__ == "__main__":
    show("Recomputation", rows(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
