"""Adapters and decoders in predictions, against schedules and sums over single stages."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.architecture import EncoderBranch
from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.planning.pipeline import ORDERS
from mimokit.planning.schedule import one_forward_one_backward, plan_schedule, stage_graph
from mimokit.prediction import Layout, Workload, costs_of, deployment_modes, layout_cost, predict
from mimokit.prediction.layout import around
from mimokit.prediction.memory import micro_batches_in_flight, stage_memory, total_bytes
from mimokit.prediction.memory.stage import micro_batches_through
from mimokit.prediction.pipeline import timed_pipeline
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.task import PredictionTask, task_of
from mimokit.prediction.workload import modules_of
from tests.layout_search.small import graph_model

NAMES = ("images", "clips", "adapter", "language", "writer")
WORKLOAD = Workload(2048, 32)
COUNT = 16
"""Micro-batches of `WORKLOAD` with two samples each."""


def a_task(stages: dict[str, int], workload: Workload = WORKLOAD, **changed: Any) -> PredictionTask:
    """Return the task of a layout in which each module has some stages, on separate ranks."""
    sizes = {name: ParallelSizes(2, pipeline=stages[name], data=2) for name in NAMES}
    layout = Layout("heterogeneous", {**sizes, **changed}, "language")
    return task_of(graph_model(), layout, workload, "h100")


def held_by_stage(task: PredictionTask) -> dict[str, list[int]]:
    """Return module -> micro-batches that each of its stages holds, by the planned schedule."""
    sizes = task.layout.modules
    graph = stage_graph(graph_model().topology, {name: sizes[name].pipeline for name in NAMES})
    order = task.workload.pipeline_order
    schedule = plan_schedule(
        graph, COUNT, ORDERS.get(order, one_forward_one_backward), frozen=task.workload.frozen
    )
    return {
        name: [
            schedule.in_flight(graph.stage(name, place).index)
            for place in range(sizes[name].pipeline)
        ]
        for name in NAMES
    }


def fullest_ranks(task: PredictionTask) -> dict[str, float]:
    """Return module -> bytes of its fullest stage, each computed alone; of encoders the first."""
    held, found = held_by_stage(task), {}
    for module in modules_of(task.model):
        sizes = task.layout.modules[module.name]
        found[module.name] = max(
            float(
                total_bytes(
                    stage_memory(
                        module,
                        sizes,
                        task.workload.input_of(module).length,
                        COUNT,
                        place,
                        frozen=module.name in task.workload.frozen,
                        passes_gradient=task.workload.trains_before(module.name, task.model),
                        held_for=number,
                        storage=task.system.storage,
                    )
                )
            )
            for place, number in enumerate(held[module.name])
            if not place or not isinstance(module, EncoderBranch)
        )
    return found


stage_counts = st.fixed_dictionaries({name: st.sampled_from([1, 2, 4]) for name in NAMES})


@settings(max_examples=8, deadline=None)
@given(stage_counts, st.sampled_from([None, "gpipe", "zb-h1"]), st.booleans())
def test_memory_is_that_of_the_fullest_stage_of_the_schedule(
    stages: dict[str, int], order: Any, frozen: bool
) -> None:
    none: frozenset[str] = frozenset({"clips", "adapter"}) if frozen else frozenset()
    task = a_task(stages, replace(WORKLOAD, pipeline_order=order, frozen=none))
    fullest, found = fullest_ranks(task), predict_task(task)
    assert {name: sum(parts.values()) for name, parts in found.memory.items()} == pytest.approx(
        fullest
    )
    # The peak counts what the optimizer copies beside one micro-batch of an encoder, not all.
    assert found.peak_memory == pytest.approx(max(fullest.values()), rel=0.01)


def test_an_adapter_whose_memory_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ParallelSizes(1, data=1, micro_batch=2)
    task = a_task(dict.fromkeys(NAMES, 4), adapter=wide)
    fullest = fullest_ranks(task)
    assert max(fullest, key=lambda name: fullest[name]) == "adapter"
    assert predict_task(task).peak_memory == pytest.approx(fullest["adapter"], rel=0.01)
    whole = deployment_modes.memory_apart

    def without_adapter(language: Any, encoders: Any) -> Any:
        nothing = {"held": 0.0, "activations": 0.0}
        kept = [replace(e, **nothing) if e.name == "adapter" else e for e in encoders]
        return whole(language, kept)

    monkeypatch.setattr(deployment_modes, "memory_apart", without_adapter)
    assert predict_task(task).peak_memory < 0.9 * fullest["adapter"]


@settings(max_examples=8, deadline=None)
@given(stage_counts)
def test_the_closed_form_is_close_to_the_schedule(stages: dict[str, int]) -> None:
    task = a_task(stages)
    costs = costs_of(task.model, task.layout, task.workload, task.system)
    closed = layout_cost("heterogeneous", *costs, task.workload, task.system)
    timed = timed_pipeline(task.layout, *costs, task.workload, task.system)
    assert float(closed.seconds - closed.update) == pytest.approx(timed.makespan, rel=0.07)
    assert len(timed.schedule.graph.stages) == sum(stages.values())


def test_a_decoder_that_costs_nothing_changes_nothing() -> None:
    """And without it the prediction is that of the model without it."""
    task = a_task(dict.fromkeys(NAMES, 2))
    costs, encoders = costs_of(task.model, task.layout, task.workload, task.system)
    model = replace(task.model, decoders=(), feeds=task.model.feeds[:-1])  # type: ignore[union-attr, type-var]
    modules = {n: sizes for n, sizes in task.layout.modules.items() if n != "writer"}
    alone = replace(task, model=model, layout=Layout("heterogeneous", modules, "language"))
    expected, _ = costs_of(model, alone.layout, task.workload, task.system)
    free = replace(costs, decoders=(), topology=expected.topology)
    found = layout_cost("heterogeneous", free, encoders, task.workload, task.system)
    other = layout_cost("heterogeneous", expected, encoders, task.workload, task.system)
    assert float(found.seconds) == float(other.seconds)
    # It held micro-batches for two more stages, which are given back.
    assert float(found.memory) == pytest.approx(float(other.memory))


def test_shared_ranks_are_refused() -> None:
    sizes = dict.fromkeys(NAMES, ParallelSizes(data=2))
    layout = Layout("colocated", sizes, "language")
    with pytest.raises(ConfigError) as refused:
        predict(graph_model(), layout, WORKLOAD)
    assert [problem.module for problem in refused.value.problems] == ["adapter", "writer"]
    assert "predicted on separate ranks alone (mode heterogeneous)" in str(refused.value)


def test_paths_are_the_heaviest() -> None:
    edges = (("a", ("c",)), ("b", ("c", "d")), ("c", ("d",)), ("d", ()))
    found = around(edges, {"a": 1.0, "b": np.array([3.0, 0.5]), "c": 1.0, "d": 2.0})
    assert {name: np.broadcast_to(ahead, 2).tolist() for name, (ahead, _) in found.items()} == {
        "a": [0, 0], "b": [0, 0], "c": [3, 1], "d": [4, 2],
    }  # fmt: skip
    assert np.broadcast_to(found["a"][1], 2).tolist() == [5, 3]


def test_chunks_hold_no_more_than_is_predicted() -> None:
    sizes = {"images": ParallelSizes(pipeline=2), "writer": ParallelSizes(pipeline=3)}
    sizes["language"] = ParallelSizes(pipeline=2, virtual=2)
    topology = (("images", ("language",)), ("language", ("writer",)), ("writer", ()))
    through = {name: micro_batches_through(own, COUNT) for name, own in sizes.items()}
    ahead, behind = around(topology, through)["language"]
    assert (int(ahead), int(behind)) == (2, 3)
    assert float(micro_batches_in_flight(sizes["language"], COUNT, 0, None, ahead, behind)) == 5.5
