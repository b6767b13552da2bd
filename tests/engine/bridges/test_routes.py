"""Rows carried over every form of a route, uneven ones too, arrive where the plan says."""

import pytest

from mimokit.planning.bridges.plan import plan_disjoint_bridge
from mimokit.planning.ranks import RankGrid

DIMENSIONS = ("tp", "dp")
SAMPLES = 8
ROWS = [3, 0, 5, 1, 2, 0, 4, 7]
"""Rows of every sample; some samples have none."""


def grids(source, destination):
    first = RankGrid(DIMENSIONS, source)
    return first, RankGrid(DIMENSIONS, destination, first.size)


def samples_of(grid):
    width = SAMPLES // grid.size_of("dp")
    places = {rank: grid.coordinates(rank)["dp"] for rank in grid.ranks}
    return {rank: (place * width, (place + 1) * width) for rank, place in places.items()}


def _carry(source, destination, form, rows_per_sample):
    """Send forward, and what arrived backward; return what this rank then has of both."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.engine.bridges.routes import RouteCommunicator
    from mimokit.engine.ragged import Ragged
    from mimokit.planning.bridges.routes import row_range
    from tests.engine.bridges.test_routes import SAMPLES, grids, plan_disjoint_bridge, samples_of

    rank, (first, second) = dist.get_rank(), grids(source, destination)
    plan = plan_disjoint_bridge(("a", first), ("b", second), SAMPLES, 64, form=form)
    mailbox = Mailbox(torch.device("cpu"), dist.new_group())
    samples = {**samples_of(first), **samples_of(second)}
    ways = [
        RouteCommunicator(route, 0, direction, samples, samples, mailbox, kinds=2)
        for direction, route in enumerate((plan.forward, plan.backward))
    ]
    (start, stop), wholes, counts, found = samples[rank], [], [], []
    for kind, numbers in enumerate((rows_per_sample, [number // 2 for number in rows_per_sample])):
        begin, end = row_range((start, stop), (0, SAMPLES), numbers)
        whole = torch.arange(sum(numbers) * 3, dtype=(torch.float32, torch.int64)[kind])
        wholes.append(whole.reshape(-1, 3)[begin:end])
        counts.append(numbers[start:stop])
    for microbatch in range(2):
        mine = [whole + 1000 * microbatch for whole in wholes]
        if rank in first.ranks:
            ways[0].send(Ragged.of_kinds(mine, counts), microbatch)
            arrived = ways[1].receive(microbatch)
        else:
            arrived = ways[0].receive(microbatch)
            ways[1].send(arrived, microbatch)
        rows, numbers = arrived.kinds(2)
        same = [torch.equal(one, other) for one, other in zip(rows, mine, strict=True)]
        found.append(all(same) and numbers == counts)
    mailbox.wait()
    return found


@pytest.mark.parametrize("form", ["leader", "copies", "shards"])
@pytest.mark.parametrize(
    ("source", "destination"),
    [((2, 1), (4, 1)), ((1, 4), (2, 1)), ((2, 1), (2, 2)), ((2, 2), (2, 1))],
    ids=["TP2 to TP4", "fan-in to TP2", "fan-out to TP2", "fan-in between groups"],
)
@pytest.mark.parametrize("rows", [ROWS, [0] * SAMPLES], ids=["uneven", "none"])
def test_rows_arrive_as_planned(cluster, source, destination, form, rows):
    size = sum(tensor * data for tensor, data in (source, destination))
    try:
        plan_disjoint_bridge(
            ("a", grids(source, destination)[0]),
            ("b", grids(source, destination)[1]),
            SAMPLES,
            64,
            form=form,
        )
    except ValueError:
        assert form == "shards", "only shards need a group that shares"
        return
    assert (
        cluster.run(_carry, source, destination, form, rows, world_size=size) == [[True] * 2] * size
    )
