"""Training stacks that deal layers, keep more, retry; files of facts; which own runs tell most."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mimokit.architecture.layers_on_stage import layers_of, stage_layers
from mimokit.config.errors import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.hardware import load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.own_runs import OwnRun, adjust
from mimokit.prediction.own_runs.fit import most_telling
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.result import chance_text
from mimokit.prediction.room import chance_below, has_empty_stage
from mimokit.prediction.step_time import Software, load_software
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.workload import Workload
from tests.networks import language
from tests.rows import rows

MODEL = language(16, 2048, 32, 32, 64, 8192, name="1B", vocab=131072)


def dealt_one_by_one(layers: int, logits: float, stages: int) -> list[int]:
    """Return the layers of each stage as Nanotron deals blocks: the next stage follows a share."""
    ends = [(layers + logits) * (stage + 1) / stages for stage in range(stages)]
    counts, stage = [0] * stages, 0
    for layer in range(1, layers + 1):
        counts[stage] += 1
        stage += stage < stages - 1 and layer >= ends[stage] - 1e-9
    return counts


@rows(
    "layers, logits, stages",
    *itertools.product([4, 16, 32, 61], [0.4, 2.2, 4.0], [1, 2, 3, 4, 8, 16]),
)
def test_layers_are_dealt_by_products(layers: int, logits: float, stages: int) -> None:
    sizes = ParallelSizes(pipeline=stages, logits_as_layers=logits)
    expected = dealt_one_by_one(layers, logits, stages)
    dealt = [int(stage_layers(layers, layers, sizes, each).total) for each in range(stages)]
    assert dealt == expected
    assert sum(dealt) == layers


@rows(
    "layers, logits, stages, nothing",
    (16, 4.0, 8, False),
    (16, 4.0, 16, True),
    (32, 2.2, 32, False),
    (32, 2.2, 64, True),
)
def test_a_stage_may_get_nothing(layers: int, logits: float, stages: int, nothing: bool) -> None:
    """The Playbook: of 1B on 16 stages 1 of 57 runs started, of 8B on 32 stages 11 of 29."""
    sizes = ParallelSizes(pipeline=stages, logits_as_layers=logits)
    assert has_empty_stage(layers, sizes) == nothing


def task(stack: Software, gpu: str = "h100-efa", **sizes: Any) -> PredictionTask:
    layout = Layout("homogeneous", {"1B": ParallelSizes(**sizes)})
    work = Workload(4096, 256)
    return PredictionTask(MODEL, layout, work, system_of(load_hardware(gpu), stack, work, MODEL))


NANOTRON = load_software("nanotron")


def test_a_pipeline_over_nodes_waits_for_each_collective() -> None:
    """The Playbook: 8.5, 13 and 21 ms a layer at TP 2, 4 and 8; 4.5 ms without a pipeline."""
    for tensor, data, measured in ((2, 4, 5.446), (4, 2, 17.139)):  # on 2 nodes
        found = predict_task(task(NANOTRON, tensor=tensor, pipeline=2, data=data)).seconds
        assert found == pytest.approx(measured, rel=0.15)
    piped = task(NANOTRON, tensor=4, pipeline=2, data=4)
    without = task(replace(NANOTRON, host_piped=0.0), tensor=4, pipeline=2, data=4)
    assert predict_task(without).seconds < 0.7 * predict_task(piped).seconds


def test_a_tight_layout_is_slower_and_may_not_fit() -> None:
    roomy = predict_task(task(NANOTRON, data=8))
    tight = predict_task(task(NANOTRON, data=8, micro_batch=4, distributed_optimizer=False))
    assert roomy.fit_chance > 0.98
    assert 0.02 < tight.fit_chance < 0.98
    assert ", in " in str(tight)
    assert " of 10 runs" in str(tight)
    assert "of 10 runs" not in str(roomy)
    same = tight.layout.modules["1B"]
    patient = replace(NANOTRON, retries=0.0)
    calm = predict_task(task(patient, data=8, micro_batch=4, distributed_optimizer=False))
    assert calm.layout.modules["1B"] == same
    assert tight.seconds > 1.2 * calm.seconds
    assert calm.fit_chance == tight.fit_chance


@rows(
    "sizes, starts",
    ({"pipeline": 4, "data": 2}, True),
    ({"pipeline": 16, "data": 1}, False),  # the last stage gets nothing
    ({"tensor": 16, "pipeline": 8, "data": 1, "micro_batch": 64}, False),  # 4 micro-batches
    ({"tensor": 16, "pipeline": 8, "data": 1, "micro_batch": 32}, True),  # 8
    ({"pipeline": 4, "data": 4, "distributed_optimizer": False}, True),  # not tied
)
def test_what_a_stack_does_not_start_is_no_matter_of_room(
    sizes: dict[str, int], starts: bool
) -> None:
    assert (predict_task(task(NANOTRON, **sizes)).fit_chance > 0.9) == starts
    anywhere = replace(NANOTRON, fills_pipelines=False, deals_layers=False)
    assert predict_task(task(anywhere, **sizes)).fit_chance > 0.9


@pytest.mark.parametrize(
    ("data", "sharded", "micro_batch", "starts"),
    [
        (4, False, 1, False),
        (4, True, 1, True),
        (2, False, 1, True),  # on one node
        (4, False, 8, True),  # 8 micro-batches
    ],
)
def test_a_tied_pipeline_over_nodes_needs_a_sharded_optimizer(
    data: int, sharded: bool, micro_batch: int, starts: bool
) -> None:
    sizes = {"tensor": 2, "pipeline": 2, "data": data, "micro_batch": micro_batch}
    asked = task(NANOTRON, **sizes, distributed_optimizer=sharded)
    asked = replace(asked, workload=replace(asked.workload, global_batch_size=64 * data))
    found = predict_task(replace(asked, model=replace(MODEL, tied=True)))
    assert (found.fit_chance > 0.9) == starts


def test_what_a_stack_keeps_is_measured() -> None:
    """The Playbook's 1B, tied: allocated and reserved on the first stage, in GiB."""
    tied = replace(MODEL, tied=True)
    for sizes, measured in (
        ({"data": 16}, 24.0),
        ({"data": 16, "micro_batch": 2}, 35.0),
        ({"data": 16, "distributed_optimizer": False}, 36.7),
        ({"tensor": 2, "data": 8, "micro_batch": 8}, 58.7),
        ({"pipeline": 8, "data": 2, "micro_batch": 4}, 46.3),
    ):
        found = predict_task(replace(task(NANOTRON, **sizes), model=tied))
        assert found.peak_memory / 2**30 == pytest.approx(measured, rel=0.1), sizes


