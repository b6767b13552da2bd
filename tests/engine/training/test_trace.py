"""The tracer on real ranks: clocks, order of steps, and the file that a run leaves."""

import pytest

import mimokit
from mimokit.analysis import bubbles, read_trace, traced_iteration
from mimokit.experiment import train
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_experts import experts_config


def test_clocks_of_one_machine_agree_within_the_stated_error(cluster):
    offsets = cluster.run(_offset_and_shifted, world_size=4)
    assert offsets[0][0] == (0.0, 0.0)
    for rank, ((offset, error), (shifted, shifted_error)) in enumerate(offsets):
        # Processes of one machine share a clock, so the true offset is 0, and -5 s when planted.
        assert abs(offset) <= error
        if rank:
            assert 0 < error < 1.0, "less than what is planted"
            assert abs(shifted + 5.0) <= shifted_error


def _offset_and_shifted():
    """Align the clocks; then again with the clocks of all but rank 0 five seconds fast."""
    import time

    import torch.distributed as dist

    from mimokit.engine.training import tracer as clocks

    true = clocks.align_clocks()
    kept = clocks.now
    if dist.get_rank():
        clocks.now = lambda: time.perf_counter() + 5.0
    try:
        planted = clocks.align_clocks()
    finally:
        clocks.now = kept
    return (true.offset, true.error), (planted.offset, planted.error)


def mixture():
    """Return recomputed experts on two ranks each, whose gradients are scattered."""
    config = experts_config((1, 1, 4), (2, 1, 2))
    config.runtime.num_iterations = 2
    language = config.model.get_parallelism("language_module")
    language.recompute_granularity, language.use_distributed_optimizer = "full", True
    return config


def contexts():
    """Return an encoder on two context-parallel ranks before two stages."""
    config = apart_config((1, 1, 2), (1, 2, 1), 2)
    images = config.model.get_parallelism("images")
    images.context_parallel, images.data_parallel = 2, 1
    return config


@pytest.mark.parametrize(
    ("config", "inside"),
    [
        (mixture(), {"dispatch", "combine", "recompute", "reduce-scatter", "all-reduce"}),
        (contexts(), {"gather-keys", "all-reduce"}),
    ],
    ids=["colocated", "apart"],
)
def test_a_traced_run_leaves_every_step_of_every_rank(cluster, tmp_path, config, inside):
    plan = mimokit.plan(config)
    train(cluster, config, evaluations=QUICK, directory=tmp_path, trace=True).result()
    trace = read_trace(tmp_path)
    assert set(trace["rank"]) == set(range(plan.world_size))
    assert set(trace["iteration"]) == set(range(config.runtime.num_iterations))
    assert trace.attrs["clock_error"] > 0
    one = traced_iteration(trace)
    for rank, steps in one.groupby("rank"):
        assert (
            steps["start"].iloc[1:].to_numpy() >= steps["stop"].iloc[:-1].to_numpy() - 1e-9
        ).all()
        if plan.pipeline is not None:
            planned = [a.kind for a in plan.pipeline.actions(rank) if a.microbatch is not None]
            assert steps["name"].tolist()[: len(planned)] == planned
        assert steps["name"].tolist()[-3:] == ["grad-sync", "optimizer", "report"]
    parts = read_trace(tmp_path, inside=True)
    assert set(parts["name"]) == inside
    passes = trace[trace["name"].isin(["forward", "backward", "grad-sync"])]
    for part in parts.itertuples():
        around = passes[(passes["rank"] == part.rank) & (passes["start"] <= part.start)].iloc[-1]
        assert part.stop <= around["stop"] + 1e-9
        assert (around["name"] == "grad-sync") == (part.name in ("reduce-scatter", "all-reduce"))
        assert part.name != "recompute" or around["name"] == "backward"


def test_a_message_arrives_behind_its_sending_on_the_common_clock(cluster, tmp_path):
    config = apart_config((1, 1, 1), (1, 2, 1), 3, num_iterations=3)
    train(cluster, config, evaluations=QUICK, directory=tmp_path, trace=True).result()
    trace = read_trace(tmp_path)
    steps = trace.set_index(["rank", "iteration", "name", "microbatch"])
    for iteration in range(3):
        for microbatch in range(3):
            sent = steps.loc[(0, iteration, "send-forward", microbatch), "start"]
            received = steps.loc[(1, iteration, "receive-forward", microbatch), "stop"]
            assert received.max() >= sent.min() - 2 * trace.attrs["clock_error"]
    idle = bubbles(trace, mimokit.plan(config))
    assert ((idle["measured"] > 0) & (idle["measured"] < 1)).all()


def test_without_being_asked_a_run_is_not_traced(cluster, tmp_path):
    config = digits_config((1, 2), (2, 1), num_iterations=1)
    train(cluster, config, evaluations=QUICK, directory=tmp_path).result()
    assert not (tmp_path / "trace.json").exists()
