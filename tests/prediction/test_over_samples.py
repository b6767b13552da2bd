"""Prediction over samples: equal to `predict` where all are alike, and slower by what is uneven."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.config import ConfigError
from mimokit.planning.frames import SampleWork, order_samples, plan_frames
from mimokit.planning.frames.routing import TOLERANCE
from mimokit.planning.schedule import simulate
from mimokit.prediction import predict
from mimokit.prediction.frames import frame_links
from mimokit.prediction.over_samples import (
    POLICIES,
    Policy,
    predict_over_samples,
    predict_samples,
)
from mimokit.prediction.over_samples import passes as passes_module
from mimokit.prediction.over_samples.loads import BatchLoads, Replicas, drawn_batches, drawn_rows
from mimokit.prediction.over_samples.passes import passes_of, work_of
from mimokit.prediction.over_samples.predict import batches_of, replicas_of
from mimokit.prediction.over_samples.timeline import batch_timeline
from mimokit.prediction.pipeline import timed_pipeline
from mimokit.prediction.prediction import costs_of, predict_task
from mimokit.prediction.sample_loads import SampleLoads, loads_of
from mimokit.prediction.task import PredictionTask, task_of
from mimokit.workload import SampleMix, mix_of
from tests.rows import rows

PRESETS = "llava_7b_homogeneous", "llava_7b_colocated", "llava_7b_heterogeneous"
PADDED = (*POLICIES[:3], Policy(order="balanced", shared_frames=True))
TAIL = {"text": [20] * 100, "images.items": [0] * 60 + [8] * 30 + [60] * 10}
LONG = 36_000
"""Tokens of a sequence that has room for the tail."""


def task(preset: str, columns: dict[str, Any] | SampleMix, **changed: Any) -> PredictionTask:
    known = task_of(f"preset:{preset}", price_per_gpu_hour=2.0)
    mix = columns if isinstance(columns, SampleMix) else mix_of(columns)
    return replace(known, workload=replace(known.workload, mix=mix, **changed))


@rows("preset, policy", *product(PRESETS, PADDED))
def test_samples_that_are_alike_take_what_predict_says(preset: str, policy: Policy) -> None:
    asked = task(preset, {"text": [30, 30], "images.items": [1, 1]})
    (found,) = predict_samples(asked, [policy], batches=3).policies
    alike = predict_task(asked)
    assert found.seconds == pytest.approx(
        alike.seconds, rel=5e-4 if policy.shared_frames else 1e-12
    )
    assert found.seconds.min() >= alike.seconds * (1 - 1e-12)  # sizes are gathered to share frames
    assert found.memory == pytest.approx(alike.peak_memory)
    assert found.lost == pytest.approx(0, abs=1e-12)
    assert found.dollars_per_day == pytest.approx(0, abs=1e-9)


@given(
    preset=st.sampled_from(PRESETS),
    items=st.integers(1, 6),
    at_once=st.sampled_from([None, 1, 2]),
    batches=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_alike_of_any_number(preset: str, items: int, at_once: int | None, batches: int) -> None:
    """Also packed, where texts fill the sequence."""
    text = 4096 - 576 * items
    asked = task(preset, {"text": [text] * 2, "images.items": [items] * 2})
    if preset.endswith("colocated"):
        asked = replace(asked, workload=replace(asked.workload, encoder_microbatches=at_once))
    found = predict_samples(asked, [*PADDED, Policy(packing="row")], batches=batches)
    for each in found.policies:
        assert each.seconds == pytest.approx(
            found.alike, rel=1e-3 if each.policy.shared_frames else 1e-9
        )


def test_a_mean_image_count_is_the_workload_of_predict(tmp_path: Path) -> None:
    """`data.workload` gives `predict` the means, and the same step in which all are alike."""
    text = 'extends: preset:llava_7b_colocated\ndata: {workload: "%s"}\n'
    tmp_path.joinpath("counts.csv").write_text("text,images.items\n20,2\n20,2\n")
    file = tmp_path / "mine.yaml"
    file.write_text(text % (tmp_path / "counts.csv"))
    found = predict_over_samples(file, batches=2)
    assert found.alike == predict(file).seconds > predict("preset:llava_7b_colocated").seconds
    for each in found.policies[:2]:
        assert each.seconds == pytest.approx(found.alike, rel=1e-12)


def test_what_travels_is_what_the_plan_of_a_run_moves() -> None:
    """Its busiest rank sends or receives as many frames, give or take the one that is left."""
    asked = task("llava_7b_colocated", TAIL, seq_length=LONG)
    loads = loads_of(asked.workload.mix, asked.model, asked.workload)
    replicas = replace(replicas_of(asked), micro_batches=4)
    read = drawn_batches(loads, replicas, Policy(), 6, 0).items["images"].astype(int)
    moved = drawn_batches(loads, replicas, Policy(shared_frames=True), 6, 0).moved["images"]
    for counts, busiest in zip(read.reshape(24, -1), moved.ravel(), strict=True):
        home = np.repeat(np.arange(len(counts)), counts)
        plan = plan_frames(np.ones(len(home)), len(counts), home=home, tolerance=TOLERANCE)
        between = plan.traffic_of_pairs().toarray()
        sent, received = (between.sum(axis=side) - between.diagonal() for side in (0, 1))
        assert abs(max(sent.max(), received.max()) - busiest) <= 1


def test_the_exchange_takes_what_its_messages_take() -> None:
    """In a homogeneous layout without pipeline it stands in every micro-batch of each replica."""
    asked = task("llava_7b_homogeneous", TAIL, seq_length=LONG)
    loads = loads_of(asked.workload.mix, asked.model, asked.workload)
    drawn = drawn_batches(loads, replicas_of(asked), Policy(shared_frames=True), 5, 0)
    costs = costs_of(asked.model, asked.layout, asked.workload, asked.system)
    works = [work_of(asked, each) for each in (drawn, replace(drawn, moved={}))]
    with_exchange, without = passes_of(asked, works, costs, replicas_of(asked).groups)
    (branch,) = asked.model.branches
    links = frame_links(asked, branch, 2, 4)
    expected = [
        sum(links.seconds(np.array([[0, items * 576], [0, 0]])) for items in batch)
        for batch in drawn.moved["images"][..., 0]
    ]
    assert with_exchange - without == pytest.approx(expected)
    assert links.latency == pytest.approx(
        asked.system.hardware.domain.latency + asked.system.software.host_collective
    )


def test_recordings_are_not_shared() -> None:
    """Replicas share the frames of images alone, as runs do."""
    config = mimokit.load_preset("digits_audio")
    asked = task_of(config, gpu="h100")
    assert replicas_of(asked).shares == {"images"}


def test_recordings_have_the_tokens_that_runs_give_them() -> None:
    """Four positions of 20 ms are merged to a token, in the last of which there may be padding."""
    mix = mimokit.measure("preset:digits_audio", samples=200)
    asked = task_of("preset:digits_audio", gpu="h100")
    loads = loads_of(mix, asked.model, asked.workload)
    rows = np.round(mix.columns["audio.seconds"] * 100 / 8)
    expected = mix.columns["text"] + mix.columns["images.items"] + rows
    assert loads.tokens == pytest.approx(expected)


@rows("preset", *PRESETS)
def test_memory_is_that_of_the_largest_samples(preset: str) -> None:
    """It grows by the activations of the items that are stored at once."""
    asked = task(preset, TAIL, seq_length=LONG)
    drawn, _, shared, packed, _ = predict_samples(asked, batches=24).policies
    assert max(packed.memory, shared.memory) <= drawn.memory
    loads, replicas = loads_of(asked.workload.mix, asked.model, asked.workload), replicas_of(asked)
    items = drawn_batches(loads, replicas, Policy(), 24, 0).items["images"]
    stored = items.sum(axis=1) if preset.endswith("colocated") else items.reshape(-1, 2)
    if preset.endswith("heterogeneous"):
        return  # the language model has the fullest rank there
    most = {"text": [0], "images.items": [stored.max() / (replicas.samples / items.shape[2])]}
    if preset.endswith("colocated"):
        most["images.items"] = [most["images.items"][0] / replicas.micro_batches]
    largest = task(preset, most, seq_length=LONG)
    assert drawn.memory == pytest.approx(
        predict_samples(largest, [Policy()], batches=1).policies[0].memory
    )
    said = predict_samples(asked).section().sentences
    assert any(each.startswith("Too large: as drawn; balanced order") for each in said)


def test_one_long_sample_makes_its_rank_and_the_step_slow() -> None:
    """In a homogeneous layout without pipeline a step has the passes of its fullest replica."""
    asked = task("llava_7b_homogeneous", TAIL, seq_length=LONG)
    (found,) = predict_samples(asked, [Policy()], batches=40).policies
    assert found.p50 <= found.p95
    assert found.lost > 0
    assert found.dollars_per_day == pytest.approx(found.lost * 2.0 * 24 * 8)
    images = found.work["images"]
    assert images.shape == (40, 2)
    text = found.work["language_module"]
    together = (images + text).max(axis=1)
    assert found.seconds - found.seconds[0] == pytest.approx(together - together[0], abs=1e-12)


@rows("preset", *PRESETS)
def test_what_balances_is_never_slower_and_no_image_is_lost(preset: str) -> None:
    asked = task(preset, TAIL, seq_length=LONG)
    drawn, ordered, shared, _, without = predict_samples(asked, batches=24).policies
    assert without.policy == Policy(text_only=False)
    for policy in (ordered, shared):
        assert policy.lost_by_module["images"] <= drawn.lost_by_module["images"] + 1e-12
        assert policy.mean <= drawn.mean * (1 + 1e-3)
    loads, replicas = loads_of(asked.workload.mix, asked.model, asked.workload), replicas_of(asked)
    sums = [
        drawn_batches(loads, replicas, policy, 24, 0).items["images"].sum(axis=(1, 2))
        for policy in (*POLICIES, Policy(packing=4096))
    ]
    for of_policy in sums[1:]:
        assert of_policy == pytest.approx(sums[0])


def test_dealing_is_close_to_the_order_of_runs() -> None:
    asked = task("llava_7b_colocated", {"text": [1] * 17, "images.items": range(17)})
    loads = loads_of(asked.workload.mix, asked.model, replace(asked.workload, seq_length=20_000))
    replicas = replace(replicas_of(asked), encoders={"images": 8}, micro_batches=6, samples=32)
    dealt = drawn_batches(loads, replicas, Policy(order="balanced"), 1, 5).items["images"]
    rows = np.random.default_rng(5).integers(0, 17, size=(1, 6 * 32)).reshape(6, 32)
    for microbatch, chosen in enumerate(rows):
        work = SampleWork.of(loads.items["images"][chosen], 8)
        run = work.per_replica(order_samples([work])).max()
        assert run - 1e-9 <= dealt[0, microbatch].max() <= 1.05 * run + 1


@rows("count, together", (8, 8), (600, 200), (1_024, 256))
def test_the_largest_goes_to_the_least_loaded_of_a_group(count: int, together: int) -> None:
    """The groups, beyond 256 replicas: a sample for each of 16,384 would look at all of them."""
    works = np.random.default_rng(1).lognormal(size=5_000)
    nothing = np.zeros(len(works))
    loads = SampleLoads({"images": works}, nothing, nothing > 0)
    replicas = Replicas({"images": count}, 1, micro_batches=1, samples=3 * count)
    dealt = drawn_batches(loads, replicas, Policy(order="balanced"), 2, 5).items["images"]
    for batch, drawn in enumerate(drawn_rows(len(works), replicas, 2, 5)[:, 0]):
        groups = works[drawn].reshape(-1, 3 * together)
        expected = np.concatenate([_one_by_one(group, together) for group in groups])
        assert dealt[batch, 0] == pytest.approx(expected)


def _one_by_one(works: np.ndarray, replicas: int) -> np.ndarray:
    sums, counts = np.zeros(replicas), np.zeros(replicas)
    for work in sorted(works, reverse=True):
        to = min((r for r in range(replicas) if counts[r] < 3), key=lambda r: sums[r])
        sums[to], counts[to] = sums[to] + work, counts[to] + 1
    return sums


def test_large_global_batches_are_drawn_less_often() -> None:
    asked = task("llava_7b_colocated", TAIL, seq_length=LONG)
    replicas = replicas_of(asked)
    assert len(predict_samples(asked).policies[0].seconds) == batches_of(replicas) == 64
    assert batches_of(replace(replicas, micro_batches=8, samples=1_024)) == 64
    assert batches_of(replace(replicas, micro_batches=8, samples=16_384)) == 4


def test_a_batch_is_the_schedule_with_its_own_times() -> None:
    """Each group of replicas of a pipeline, simulated alone, ends when the batch says."""
    asked = task("llava_7b_heterogeneous", TAIL, seq_length=LONG)
    costs = costs_of(asked.model, asked.layout, asked.workload, asked.system)
    replicas = replicas_of(asked)
    loads = loads_of(asked.workload.mix, asked.model, asked.workload)
    work = work_of(asked, drawn_batches(loads, replicas, Policy(), 3, 0))
    (spans,) = passes_of(asked, [work], costs, replicas.groups)
    timed = timed_pipeline(asked.layout, *costs, asked.workload, asked.system)
    stages = timed.schedule.graph.stages
    for batch in range(3):
        ends = []
        for group in range(replicas.groups):
            tables = []
            for way in ("forward", "backward"):
                rows = []
                for stage in stages:
                    values = getattr(work.modules[stage.module], way)[stage.place]
                    values = np.broadcast_to(values, (3, work.micro_batches, values.shape[-1]))[
                        batch
                    ]
                    share = values.shape[-1] // replicas.groups or 1
                    rows.append(
                        values[:, group * share : (group + 1) * share].max(axis=-1)
                        if values.shape[-1] > 1
                        else values[:, 0]
                    )
                tables.append(np.array(rows))
            ends.append(simulate(timed.schedule, *tables, timed.transfer).makespan)
        assert spans[batch] == pytest.approx(max(ends), rel=1e-12)


@rows(
    "preset, policy",
    *itertools.product(
        [*PRESETS, "pipelines", "few at once"], [POLICIES[0], POLICIES[2], POLICIES[3]]
    ),
)
def test_a_timeline_ends_with_the_passes_of_its_batch(preset: str, policy: Policy) -> None:
    """No lane does two things at once, and the slowest ends when the prediction says."""
    known = task(preset if preset in PRESETS else "llava_7b_colocated", TAIL, seq_length=LONG)
    if preset == "few at once":
        known = replace(known, layout=replace(known.layout, encoder_microbatches=3))
    if preset == "pipelines":
        sizes = known.layout.modules
        text = replace(sizes["language_module"], tensor=2, pipeline=2, data=2, micro_batch=4)
        known = replace(
            known, layout=replace(known.layout, modules=sizes | {"language_module": text})
        )
    (found,) = predict_samples(known, [policy], batches=3).policies
    costs = costs_of(known.model, known.layout, known.workload, known.system)
    (ends,) = passes_of(known, [found.computed], costs, replicas_of(known).groups)
    for batch in range(3):
        timeline = batch_timeline(known, found, batch)
        assert timeline is not None
        passes = [block for block in timeline.blocks if block.kind != "update"]
        assert max(block.stop for block in passes) == pytest.approx(ends[batch])
        assert max(block.stop for block in timeline.blocks) == pytest.approx(found.seconds[batch])
        for lane in range(len(timeline.lanes)):
            own = sorted((b.start, b.stop) for b in timeline.blocks if b.lane == lane)
            assert all(right[0] >= left[1] - 1e-9 for left, right in pairwise(own))


@pytest.mark.parametrize("preset", ["llava_7b_homogeneous", "llava_7b_heterogeneous"])
def test_the_slowest_group_is_among_the_heaviest(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 replicas 4 decide within a hundredth; to look at one alone is noticed."""
    known = task(preset, TAIL, seq_length=LONG)
    modules = {
        name: replace(sizes, tensor=1, pipeline=2, data=16, micro_batch=1)
        for name, sizes in known.layout.modules.items()
    }
    if preset.endswith("homogeneous"):
        modules["images"] = replace(modules["images"], pipeline=1)
    asked = replace(known, layout=replace(known.layout, modules=modules))

    def steps(groups: int) -> np.ndarray:
        monkeypatch.setattr(passes_module, "HEAVIEST", groups)
        return predict_samples(asked, [Policy()], batches=32).policies[0].seconds

    every = steps(16)
    assert steps(4) == pytest.approx(every, rel=1e-2)
    assert np.median(steps(4)) == pytest.approx(np.median(every), rel=2e-3)
    assert steps(1).min() < 0.99 * every[steps(1).argmin()] or (steps(1) < every).mean() > 0.5