def test_the_chance_grows_with_room() -> None:
    peaks = np.array([50.0, 70.0, 79.0, 90.0])
    chances = chance_below(79.0, peaks, 0.1)
    assert list(chances) == sorted(chances, reverse=True)
    assert chances[2] == pytest.approx(0.5)
    assert chance_text(0.5) == ", in 5 of 10 runs"
    assert chance_text(0.999) == chance_text(0.001) == ""


def file(path: Path, **content: Any) -> str:
    written = {"format": 2, "base": "nanotron", "facts": {}} | content
    path.write_text(json.dumps(written), encoding="utf-8")
    return str(path)


def test_a_stack_is_described_in_a_file(tmp_path: Path) -> None:
    facts = {"deals_layers": False, "host_layer": 0.003, "tensor_overlap": "async"}
    stack = load_software(file(tmp_path / "mine.json", facts=facts))
    assert (stack.deals_layers, stack.host_layer, stack.tensor_overlap) == (False, 0.003, "async")
    assert stack.keeps_copies
    assert int(layers_of(MODEL, ParallelSizes(pipeline=4), 3).total) == 4


@rows(
    "content, sentence",
    ({"facts": {"deals_layer": True}}, "Fact 'deals_layer': it does not exist; did you mean"),
    ({"facts": {"matrix_share": 3.0}}, "matrix_share is 3.0, outside its bounds 0.1 to 2"),
    ({"facts": {"deals_layers": 1}}, "deals_layers is 1; it is true or false"),
    ({"facts": {"tensor_overlap": "all"}}, "it is one of none, async, pipelined"),
    ({"facts": []}, "base and gpu are names, and facts are a mapping"),
    ({"base": "mine"}, "is none of megatron-bridge"),
    ({"format": 3}, "it has no format 2"),
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_software(file(tmp_path / "mine.json", **content))


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.json")
    with pytest.raises(ConfigError, match="it cannot be read"):
        load_software(str(tmp_path / "mine.json"))


def test_runs_that_differ_tell_most() -> None:
    """The second run of a layout says nothing that the first did not."""
    tasks = [
        task(NANOTRON, data=16),
        task(NANOTRON, data=16),
        task(NANOTRON, tensor=4, pipeline=2, data=2),
        task(NANOTRON, tensor=8, data=2),
    ]
    chosen = most_telling(tasks, 3)
    assert len(set(chosen)) == 3
    assert {0, 1} - set(chosen)
    assert 2 in chosen  # nothing else tells of collectives in pipelines
    assert most_telling([], 3) == ()


def test_three_runs_that_say_the_same_are_refused() -> None:
    run = task(NANOTRON, data=16)
    with pytest.raises(ConfigError, match="the 3 runs are of one layout"):
        adjust([OwnRun(f"run {place}", run, 1.5) for place in range(3)], NANOTRON)


def test_three_own_runs_move_the_constants_inside_their_bounds() -> None:
    slower = replace(NANOTRON, matrix_share=0.8, host_piped=0.4e-3)
    tasks = [
        task(NANOTRON, data=16),
        task(NANOTRON, tensor=4, pipeline=2, data=2),
        task(NANOTRON, tensor=8, data=2),
    ]
    runs = [
        OwnRun(f"run {place}", each, OwnRun("", each, 1.0).predicted(slower))
        for place, each in enumerate(tasks)
    ]
    adjusted = adjust(runs, NANOTRON)
    assert adjusted.software.host_piped > 1.2 * NANOTRON.host_piped
    other = OwnRun("", task(NANOTRON, tensor=2, pipeline=2, data=4), 1.0)
    truth = other.predicted(slower)
    before, after = (
        abs(other.predicted(stack) / truth - 1) for stack in (NANOTRON, adjusted.software)
    )
    assert after < 0.35 * before
