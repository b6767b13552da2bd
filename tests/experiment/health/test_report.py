"""The health of a training run: what differs, what is not finite, and a fault on a rank."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import mimokit
from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.config.strategy import StrategyConfig
from mimokit.experiment import train
from mimokit.experiment.health.measures import NOT_MEASURED, RunMeasures
from mimokit.experiment.health.module_memory import predicted_memory
from mimokit.experiment.health.report import HealthRecord, RunHealth
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.tensor_collectives import CollectiveSpan
from mimokit.samples import HealthSample, StepSample
from tests import seams
from tests.cli.call import call
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, with_adapter
from tests.layouts_experts import BALANCED, experts_config
from tests.layouts_multimodal import multimodal_config
from tests.planted import planted, replacing
from tests.whole_runs import (
    LATENT_ATTENTION,
    adapted_on_shared_ranks,
    cut_along_sequences,
    in_rows,
    on_contexts,
)

LANGUAGE = "language_module"
NORM, SHARD = "language_module.norm.weight", "language_module.fc1.weight (shard {} of 2)"


@pytest.fixture(scope="module")
def plan() -> LayoutPlan:
    """Four ranks: the encoder in four replicas, the language model in two of two shards."""
    return mimokit.plan(digits_config((1, 4), (2, 2)))


def said(iteration: int = 0, **changed: Any) -> list[HealthSample]:
    """Return what four ranks say; `rank_1={...}` replaces digests of a rank."""
    return [
        HealthSample(
            rank=rank,
            iteration=iteration,
            digests={NORM: 5, SHARD.format(rank % 2): rank % 2, **changed.get(f"rank_{rank}", {})},
        )
        for rank in range(4)
    ]


def test_ranks_with_the_same_tensors_are_healthy(plan: LayoutPlan) -> None:
    found = RunHealth.of([*said(0), *said(9)], plan)
    assert found.healthy
    assert [one.iteration for one in found.ranks] == [9] * 4
    assert "Nothing is wrong." in found._repr_html_()
    assert "No rank has finished an iteration." in RunHealth.of([], plan)._repr_html_()


def test_a_shard_is_compared_with_its_copy_and_a_norm_with_all(plan: LayoutPlan) -> None:
    (sentence,) = RunHealth.of(said(3, rank_2={SHARD.format(0): 8}), plan).wrong
    assert sentence == (
        "Ranks 0 and 2 have different bits of language_module.fc1.weight (shard 0 of 2) after "
        "iteration 3, which must be alike."
    )
    found = RunHealth.of(said(0, rank_1={NORM: 6, SHARD.format(1): 9}), plan)
    assert [(one.ranks, len(one.names)) for one in found.differences] == [((0, 1), 1), ((1, 3), 1)]


def test_the_first_iteration_with_a_fault_counts_and_many_are_shortened(plan: LayoutPlan) -> None:
    first = said(0, **{f"rank_{rank}": {NORM: rank} for rank in range(4)})
    bad = [
        HealthSample(rank=rank, iteration=0, digests={}, not_finite=["a", "b"]) for rank in (4, 5)
    ]
    found = RunHealth.of([*said(9), *first, *bad], plan)
    assert found.ranks[0].iteration == 0
    assert found.wrong[0].startswith("Rank 4 has an entry that is not finite in a and 1 other")
    assert found.wrong[-1] == "And 1 more."
    assert len(found.wrong) == 5


def test_a_loss_that_is_not_finite_is_said_once(plan: LayoutPlan) -> None:
    record = HealthRecord(digits_config((1, 4), (2, 2)), plan)
    record.take(StepSample(0, loss=2.0, rank=0))
    assert record.health().healthy
    lost = StepSample(3, loss=float("inf"), rank=0)
    with pytest.warns(UserWarning, match="The loss of iteration 3 is inf; look at the"):
        record.take(lost)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.take(replace(lost, rank=1))
    found = record.health()
    assert not found.healthy
    assert "The loss of iteration 3 is inf" in found._repr_html_()


def test_replicas_of_a_layout_may_differ() -> None:
    config = digits_config((2, 1), (2, 1))
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=2)
    plan = mimokit.plan(config)
    apart = {NORM: 6, SHARD.format(0): 8}
    one = said(0, rank_2=apart, rank_3={NORM: 6})
    assert RunHealth.of([replace(each, random_state=each.rank // 2) for each in one], plan).healthy
    assert not RunHealth.of(said(0, rank_3={NORM: 6}), plan).healthy


def test_random_states_alike_outside_regions_and_different_inside(plan: LayoutPlan) -> None:
    """Ranks 0 and 1 share the layers of the language model, 0 and 2 are replicas."""
    good = [replace(one, states_inside={LANGUAGE: one.rank % 2}) for one in said(2)]
    assert RunHealth.of(good, plan).healthy
    for rank, changed, sentence in [
        (
            1,
            {"random_state": 9},
            "Ranks 0 and 1 have different random states after iteration 2, which must be alike in "
            "a tensor parallel group.",
        ),
        (
            3,
            {"states_inside": {LANGUAGE: 0}},
            "Ranks 2 and 3 have the same random state inside the tensor parallel regions of "
            "language_module after iteration 2, where they must differ.",
        ),
        (
            2,
            {"states_inside": {LANGUAGE: 7}},
            "Ranks 0 and 2, which are replicas, have different random states inside the tensor "
            "parallel regions of language_module after iteration 2.",
        ),
    ]:
        faulty = [*good[:rank], replace(good[rank], **changed), *good[rank + 1 :]]
        found = RunHealth.of(faulty, plan)
        assert found.wrong[0] == sentence
        assert found.to_json()["wrong"][0] == sentence
        # Replicas of a user's module may draw more or fewer numbers.
        assert RunHealth.of(faulty, plan, {}).healthy == ("replicas" in sentence)


def test_collectives_that_are_not_planned(plan: LayoutPlan) -> None:
    planned = {rank: {LANGUAGE: CollectiveSpan(12, 12)} for rank in range(4)}
    good = [replace(one, collectives={LANGUAGE: 12}) for one in said(0)]
    assert RunHealth.of(good, plan, planned).healthy
    found = RunHealth.of([*good[:3], replace(good[3], collectives={LANGUAGE: 11})], plan, planned)
    assert found.wrong == (
        "Rank 3 had 11 collectives in the tensor parallel group of language_module in iteration "
        "0, and 12 are planned.",
    )
    assert "11 of 12" in found._repr_html_()
    fewer = {3: {LANGUAGE: CollectiveSpan(5, 12)}}
    assert RunHealth.of(found.ranks, plan, fewer).healthy
    assert RunHealth.of(found.ranks, plan).healthy  # not known
    own = RunHealth.of(found.ranks, plan, {rank: planned[rank] for rank in (0, 1, 2)})
    assert own.healthy  # a module of the user on rank 3
    assert own.notes[0].startswith("No collectives are planned for rank 3, where a module or a ")
    assert "11, none planned" in own._repr_html_()
    assert [bool(one["planned_collectives"]) for one in own.to_json()["ranks"]] == [True] * 3 + [
        False
    ]


def measured(plan: LayoutPlan, **changed: Mapping[str, float]) -> RunMeasures:
    """Return what four ranks measured in three steps after a slow one of the warmup."""
    columns = {
        "total_time": 0.08, "waiting_time": 0.02, "communication_time": 0.03, "report_time": 0.004,
        "memory_allocated": 1000, "memory_peak": 2000,
    }  # fmt: skip
    return RunMeasures.of(
        [
            StepSample(
                number, rank=rank, warmup=float(not number),
                **{**columns, **changed.get(f"rank_{rank}", {}),
                   **({} if number else {"report_time": 1.0})},
            )
            for number in range(4)
            for rank in range(4)
        ],
        plan,
        calibrated=0.0005,
    )  # fmt: skip


def test_memory_waiting_and_a_small_all_reduce(plan: LayoutPlan) -> None:
    slow = {"waiting_time": 0.001, "report_time": 0.001}
    found = measured(plan, rank_2={**slow, "memory_allocated": 2000})
    assert found.all_reduce == 0.001
    assert found.notes == (
        "Private memory of ranks 0–3 differs by 80% of its mean; rank 2 holds most, 2 kB.",
        "Rank 2 waits least for others, 1 ms of a step of 80 ms; rank 0 waits longest, 20 ms.",
        "A small all-reduce takes 1 ms, 2.0 times the 0.5 ms of the calibration.",
    )
    health = replace(RunHealth.of(said(3), plan), measures=found)
    assert health.healthy
    shown = health._repr_html_()
    assert all(note in shown for note in health.notes)
    assert health.to_json()["ranks"][2]["measured"]["waiting"] == 0.001
    assert measured(plan).notes[0].startswith("Private memory of ranks 0–3 differs by 0% ")
    assert RunHealth.of(said(3), plan).notes == (NOT_MEASURED,)


def test_memory_is_compared_between_ranks_with_the_same_modules() -> None:
    plan = mimokit.plan(apart_config((1, 1, 2), (2, 1, 1)))
    found = measured(plan, **{f"rank_{rank}": {"memory_allocated": 9000} for rank in (2, 3)})
    assert [(one.ranks, one.share) for one in found.spreads] == [((0, 1), 0.0), ((2, 3), 0.0)]


def test_a_module_keeps_the_scores_of_its_attention_unless_its_own_sequences_are_shared() -> None:
    make = partial(multimodal_config, {"clip": (1, 4), LANGUAGE: (1, 4)}, "colocated")
    before = predicted_memory(make())
    for config in (on_contexts(make(), language_module=2), in_rows(make())):
        after = predicted_memory(config)
        assert after["clip"]["activations"] == before["clip"]["activations"]
        assert after[LANGUAGE]["activations"] < before[LANGUAGE]["activations"]
    in_windows = make()
    in_windows.model.get_architecture("clip").window_size = 4
    for config in (on_contexts(make(), clip=2), in_windows.finalize()):
        after = predicted_memory(config)
        assert after["clip"]["activations"] < before["clip"]["activations"]


def test_a_rank_whose_weights_go_another_way_is_named(cluster: EngineCluster) -> None:
    config = digits_config((1, 4), (2, 2), num_iterations=2)
    run = train(cluster, config, evaluations=QUICK)
    run.result()
    found = run.health()
    assert found.healthy, found.wrong
    assert [len(found.ranks), len(found.measures.ranks)] == [4, 4]
    assert len(found.ranks[0].digests) > 20
    assert [one.collectives for one in found.ranks] == [{LANGUAGE: 12}] * 4
    assert found.planned == {rank: {LANGUAGE: CollectiveSpan(12, 12)} for rank in range(4)}
    assert all(one.memory > 1e6 and one.step > one.waiting for one in found.measures.ranks)
    *of_ranks, images, words = run.health("h100").notes
    assert len(of_ranks) == 3
    assert images.startswith("Module 'images' holds most on rank")
    assert words.startswith(f"Module '{LANGUAGE}' holds most on rank")
    assert len(found.notes) == len(of_ranks) - 1 + 2, "without a calibration"
    with (
        planted(cluster, seams.HEALTH_SAMPLE, drifting, 4),
        planted(cluster, seams.FINALIZE_GRADS, summing_once_more, 4),
    ):
        run = train(cluster, config, evaluations=QUICK)
        run.result()
    drifted, drawn, *counted = run.health().wrong
    saved = json.loads((run.directory / "health.json").read_text())
    assert saved["wrong"] == [drifted, drawn, *counted]
    assert saved["ranks"][3]["measured"]["memory"] > 1e6
    told = call("analyze", run.directory).stdout
    assert f"The ranks of run {run.directory.name} are not healthy: {drifted} {drawn}" in told
    assert drifted.startswith("Ranks 0 and 3 have different bits of language_module.")
    assert "final_layernorm.weight after iteration 0, which must be alike" in drifted
    assert drawn.startswith("Ranks 2 and 3 have different random states after iteration 0")
    assert counted == [
        f"Rank {rank} had 13 collectives in the tensor parallel group of language_module in "
        "iteration 0, and 12 are planned."
        for rank in (2, 3)
    ]


@replacing
def drifting(original: Any, model: Any, iteration: int, collectives: Any) -> Any:
    """Exchange two entries of a norm on rank 3, and draw a number there, before the first look."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 3 and not iteration:
        torch.rand(1)
        module = model.modules()["language_module"].module
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("final_layernorm.weight"):
                    ends = [int(parameter.argmin()), int(parameter.argmax())]
                    assert parameter[ends[0]] != parameter[ends[1]]
                    parameter[ends] = parameter[ends[::-1]]
    return original(model, iteration, collectives)


