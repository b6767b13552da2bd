"""What engines take, in one cluster of the tree that is imported."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.cold_start import proportional_megabytes
from benchmarks.transfers import measure
from mimokit.cluster import EngineCluster
from mimokit.config_files import config_from_mapping, load_experiment_config
from mimokit.experiment import train, verify
from mimokit_widgets import LiveMonitor

DIGITS = "configs/digits_colocated.yaml"
SIZES = {1: (1, 1, 1), 2: (2, 2, 1), 8: (8, 4, 2)}
"""Ranks -> replicas of the encoder, tensor parallel size and replicas of the language model."""
FEW, MANY = 5, 25
"""Steps of two runs, whose difference has no set-up in it."""

FIGURES: dict[str, dict[str, float]] = {}


def spent() -> float:
    """Return the CPU seconds of this process and all that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    used = [process.cpu_times() for process in processes]
    return sum(times.user + times.system for times in used)


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Record what a block takes."""
    before, began = spent(), time.perf_counter()
    yield
    FIGURES[what] = {"CPU s": spent() - before, "clock s": time.perf_counter() - began}


def config_of(ranks: int, steps: int) -> Any:
    """Return the digits on so many ranks."""
    content = load_experiment_config(DIGITS).to_mapping()
    encoder, tensor, replicas = SIZES[ranks]
    sizes = content["model"]["module_parallelisms"]
    sizes["images"] = {"data_parallel": encoder}
    sizes["language_module"] = {"tensor_parallel": tensor, "data_parallel": replicas}
    content["runtime"]["num_iterations"] = steps
    return config_from_mapping(content)


def run_of(cluster: EngineCluster, ranks: int, steps: int, watched: bool = False) -> None:
    """Train to the end, followed by a monitor or not."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(cluster, config_of(ranks, steps), directory=folder)
        monitor = LiveMonitor(run) if watched else None
        run.result()
        if monitor is not None:
            monitor.wait()  # else drawing its last picture falls into what is timed next


def step(cluster: EngineCluster, ranks: int) -> dict[str, float]:
    """Return what a step takes; set-up is in both runs."""
    for steps in (FEW, MANY):
        with measured(f"{steps} steps"):
            run_of(cluster, ranks, steps)
    few, many = FIGURES.pop(f"{FEW} steps"), FIGURES.pop(f"{MANY} steps")
    return {unit: (many[unit] - few[unit]) / (MANY - FEW) for unit in few}


def watching(cluster: EngineCluster) -> dict[str, float]:
    """Return the CPU seconds of the process that follows a run with a monitor and draws its end."""
    run_of(cluster, 8, FEW, watched=True)  # imports what draws
    before = time.process_time()
    run_of(cluster, 8, MANY, watched=True)
    return {"CPU s": time.process_time() - before}


def transfer(cluster: EngineCluster) -> dict[str, float]:
    """Return what the slowest rank takes to send 1 MB forward, with nothing else to do."""
    found = cluster.run(measure, "TP2 to TP4", 1, world_size=6)
    return {"clock s": max(statistics.median(t for t, _ in one[0]["forward"]) for one in found)}


def main() -> None:
    """Print the figures as JSON."""
    with measured("cold start of 8 engines"):
        cluster = EngineCluster(8, progress=False)
    with cluster:
        for which in ("first", "second"):
            with measured(f"{which} verify"):
                assert verify(cluster, DIGITS).passed
        for ranks in SIZES:
            FIGURES[f"step, {ranks} ranks"] = step(cluster, ranks)
        FIGURES["LiveMonitor, a run of 25 steps"] = watching(cluster)
        FIGURES["transfer, 1 MB, TP2 to TP4"] = transfer(cluster)
        sizes = [proportional_megabytes(pid) for pid in cluster.pids if pid is not None]
        FIGURES["memory of an engine"] = {"MB": max(sizes)}
    print(json.dumps(FIGURES))


if __name__ == "__main__":
    main()