def test_packing_computes_the_tokens_there_are() -> None:
    """Half the tokens take little more than half the time; padded samples take all of it."""
    half = {"text": [4096 // 2 - 576] * 2, "images.items": [1, 1]}
    padded, packed = predict_samples(
        task("llava_7b_homogeneous", half), [Policy(), Policy(packing="row")], 2
    ).policies
    assert 0.35 < packed.mean / padded.mean < 0.65
    rows = predict_samples(task("llava_7b_homogeneous", half), [Policy(packing=4096 * 2)], 2)
    assert rows.policies[0].mean == pytest.approx(packed.mean, rel=0.1)
    assert str(rows.policies[0].policy) == "packed to 8,192"
    assert "predicted only: a run packs the samples" in rows.section().sentences[-1]


def test_text_only_samples_can_be_left_out() -> None:
    asked = task("llava_7b_homogeneous", TAIL, seq_length=LONG)
    with_text, without = predict_samples(
        asked, [Policy(), Policy(text_only=False)], batches=8
    ).policies
    assert without.work["images"].mean() > 1.3 * with_text.work["images"].mean()  # of 2.5 x items
    assert str(without.policy) == "without text-only samples"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another config's": (
        {"text": [1], "clip.items": [1]},
        "it has inputs of 'clip', which is not an encoder of the model (images) nor the kind",
    ),
    "nothing of an encoder": ({"text": [1]}, "it has no column of the encoder 'images' of the mod"),
    "longer than the sequence": (
        {"text": [4000, 10, 3600], "images.items": [1, 0, 1]},
        "2 of 3 samples have more than the 4,096 tokens of the sequence, most of all sample 0 with",
    ),
}


