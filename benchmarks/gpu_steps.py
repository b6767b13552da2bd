"""Layers on one GPU, measured and predicted: `python -m benchmarks.gpu_steps`.

On a machine with a GPU one rank calibrates it in bf16, trains layers of the shapes of GPTs of 1, 3
and 7 billion parameters, and is compared with one process in a layout of every mode on CPU ranks.
Without a GPU a narrow shape is measured on the CPU in fp32, and a row says so.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster
from mimokit.cluster.backend import NCCL
from mimokit.config import ExperimentConfig
from mimokit.experiment import calibrate, verify
from tests.layouts import digits_config
from tests.layouts_multimodal import LANGUAGE

LAYERS = (1, 3)
"""What more layers take is that of layers alone, without embedding, logits and what is around."""
WARMUP, ROUNDS = 2, 7
STACKS = "megatron-bridge", "megatron-core"


@dataclass(frozen=True)
class Shape:
    """The layers of a language model, and the tokens of a micro-batch of one sample."""

    hidden: int
    heads: int
    feed_forward: int
    tokens: int


ON_GPU = {
    "1 billion": Shape(2048, 16, 8192, 2048),
    "3 billion": Shape(2560, 32, 10_240, 2048),
    "7 billion": Shape(4096, 32, 16_384, 2048),
}
ON_CPU = {"a narrow one": Shape(512, 8, 2048, 256)}


def layers_of(shape: Shape, layers: int, precision: str) -> ExperimentConfig:
    """Return the digits model with a language model of such layers, on one rank."""
    config = digits_config(samples_per_microbatch=1, precision=precision)
    network = config.model.get_architecture(LANGUAGE)
    network.num_layers, network.hidden_size = layers, shape.hidden
    network.num_attention_heads, network.ffn_hidden_size = shape.heads, shape.feed_forward
    network.seq_length = config.data.seq_length = shape.tokens
    return config.finalize()


@dataclass(frozen=True)
class Measured:
    """The median seconds of a step, and the most bytes that tensors on the device had."""

    seconds: float
    memory: int


def step_on_rank(config: ExperimentConfig) -> Measured:
    """Train; the device has finished at the end of each step."""
    import torch

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    seconds = []
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with prepared(RunOfRank(mimokit.plan(config), config)) as state:
        for _ in range(WARMUP + ROUNDS):
            begin = time.perf_counter()
            exhaust(training_step(state))
            _wait_for_device()
            seconds.append(time.perf_counter() - begin)
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return Measured(statistics.median(seconds[WARMUP:]), memory)


def _wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def backend_of_world() -> str:
    """Return what ranks communicate by."""
    import torch.distributed as dist

    return NCCL if "nccl" in str(dist.get_backend_config()) else "gloo"


def rows() -> Iterator[dict[str, Any]]:
    """Measure and yield the rows of the table."""
    with tempfile.TemporaryDirectory() as folder, EngineCluster(n=1, progress=False) as cluster:
        (backend,) = cluster.run(backend_of_world, world_size=1)
        has_gpu = backend == NCCL
        shapes, precision = (ON_GPU, "bf16") if has_gpu else (ON_CPU, "fp32")
        if not has_gpu:
            yield _row("no GPU is here: shapes of 1, 3 and 7 billion are not measured", 0, "GPUs")
        file = Path(folder) / "machine.json"
        calibrate(cluster, file, precision=precision)
        for name, shape in shapes.items():
            yield from _of_shape(cluster, name, shape, precision, file)
        yield _verified(cluster, "homogeneous", digits_config())
    if has_gpu:  # more engines than GPUs compute on CPUs
        one = {"data_parallel": 1}
        apart = digits_config().with_layout("heterogeneous", images=one, language_module=one)
        with EngineCluster(n=2, progress=False) as cluster:
            yield _verified(cluster, "colocated, CPU ranks", digits_config((1, 2), (2, 1)))
            yield _verified(cluster, "heterogeneous, CPU ranks", apart)


def _of_shape(
    cluster: EngineCluster, name: str, shape: Shape, precision: str, file: Path
) -> Iterator[dict[str, Any]]:
    """Yield what a layer takes, forward and backward, and the predictions over that."""
    configs = [layers_of(shape, layers, precision) for layers in LAYERS]
    measured = [each for c in configs for each in cluster.run(step_on_rank, c, world_size=1)]
    more = LAYERS[1] - LAYERS[0]
    layer = (measured[1].seconds - measured[0].seconds) / more
    name = f"{name}, {precision}"
    yield _row(f"{name}: a step of {LAYERS[1]} layers", 1e3 * measured[1].seconds, "ms")
    yield _row(f"{name}: a layer in a step", 1e3 * layer, "ms")
    for stack in STACKS:
        predicted = [mimokit.predict(c, hardware=str(file), software=stack) for c in configs]
        foretold = (predicted[1].seconds - predicted[0].seconds) / more
        yield _row(f"{name}: predicted over measured, a layer, {stack}", foretold / layer, "")
        steps = predicted[1].seconds / measured[1].seconds
        yield _row(f"{name}: the same of the step, {stack}", steps, "")
        if measured[1].memory:
            ratio = predicted[1].peak_memory / measured[1].memory
            yield _row(f"{name}: the same of its most memory, {stack}", ratio, "")


def _verified(cluster: EngineCluster, mode: str, config: ExperimentConfig) -> dict[str, Any]:
    passed = verify(cluster, config).passed
    row = _row(f"differs from one process: {mode}", float(not passed), "layouts")
    return {**row, "target": 0, "ok": passed}


def _row(name: str, measured: float, unit: str) -> dict[str, Any]:
    return {"name": name, "measured": measured, "target": None, "unit": unit, "ok": True}


if __name__ == "__main__":
    show("Layers on a GPU", rows())
