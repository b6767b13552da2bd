"""The search of a model with an adapter and a decoder, against every layout predicted alone."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.layout_search import Constraints, SearchTask, search
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import Scan
from mimokit.layout_search.finalists import layout_of
from mimokit.prediction import Layout, Workload, costs_of, layout_cost
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.step_time import load_software
from mimokit.prediction.workload import topology_of
from tests.layout_search.small import graph_model

GPUS, BATCH = 9, 12
REPLICAS: Mapping[str, tuple[int, ...]] = {
    "images": (1, 2, 3), "clips": (1,), "adapter": (1, 2, 3), "language": (1, 2), "writer": (1, 3),
}  # fmt: skip
STAGES: Mapping[str, tuple[int, ...]] = {"language": (1, 2), "adapter": (1, 2)}


def a_task(*modes: str) -> SearchTask:
    every = {
        "tensor_parallel": (1,), "context_parallel": (1,), "pipeline_parallel": (1,),
        "virtual_pipeline": (1,), "micro_batch_size": (3,), "recompute": ("none",),
        "optimizer_instances": (1,),
    }  # fmt: skip
    sizes = {
        name: {**every, "data_parallel": counts, "pipeline_parallel": STAGES.get(name, (1,))}
        for name, counts in REPLICAS.items()
    }
    return SearchTask(
        graph_model(),
        Workload(2048, BATCH),
        GPUS,
        load_hardware("h100"),
        load_software("megatron-bridge"),
        constraints=Constraints(**({"modes": modes} if modes else {}), sizes=sizes),
    )


def every_layout(task: SearchTask) -> Iterator[Layout]:
    """Yield the layouts whose replicas divide each other along the graph, and the samples."""
    choices = [itertools.product(REPLICAS[name], STAGES.get(name, (1,))) for name in REPLICAS]
    graph = topology_of(task.model)
    pairs = [(name, to) for name, fed in graph.items() for to in fed]
    for chosen in itertools.product(*choices):
        replicas = {name: data for name, (data, _) in zip(REPLICAS, chosen, strict=True)}
        samples = 3 * replicas["language"]
        whole = all(samples % data == 0 for data in replicas.values())
        # Every module hands over to those that it feeds, and reads samples of the language model's.
        of_language = [(name, "language") for name in replicas]
        both = [sorted((replicas[a], replicas[b])) for a, b in (*pairs, *of_language)]
        if not whole or any(most % least for least, most in both):
            continue
        sizes = {
            name: ParallelSizes(pipeline=stages, data=data, micro_batch=samples // data)
            for name, (data, stages) in zip(REPLICAS, chosen, strict=True)
        }
        layout = Layout("heterogeneous", sizes, "language")
        if layout.gpus <= GPUS:
            yield layout


def test_the_best_layout_is_that_of_brute_force() -> None:
    task = a_task()
    found = [task.predict(layout) for layout in every_layout(task)]
    assert len({len(set(one.layout.modules)) for one in found}) == 1
    assert len(found) > 20
    result = search(
        task.model, gpus=GPUS, hardware="h100", workload=task.workload,
        constraints=task.constraints, finalists=1000,
    )  # fmt: skip
    assert result.evaluated == result.fitting == len(found)
    best = min(found, key=lambda one: one.seconds)
    assert result.best.seconds == pytest.approx(best.seconds, rel=1e-12)
    assert {name: vars(sizes) for name, sizes in result.best.layout.modules.items()} == {
        name: vars(sizes) for name, sizes in best.layout.modules.items()
    }
    assert result.best.layout.feeds == {"images": ("adapter",), "language": ("writer",)}
    assert list(result.per_mode) == ["heterogeneous"]


def test_arrays_give_what_single_layouts_give() -> None:
    task = a_task()
    for order in (None, "zb-h1", "gpipe"):
        ordered = replace(task, workload=replace(task.workload, pipeline_order=order))
        language, others, _ = enumerate_modules(ordered)
        scan = Scan(ordered, make_tables(ordered, language, others), keep=50)
        for block in blocks(ordered, scan.tables):
            scan.see(block)
        kept = scan.kept
        for row in np.random.default_rng(0).choice(len(kept.seconds), 8):
            layout = layout_of(scan, kept, int(row))
            costs = costs_of(task.model, layout, ordered.workload, ordered.system)
            alone = layout_cost("heterogeneous", *costs, ordered.workload, ordered.system)
            assert kept.seconds[row] == pytest.approx(float(alone.seconds), rel=1e-9)
            assert kept.memory[row] == pytest.approx(float(alone.memory), rel=1e-9)


def test_shared_ranks_are_not_searched() -> None:
    task = a_task("colocated")
    with pytest.raises(ConfigError, match=r"modes are colocated; add heterogeneous\.$"):
        search(
            task.model, gpus=GPUS, hardware="h100", workload=task.workload,
            constraints=task.constraints,
        )  # fmt: skip
