"""Replicas of a layout compute what as many models in one process compute."""

import json
import math
from typing import Any

import pytest

import mimokit
from mimokit.analysis import read_run, read_trace
from mimokit.config import ConfigError
from mimokit.experiment import train, verify
from mimokit.extras.strategies.exchanges import StrategyPlan
from mimokit.step_kinds import StepKind
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.whole_runs import tied_alone, tied_on_four_ranks, whole_runs, with_strategy


def _counted() -> Any:
    from mimokit.engine.strategies import communicate

    return communicate.ledger.messages


def _check_bytes(messages: list[Any], plan: StrategyPlan, node: int, steps: int) -> None:
    """Check what a rank counted in a run against its plan.

    Equal to the byte, except that random masks are within three standard deviations in the run.
    """
    rows = [row for row in plan.rows(steps) if row["node"] == node]
    assert [(one.step, one.operation) for one in messages] == [
        (row["step"], row["operation"]) for row in rows
    ]
    deviation = math.sqrt(sum(one.rule.deviation**2 for one in plan.exchanges(steps)))
    for size, ring in (("payload_bytes", 1), ("sent_bytes", 2 - 2 / plan.nodes)):
        counted = [getattr(one, size) for one in messages]
        planned = [row[size] for row in rows]
        if not deviation:
            assert counted == pytest.approx(planned, rel=1e-12)
        assert abs(sum(counted) - sum(planned)) <= 3 * ring * deviation + 1e-6


@whole_runs("replicas")
def test_replicas_compute_what_models_in_one_process_compute(cluster, run):
    config, steps = run.make(), run.steps
    strategy = config.strategy
    report = verify(cluster, config, steps=steps)
    assert report.passed, report.verdict
    assert f"{strategy.replicas} replicas with {strategy.name}" in report.verdict
    replicas = mimokit.plan(config).replicas
    ranks = cluster.run(_counted, world_size=replicas.world_size)
    for rank, messages in enumerate(ranks):
        replica, place = replicas.place(rank)
        _check_bytes(messages, replicas.plan_of(place), replica, steps)


def test_a_run_has_the_samples_of_all_replicas(cluster, tmp_path):
    config = digits_config((1, 2), (1, 2), num_iterations=3)
    config = with_strategy(config, name="fedavg", replicas=2, H=2)
    result = train(cluster, config, evaluations=QUICK, directory=tmp_path, trace=True).result()
    steps = result.steps
    assert sorted(steps["rank"].unique()) == [0, 1, 2, 3]
    by_rank = steps.pivot(index="iteration", columns="rank", values="loss")
    assert (by_rank[0] == by_rank[1]).all()
    assert (by_rank[2] == by_rank[3]).all()
    assert (by_rank[0] != by_rank[2]).all()
    assert steps.groupby("rank")["replica"].unique().map(list).tolist() == [[0], [0], [1], [1]]
    tables = read_run(tmp_path)
    expected = [(one[0] + one[2]) / 2 for _, one in by_rank.iterrows()]
    assert tables.metrics["loss"].tolist() == expected
    assert tables.metrics_by_rank["replica"].tolist() == [0, 0, 1, 1] * 3
    trace = read_trace(tmp_path)
    exchanges = trace[trace["name"] == StepKind.EXCHANGE]
    assert sorted(zip(exchanges["iteration"], exchanges["rank"], strict=True)) == [
        (1, rank) for rank in range(4)
    ]
    info = json.loads((tmp_path / "experiment_info.json").read_text())
    assert (info["world_size"], info["samples_per_step"]) == (4, 16)


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [
        (digits_config((1, 2), (2, 1)), {"name": "sparta", "p_sparta": 0.25, "delay": 1}),
        (tied_alone(), {"name": "simple_reduce"}),
    ],
)
def test_ranks_of_a_replica_keep_the_same_bits_of_what_they_share(cluster, layout, strategy):
    """Three replicas: what a rank sends next to it differs, as of stages or of masks."""
    layout.runtime.num_iterations = 4
    run = train(cluster, with_strategy(layout, replicas=3, **strategy), evaluations=QUICK)
    run.result()
    assert run.health().differences == ()
    first, second, *_ = run.health().ranks
    assert first.digests.keys() & second.digests.keys()


def _kinds(plan, config):
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    found = []
    with in_replica(plan, config) as run, prepared(run) as state:
        exhaust(training_step(state), lambda step: found.append(str(step.name)))
    return found[found.index("grad-sync") :]


@pytest.mark.parametrize(
    ("strategy", "after"),
    [("simple_reduce", ["exchange", "optimizer"]), ("fedavg", ["optimizer", "exchange"])],
)
def test_what_replicas_exchange_is_a_step_of_its_own(cluster, strategy, after):
    config = with_strategy(digits_config((1, 1), (1, 1)), name=strategy, replicas=2)
    found = cluster.run(_kinds, mimokit.plan(config), config, world_size=2)
    assert found == [["grad-sync", *after, "report"]] * 2


def test_more_replicas_than_engines_are_rejected(cluster, tmp_path):
    config = with_strategy(digits_config((1, 2), (1, 2)), name="fedavg", replicas=5)
    with pytest.raises(ConfigError, match=r"strategy\.replicas is 5, which makes 10") as caught:
        train(cluster, config, directory=tmp_path)
    assert "choose at most 4, or start 10 engines" in str(caught.value)


def _sent(plan, config):
    from mimokit.engine.run_of_rank import in_replica
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepared, training_step

    with in_replica(plan, config) as run, prepared(run) as state:
        exhaust(training_step(state))
        shard = state.update.shard
        shapes = {name: tuple(one.shape) for name, one in shard.named_parameters()}
        messages = state.update.strategy.ledger.messages
        return [one.payload_bytes for one in messages], shapes, shard.whole


def test_each_rank_sends_the_bytes_that_are_planned(cluster):
    """The stages of a pipeline have shards of different sizes, and a tied embedding twice."""
    config = with_strategy(tied_on_four_ranks(), name="fedavg", replicas=2)
    planned = mimokit.plan(config)
    found = cluster.run(_sent, planned, config, world_size=8)
    sent, shapes, whole = zip(*found, strict=True)
    expected = [list(planned.replicas.payload_bytes(rank).values()) for rank in range(4)]
    assert list(sent) == expected * 2
    assert len({one for (one,) in expected}) == 3
    entries = [sum(map(math.prod, of_rank.values())) for of_rank in shapes]
    assert entries == [*planned.replicas.entries] * 2
    assert all(each == whole[0] for each in whole)