@rows("case", *REFUSED)
def test_a_mix_that_does_not_fit_is_refused(case: str) -> None:
    columns, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        predict_samples(task("llava_7b_colocated", columns))
    assert sentence in str(caught.value)


def test_what_nothing_can_be_drawn_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing says what samples are made of; give"):
        predict_over_samples("preset:llava_7b_colocated")
    few = task("llava_7b_colocated", {"text": [1], "images.items": [0]})
    with pytest.raises(ConfigError, match="all of its samples have nothing but text"):
        predict_samples(few, [Policy(text_only=False)])
    short = task("llava_7b_colocated", TAIL, seq_length=LONG)
    with pytest.raises(ConfigError, match="more than the 10 tokens of a packed row"):
        predict_samples(short, [Policy(packing=10)])


def test_what_is_not_asked_for_is_refused_by_the_generic_sentence() -> None:
    config = mimokit.load_preset("llava_7b_colocated").to_mapping()
    config["data"] |= {"workload": "image_captions", "modality_frames": {"images": [1, 2]}}
    with pytest.raises(ConfigError, match="workload image_captions is refused with modality_fram"):
        predict(config)


def test_replicas_that_do_not_divide_a_micro_batch_are_refused() -> None:
    asked = task("llava_7b_heterogeneous", TAIL, seq_length=LONG)
    sizes = asked.layout.modules | {"images": replace(asked.layout.modules["images"], data=3)}
    with pytest.raises(ConfigError, match="3 replicas of encoder 'images' cannot share the 8 sam"):
        predict_samples(replace(asked, layout=replace(asked.layout, modules=sizes)))


def test_evened_batches_keep_their_sums() -> None:
    items = np.random.default_rng(0).random((4, 3, 2))
    even = BatchLoads({"images": items}, None, None, 3).evened()
    assert even.items["images"][:, 0, 0] * 6 == pytest.approx(items.sum(axis=(1, 2)))
