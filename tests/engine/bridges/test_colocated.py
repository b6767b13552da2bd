"""The colocated bridge on real ranks, with the numbers of hand-made cases."""

import pytest

import mimokit
from mimokit.cluster import RankError
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.megatron_on_gloo import HAS_COLOCATED_BRIDGE
from tests.rank_steps import run_step, state_of


def _both_ways(plan, pieces, gradients, rows):
    """Send a piece forward and a gradient back on every rank; return what arrived."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
    from mimokit.engine.parallel.grids import create_grids

    _, groups = create_grids(plan)
    bridge = ColocatedBridgeCommunicator(plan.bridges[0], groups["images"].tp)
    rank = dist.get_rank()
    piece = torch.tensor(pieces[rank]).reshape(-1, 1).requires_grad_()
    arrived = bridge(piece, rows[rank])
    arrived.backward(torch.tensor(gradients[rank]).reshape(-1, 1))
    return arrived.flatten().tolist(), piece.grad.flatten().tolist()


def test_fan_in_gathers_forward_and_cuts_backward(cluster):
    plan = mimokit.plan(digits_config((1, 2), (2, 1), samples_per_microbatch=4))
    pieces = [[1.0, 2.0], [3.0, 4.0]]
    whole = [[10.0, 20.0, 30.0, 40.0]] * 2
    results = cluster.run(_both_ways, plan, pieces, whole, [[1, 1, 1, 1]] * 2, world_size=2)
    assert results == [([1, 2, 3, 4], [10, 20]), ([1, 2, 3, 4], [30, 40])]


def test_fan_out_cuts_forward_and_gathers_backward(cluster):
    """Each tensor-parallel rank of the encoder sees the whole gradient, not its part of it."""
    plan = mimokit.plan(digits_config((2, 1), (1, 2), samples_per_microbatch=4))
    results = cluster.run(
        _both_ways,
        plan,
        [[1.0, 1.0, 1.0, 1.0]] * 2,
        [[1.0, 2.0], [3.0, 4.0]],
        [[1, 1, 1, 1]] * 2,
        world_size=2,
    )
    assert results == [([1, 1], [1, 2, 3, 4]), ([1, 1], [1, 2, 3, 4])]


def test_uneven_rows_are_cut_at_sample_borders(cluster):
    """Samples of 1, 2, 3 and 4 rows over two replicas: 3 and 7 rows, not 5 and 5."""
    plan = mimokit.plan(digits_config((2, 1), (1, 2), samples_per_microbatch=4))
    whole = [float(row) for row in range(10)]
    results = cluster.run(
        _both_ways, plan, [whole] * 2, [[1.0] * 3, [2.0] * 7], [[1, 2, 3, 4]] * 2, world_size=2
    )
    assert results[0] == (whole[:3], [1.0] * 3 + [2.0] * 7)
    assert results[1] == (whole[3:], [1.0] * 3 + [2.0] * 7)


def test_differing_tensor_parallel_replicas_are_refused(cluster):
    """Only one copy travels: a difference must be found, not silently halved."""
    plan = mimokit.plan(digits_config((2, 1), (1, 2), samples_per_microbatch=2))
    with pytest.raises(RankError, match="'images' differs between its tensor-parallel ranks") as e:
        cluster.run(
            _both_ways, plan, [[1.0, 2.0], [10.0, 20.0]], [[1.0], [1.0]], [[1, 1]] * 2, world_size=2
        )
    assert "rank 0 and rank 1 hold different values" in str(e.value)


class _Clock:
    """Stands still, unless somebody lets time pass."""

    now = 0.0

    def __call__(self):
        return self.now


def _steps_that_check(seconds):
    """Let steps take 1 s; return (the steps that checked, N at the end) on this rank.

    Args:
        seconds: that a check takes, of each rank.
    """
    import torch.distributed as dist

    from mimokit.engine.bridges.checks import OneStepOfN

    clock, found = _Clock(), []
    checks = OneStepOfN(clock)

    def check(step):
        found.append(step)
        # The first step warms up.
        clock.now += seconds[dist.get_rank()] if step else 50.0

    for step in range(30):
        checks.begin_step()
        for _ in range(2):  # micro-batches
            checks.run(lambda step=step: check(step))
        clock.now += 1.0 if step else 100.0
    return found, checks.every


def test_checks_take_a_hundredth_of_the_time_on_the_slowest_rank(cluster):
    """Two checks of 0.07 s are 0.14 s of a step of 1 s: one step of 14."""
    results = cluster.run(_steps_that_check, [0.0, 0.07], world_size=2)
    assert results == [([0, 0, 1, 1, 15, 15, 29, 29], 14)] * 2
    results = cluster.run(_steps_that_check, [0.001, 0.002], world_size=2)
    assert results == [([step for step in range(30) for _ in range(2)], 1)] * 2


def _compared(plan, config):
    """Return how often the bridge compared in five steps of training, and of `verify`."""
    from mimokit.engine.bridges.checks import OneStepOfN, check_rarely

    found = []
    for rarely in (True, False):
        with state_of(plan, config) as state:
            (bridge,) = state.model.bridges.values()
            if rarely:
                state.checks = check_rarely([bridge])
                assert isinstance(state.checks, OneStepOfN)
            for _ in range(2):
                run_step(state)
            if rarely:
                state.checks._next = 1000
            for _ in range(3):
                run_step(state)
            found.append(bridge.comparisons)
    return found


def test_training_checks_in_its_first_steps_and_verify_in_all(cluster):
    config = digits_config((2, 1), (1, 2), num_microbatches=2)
    assert cluster.run(_compared, mimokit.plan(config), config, world_size=2) == [[4, 10]] * 2


def test_a_wrong_number_of_rows_is_refused(cluster):
    plan = mimokit.plan(digits_config((1, 2), (2, 1), samples_per_microbatch=4))
    with pytest.raises(RankError, match=r"gave 3 rows on rank .* but its samples have 2"):
        cluster.run(_both_ways, plan, [[1.0] * 3] * 2, [[1.0] * 4] * 2, [[1] * 4] * 2, world_size=2)


def _diverging_encoder(plan, config):
    """Train a step with an encoder whose second tensor-parallel rank drifted.

    In the last bias, which is added after the last all-reduce: a drift before it reaches all ranks.
    """
    import torch
    import torch.distributed as dist

    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.optimizer_step import prepare, training_step

    state = prepare(RunOfRank(plan, config))
    if dist.get_rank() == 1:
        with torch.no_grad():
            parameters = dict(state.model.modules()["images"].named_parameters())
            parameters["module.input_projections.0.encoder.linear_fc2.bias"].add_(0.01)
    exhaust(training_step(state))


@pytest.mark.parametrize(
    "config",
    [
        digits_config((2, 1), (1, 2)),
        digits_config((2, 1), (2, 1)),
        apart_config((2, 1, 1), (1, 1, 1)),
    ],
    ids=["fan_out", "equal", "ranks_of_its_own"],
)
def test_training_with_a_drifted_encoder_replica_is_refused(cluster, config):
    plan = mimokit.plan(config)
    with pytest.raises(RankError, match="'images' differs between its tensor-parallel ranks"):
        cluster.run(_diverging_encoder, plan, config, world_size=plan.world_size)


def _beside_megatrons(plan):
    """Send the same rows and gradients through our bridge and Megatron's; return both on a rank."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.colocated import ColocatedBridgeCommunicator
    from mimokit.engine.parallel.grids import create_grids
    from tests.megatron_on_gloo import colocated_bridge

    grids, groups = create_grids(plan)
    ours = ColocatedBridgeCommunicator(plan.bridges[0], groups["images"].tp)
    theirs = colocated_bridge(grids["images"], grids["language_module"])
    generator = torch.Generator().manual_seed(7)
    samples, rows, rank = 8, 3, dist.get_rank()
    outputs, gradients = torch.rand(2, samples * rows, 5, generator=generator)

    def part(whole, module):
        ranks = plan.modules[module]
        pieces = whole.chunk(ranks.data_parallel)
        return pieces[ranks.coordinates(rank)["dp"]]

    few = min(grid.data_parallel for grid in plan.modules.values())
    arrived = []
    for send in (lambda piece: ours(piece, [rows] * (samples // few)), theirs.communicate):
        piece = part(outputs, "images").clone().requires_grad_()
        result = send(piece)
        result.backward(part(gradients, "language_module"))
        arrived.append((result.detach(), piece.grad))
    return arrived


@pytest.mark.skipif(not HAS_COLOCATED_BRIDGE, reason="megatron-core before 0.18 has no such bridge")
@pytest.mark.parametrize(
    ("encoder", "language"),
    [((1, 4), (4, 1)), ((2, 2), (4, 1)), ((4, 1), (1, 4)), ((2, 2), (1, 4)), ((1, 4), (2, 2))],
)
def test_rows_and_gradients_are_those_of_megatrons_bridge(cluster, encoder, language):
    plan = mimokit.plan(digits_config(encoder, language))
    for (rows, gradient), (their_rows, their_gradient) in cluster.run(
        _beside_megatrons, plan, world_size=4
    ):
        assert rows.equal(their_rows)
        assert gradient.equal(their_gradient)
