"""GPipe and ZB-H1 in predictions: what stages hold is what their schedules hold, and their time."""

import itertools
from dataclasses import replace

import pytest

from mimokit.config.recipe import RecipeConfig
from mimokit.config.runtime import DeploymentMode, PipelineOrder
from mimokit.config.sizes import ParallelSizes
from mimokit.config_files import load_preset
from mimokit.planning.pipeline import ORDERS
from mimokit.planning.schedule import (
    interleaved,
    makespan,
    one_forward_one_backward,
    plan_schedule,
    stage_graph,
    zero_bubble,
)
from mimokit.prediction import EncoderInput, Layout, Prediction, Workload, predict
from mimokit.prediction.memory import micro_batches_in_flight
from mimokit.prediction.pipeline import timed_pipeline
from mimokit.prediction.prediction import costs_of, layout_cost, predict_task
from mimokit.prediction.step_time.pipeline import last_round
from mimokit.prediction.task import PredictionTask, task_of
from mimokit.prediction.timeline import predict_timeline, task_timeline
from tests.prediction.shipped import language_model, llava
from tests.rows import rows

ORDER_NAMES: tuple[PipelineOrder, ...] = ("1f1b", "gpipe", "zb-h1")
WORKLOAD = Workload(
    2048, 64, inputs={"images": EncoderInput(32)}, recipe=RecipeConfig(graphs="full")
)
"""Encoders that are no stage's bottleneck."""


def predicted(
    order: PipelineOrder,
    mode: DeploymentMode = "homogeneous",
    workload: Workload = WORKLOAD,
    stages: int = 4,
) -> Prediction:
    own = ParallelSizes(2, stages, data=1)
    encoder = ParallelSizes(2 if mode == "homogeneous" else 1, data=1)
    if mode == "colocated":
        encoder = ParallelSizes(4, data=2, micro_batch=1)
    layout = Layout(mode, {"images": encoder, llava().language.name: own})
    return predict(llava(), layout, replace(workload, pipeline_order=order), gpu="h100")


@rows("stages, chunks", (2, 2), (3, 4), (4, 3), (7, 2))
def test_a_last_round_of_fewer_micro_batches_takes_longer(stages: int, chunks: int) -> None:
    """The closed form is that of the schedule, to 1.2 %; of whole rounds it is exact."""
    graph = stage_graph({"language": ()}, {"language": stages}, {"language": chunks})
    sizes = ParallelSizes(pipeline=stages, virtual=chunks)
    for count in range(1, 3 * stages + 1):
        steps = plan_schedule(graph, count, interleaved)
        closed = 3 * count + (stages - 1) * 3 / chunks + last_round(1.0, 2.0, sizes, count)
        within = 1e-9 if count % stages == 0 else 0.012
        assert closed == pytest.approx(float(makespan(steps, 1 / chunks, 2 / chunks)), rel=within)


def in_stages(mode: DeploymentMode, chunks: int) -> PredictionTask:
    """Return an encoder of four stages and a language model of four."""
    own, encoder = ParallelSizes(2, 4, data=2), ParallelSizes(2, 4, virtual=chunks, data=2)
    layout = Layout(mode, {"images": encoder, llava().language.name: own})
    return task_of(llava(), layout, WORKLOAD, "h100")


def test_chunks_of_an_encoder_are_predicted_as_their_schedule_runs() -> None:
    plain, chunked = (in_stages("colocated", chunks) for chunks in (1, 2))
    costs = costs_of(plain.model, plain.layout, plain.workload, plain.system)
    closed = layout_cost("colocated", *costs, plain.workload, plain.system)
    seconds = predict_task(plain).seconds
    assert seconds == pytest.approx(float(closed.seconds), rel=0.02)
    assert 0 < seconds - predict_task(chunked).seconds < float(closed.encoder)
    for task, lanes in ((chunked, 4), (in_stages("heterogeneous", 2), 8)):
        found, timeline = predict_task(task), task_timeline(task)
        costs = costs_of(task.model, task.layout, task.workload, task.system)
        simulated = timed_pipeline(task.layout, *costs, task.workload, task.system)
        assert found.seconds - found.parts["update"] == pytest.approx(simulated.makespan)
        assert timeline is not None
        assert len(timeline.lanes) == lanes
        assert max(block.stop for block in timeline.blocks) == pytest.approx(found.seconds)
        of_encoder = [block for block in timeline.blocks if block.module == "images"]
        assert {block.chunk for block in of_encoder} == {0, 1}
        assert len(of_encoder) == 2 * 8 * 32  # passes, chunks of all stages, micro-batches