@replacing
def summing_once_more(original: Any, modules: Any) -> float:
    """Let ranks 2 and 3 have one more all-reduce in the group of their shards."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() > 1:
        module, _ = modules[-1]
        dist.all_reduce(torch.zeros(1), group=module.ownership.groups.tp)
    tokens: float = original(modules)
    return tokens


def networks_of(config: ExperimentConfig, **changed: Mapping[str, Any]) -> ExperimentConfig:
    networks = config.model.module_architectures
    for name, fields in changed.items():
        networks[name] = networks[name].model_copy(update=fields)
    return config


def _adapted(**runtime: object) -> ExperimentConfig:
    return with_adapter(apart_config((2, 1, 1), (2, 1, 1), 2, **runtime), (2, 1, 1))


def _around_stages() -> ExperimentConfig:
    """Return an encoder of four tensor parallel ranks around two stages of two, and an adapter."""
    config = adapted_on_shared_ranks((4, 1, 1), (1, 1, 4), (2, 2, 1))
    config.runtime.num_iterations = 1
    return config


def _latent_experts() -> ExperimentConfig:
    latent = {**LATENT_ATTENTION, "num_query_groups": None, "moe_router_enable_expert_bias": True}
    config = experts_config((1, 1, 2), (2, 1, 1), **latent, **BALANCED)
    for module in config.model.module_parallelisms.values():
        module.recompute_granularity = "full"
    config.runtime.num_iterations = 1
    return config.finalize()


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        (
            networks_of(
                digits_config((2, 1), (2, 1), num_microbatches=3, num_iterations=1),
                images={"frozen": ["encoder"]},
                language_module={"num_query_groups": 1},
            ),
            {0: 3 * (4 + 16), 1: 3 * (4 + 16)},
        ),
        (
            apart_config((2, 1, 1), (2, 2, 1), 2, num_iterations=1),
            {0: 20, 1: 20, 2: 18, 3: 18, 4: 22, 5: 22},
        ),
        (
            networks_of(
                cut_along_sequences(_adapted(num_iterations=1)),
                adapter={"frozen": True},
                language_module={"frozen": True},
            ),
            {0: 49, 1: 49, 2: 44, 3: 44, 4: 40, 5: 40},
        ),
        # 58, biases, and in 2 layers a loss and twice 3 gathers for a capacity.
        (_latent_experts(), {0: 60 + 2 * 7, 1: 60 + 2 * 7}),
        (_around_stages(), {0: 45, 1: 45, 2: 51, 3: 51}),
    ],
    ids=["homogeneous", "pipeline", "frozen slices", "latent experts, recomputed", "around stages"],
)
def test_counted_collectives_are_those_planned(
    cluster: EngineCluster, config: ExperimentConfig, counted: dict[int, int]
) -> None:
    run = train(cluster, config, evaluations=QUICK)
    run.result()
    found = run.health()
    assert found.healthy, found.wrong
    assert {one.rank: sum(one.collectives.values()) for one in found.ranks} == counted
    assert set(found.planned) == set(counted)