@rows(
    "order, encoders, micro_batches",
    *itertools.product(ORDER_NAMES, [{}, {"images": 1}, {"images": 2, "sound": 1}], [1, 3, 8]),
)
def test_stages_hold_what_their_schedule_holds(
    order: PipelineOrder, encoders: dict[str, int], micro_batches: int
) -> None:
    topology = dict.fromkeys(encoders, ("language",)) | {"language": ()}
    graph = stage_graph(topology, {**encoders, "language": 4})
    chosen = ORDERS.get(order, one_forward_one_backward)
    schedule = plan_schedule(graph, micro_batches, chosen)
    ahead = max(encoders.values(), default=0)
    for place in range(4):
        stage = graph.stage("language", place).index
        sizes = ParallelSizes(pipeline=4)
        held = micro_batches_in_flight(sizes, micro_batches, place, order, ahead)
        assert int(held) == schedule.in_flight(stage), (place, order)


def in_flight(prediction: Prediction, module: str) -> float:
    lines = {line.part: line for line in prediction.lines[module]}
    return lines["activations"].factors["micro-batches in flight"]


@rows(
    "mode, held",
    ("homogeneous", {"1f1b": (4, 4), "gpipe": (64, 64), "zb-h1": (4, 4)}),
    ("heterogeneous", {"1f1b": (4, 5), "gpipe": (64, 64), "zb-h1": (5, 5)}),
)
def test_memory_follows_the_order(
    mode: DeploymentMode, held: dict[PipelineOrder, tuple[int, int]]
) -> None:
    """Of the stage with the most memory, and of the encoder ahead of the pipeline."""
    name = llava().language.name
    for order in ORDER_NAMES:
        found = predicted(order, mode)
        language, encoder = held[order]
        assert in_flight(found, "images") == pytest.approx(encoder)
        if order != "1f1b":
            assert in_flight(found, name) == language
        sums = [sum(parts.values()) for parts in found.memory.values()]
        peak = sum(sums) if mode == "homogeneous" else max(sums)
        assert found.peak_memory == pytest.approx(peak, rel=0.03)


def test_a_group_of_colocated_encoders_bounds_what_gpipe_holds() -> None:
    grouped = replace(WORKLOAD, encoder_microbatches=8)
    assert in_flight(predicted("gpipe", "colocated", grouped), llava().language.name) == 8


@rows("mode", "homogeneous", "colocated", "heterogeneous")
def test_gradients_of_weights_that_come_later_fill_the_time_in_which_stages_wait(
    mode: DeploymentMode,
) -> None:
    plain, later = (
        predicted(order, mode, replace(WORKLOAD, global_batch_size=8))
        for order in ("1f1b", "zb-h1")
    )
    assert later.seconds < plain.seconds
    assert later.parts["bubble"] < 0.8 * plain.parts["bubble"]
    assert later.parts["matrix"] == plain.parts["matrix"]
    frozen = replace(WORKLOAD, global_batch_size=8, frozen=frozenset([llava().language.name]))
    plain, later = (predicted(order, mode, frozen) for order in ("1f1b", "zb-h1"))
    assert later.seconds <= plain.seconds


@rows("stages, micro_batches, share", *itertools.product([2, 4, 8], [1, 4, 16], [0.0, 0.3, 0.5]))
def test_equal_stages_are_never_slower_in_zb_h1(
    stages: int, micro_batches: int, share: float
) -> None:
    """What the closed form says of long steps is what the schedule takes."""
    graph = stage_graph({"language": ()}, {"language": stages})
    forward, backward = 1.0, 2.0
    plain, later = (
        float(
            makespan(
                plan_schedule(graph, micro_batches, order), forward, backward,
                weight_gradient=share * backward,
            )
        )
        for order in (one_forward_one_backward, zero_bubble)
    )  # fmt: skip
    assert later <= plain + 1e-9
    if micro_batches >= 2 * stages:
        waits = (stages - 1) * (forward + backward - 2 * share * backward)
        assert later == pytest.approx(micro_batches * (forward + backward) + waits)


def test_a_config_says_the_order() -> None:
    config = load_preset("llava_7b_heterogeneous")
    seconds = []
    for order in ORDER_NAMES:
        runtime = config.runtime.model_copy(update={"pipeline_order": order})
        chosen = config.model_copy(update={"runtime": runtime})
        found = predict(chosen, gpu="h100")
        timeline = predict_timeline(chosen, gpu="h100")
        assert timeline is not None
        assert max(block.stop for block in timeline.blocks) == pytest.approx(found.seconds)
        seconds.append((found.seconds, found.peak_memory))
    (plain, least), (_, all_held), (later, _) = seconds
    assert later <= plain
    assert all_held > least


def test_a_pipeline_of_a_language_model_alone_has_an_order_too() -> None:
    model = language_model("llama-3-8b")
    layout = Layout("homogeneous", {model.name: ParallelSizes(1, 8, data=1)})
    plain, later = (
        predict(model, layout, Workload(4096, 16, pipeline_order=order), gpu="h100")
        for order in ("1f1b", "zb-h1")
    )
    assert later.seconds < plain.seconds
    assert later.peak_memory >= plain.peak_memory
