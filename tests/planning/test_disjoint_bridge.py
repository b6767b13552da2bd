from collections import defaultdict
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mimokit
from mimokit.planning import DisjointBridge, RankGrid, plan_disjoint_bridge
from mimokit.planning.bridges.forms import LEAST_SHARD_BYTES
from mimokit.planning.bridges.plan import FORM_WORDS
from mimokit.planning.bridges.routes import Route, row_range
from tests.planning.layouts import layout, sizes

ORDERS = [
    ("tp", "cp", "dp", "pp"),
    ("tp", "cp", "pp", "dp"),
    ("tp", "pp", "dp"),
    ("dp", "tp", "pp"),
]
MEGATRON_ORDERS = [*ORDERS[:2], ("dp", "cp", "tp", "pp"), ("pp", "tp", "cp", "dp")]
SIZES = st.sampled_from([1, 2, 3, 4])
SAMPLE = LEAST_SHARD_BYTES
"""Bytes of a sample, so that no shard is too small to be considered."""


def grid(order: tuple[str, ...], offset: int = 0, **shape: int) -> RankGrid:
    return RankGrid(order, tuple(shape.get(name, 1) for name in order), offset)


def bridge(
    source: RankGrid, destination: RankGrid, samples: int, sample: int = SAMPLE, **options
) -> DisjointBridge:
    return plan_disjoint_bridge(
        ("images", source), ("language", destination), samples, sample, **options
    )


@st.composite
def pairs(draw: st.DrawFn, context: bool = True) -> tuple[RankGrid, RankGrid, int]:
    """Return two grids side by side, in either order, and a batch that both divide."""
    few = draw(st.sampled_from([1, 2, 3]))
    many = few * draw(st.sampled_from([1, 2, 4]))
    dps = draw(st.permutations([few, many]))
    orders = ORDERS if context else MEGATRON_ORDERS
    found: list[RankGrid] = []
    for dp in dps:
        shape = {
            "tp": draw(SIZES),
            "pp": draw(SIZES),
            "dp": dp,
            "cp": draw(SIZES) if context else 1,
        }
        found.append(grid(draw(st.sampled_from(orders)), 0, **shape))
    first, second = found
    gap = draw(st.integers(0, 3))
    if draw(st.booleans()):  # the encoder may come after the language model
        first = RankGrid(first.dimensions, first.shape, second.size + gap)
    else:
        second = RankGrid(second.dimensions, second.shape, first.size + gap)
    return first, second, many * draw(st.sampled_from([1, 2, 3, 12]))


@pytest.fixture(scope="module")
def megatron() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", str(2**20))
        from megatron.core.hyper_comm_grid import HyperCommGrid
        from megatron.core.pipeline_parallel import bridge_communicator

        def comm_map(source: RankGrid, destination: RankGrid) -> dict:
            theirs = [
                HyperCommGrid(list(g.shape), list(g.dimensions), rank_offset=g.rank_offset)
                for g in (source, destination)
            ]
            with mock.patch.object(bridge_communicator, "dist") as dist:
                dist.get_rank.return_value = source.rank_offset
                dist.new_subgroups_by_enumeration.return_value = (None, None)
                return bridge_communicator.BridgeCommunicator(*theirs).comm_map

        yield comm_map


@settings(max_examples=100)
@given(pair=pairs(context=False))
def test_leaders_equal_megatrons(megatron, pair) -> None:
    source, destination, samples = pair
    theirs = megatron(source, destination)
    found = bridge(source, destination, samples)
    sends, receives = defaultdict(list), defaultdict(list)
    for sender, receiver in found.leader_edges:
        sends[sender].append(receiver)
        receives[receiver].append(sender)
    for rank, info in theirs.items():
        assert info.send_to_ranks == sends[rank]
        assert info.recv_from_ranks == receives[rank]
        roles = {"SENDER": rank in sends, "RECEIVER": rank in receives, "MEMBER": True}
        assert roles[info.role.value]
    forced = bridge(source, destination, samples, form="leader")
    ends = [(t.source_rank, t.destination_rank) for t in forced.forward.transfers]
    assert ends == list(found.leader_edges)
    back = [(t.destination_rank, t.source_rank) for t in forced.backward.transfers]
    assert sorted(back) == sorted(ends)


def test_the_base_grid_may_hold_experts() -> None:
    # Trap T14: with tp1 ep2 dp2 the group of a replica is over ep; no rank is left out of it.
    order = ("tp", "ep", "dp")
    found = bridge(grid(order, 0, dp=2), grid(order, 2, ep=2, dp=2), 2, form="leader")
    assert found.leader_edges == ((0, 2), (1, 4))
    assert found.forward.groups == ((2, 3), (4, 5))


def held(whole: RankGrid, samples: int, last_stage: bool) -> dict[int, tuple[int, int]]:
    """Return the samples of every rank at the stage of the bridge, by coordinates."""
    found = {}
    for rank in whole.ranks:
        at = whole.coordinates(rank)
        stages = dict(zip(whole.dimensions, whole.shape, strict=True))
        if at.get("pp", 0) == (stages["pp"] - 1 if last_stage else 0):
            width = samples // stages["dp"]
            found[rank] = (at["dp"] * width, (at["dp"] + 1) * width)
    return found


def carry(route: Route, senders: dict, receivers: dict) -> dict[int, list[int]]:
    """Return the samples that every receiving rank ends with, carried one by one."""
    has: dict[int, list[int]] = {rank: [] for rank in receivers}
    for t in route.transfers:
        start, stop = senders[t.source_rank]
        assert start <= t.start < t.stop <= stop, "a rank sends what it holds"
        has[t.destination_rank] += range(t.start, t.stop)
    for group in route.groups:
        # Laid end to end in the order of the group: a broadcast is one part and nothing more.
        whole = [sample for rank in group for sample in has[rank]]
        for rank in group:
            has[rank] = whole
    return has


@settings(max_examples=100)
@given(pair=pairs(), form=st.sampled_from([None, "leader", "copies", "shards"]))
def test_everybody_ends_with_the_samples_of_his_replica(pair, form) -> None:
    source, destination, samples = pair
    try:
        found = bridge(source, destination, samples, form=form)
    except ValueError:
        assert form == "shards"
        return
    senders, receivers = held(source, samples, True), held(destination, samples, False)
    for route, ours, theirs in (
        (found.forward, senders, receivers),
        (found.backward, receivers, senders),
    ):
        ends = [transfer.ends for transfer in route.transfers]
        assert len(set(ends)) == len(ends), "receives are posted in the order of sending"
        has = carry(route, ours, theirs)
        assert has == {rank: list(range(*span)) for rank, span in theirs.items()}
        total = sum(t.stop - t.start for t in route.transfers) * SAMPLE
        copies = len(theirs) * samples // len(set(theirs.values()))
        assert route.bytes_between == total
        assert total + route.bytes_within == copies * SAMPLE
        assert form is None or route.form == form


@settings(max_examples=60)
@given(pair=pairs())
def test_the_choice_moves_least(pair) -> None:
    source, destination, samples = pair
    found = bridge(source, destination, samples)
    assert found.forward.bytes_between == samples * SAMPLE, "every sample crosses once"
    assert found.backward.bytes_between == samples * SAMPLE
    for form in ("leader", "copies", "shards"):
        try:
            other = bridge(source, destination, samples, form=form).forward
        except ValueError:
            continue
        ours, theirs = (
            (r.bytes_between, r.bytes_busiest, r.messages) for r in (found.forward, other)
        )
        assert ours <= theirs
    assert FORM_WORDS[found.forward.form] in found.forward.reason


@settings(max_examples=60)
@given(pair=pairs())
def test_what_is_too_small_is_not_cut(pair) -> None:
    source, destination, samples = pair
    found = bridge(source, destination, samples, sample=10)
    assert found.forward.bytes_between == samples * 10, "every sample crosses once"
    assert found.forward.form != "shards"
    for form in ("leader", "copies"):
        other = bridge(source, destination, samples, sample=10, form=form).forward
        ours, theirs = ((r.bytes_between, r.messages) for r in (found.forward, other))
        assert ours <= theirs


def test_the_smallest_shard() -> None:
    ends = (grid(ORDERS[0], 0, tp=2), grid(ORDERS[0], 2, tp=4))
    assert bridge(*ends, 8, sample=LEAST_SHARD_BYTES // 2).forward.form == "shards"
    too_small = bridge(*ends, 8, sample=LEAST_SHARD_BYTES // 2 - 1).forward
    assert too_small.form == "leader"


def rows(route: Route) -> list[tuple[int, int, int, int]]:
    return [(t.source_rank, t.destination_rank, t.start, t.stop) for t in route.transfers]


def test_the_layout_of_24_ranks() -> None:
    # Vision TP2 PP2 DP2 on ranks 0 to 7, language TP4 PP2 DP2 on ranks 8 to 23.
    config = layout(
        "heterogeneous", sizes(tp=4, dp=2, pp=2, offset=8), 4, 8, images=sizes(tp=2, dp=2, pp=2)
    )
    (found,) = mimokit.plan(config).bridges
    assert isinstance(found, DisjointBridge)
    assert (found.direction, found.ratio) == ("equal", 1)
    assert found.leader_edges == ((5, 8), (7, 12))
    per_sample = 16 * 5040 * 4
    assert found.forward.form == "leader"
    assert rows(found.forward) == [(5, 8, 0, 4), (7, 12, 4, 8)]
    assert found.forward.groups == ((8, 9, 10, 11), (12, 13, 14, 15))
    assert rows(found.backward) == [(8, 5, 0, 4), (12, 7, 4, 8)]
    assert found.forward.bytes_busiest == 4 * per_sample
    assert found.forward.reason == (
        "Cheapest route: one rank of a replica receives and broadcasts, 2.58 MB."
    )
    for route in (found.forward, found.backward):
        assert route.bytes_between == 8 * per_sample
    assert found.forward.bytes_within == 3 * 8 * per_sample


def test_the_layout_of_24_ranks_with_larger_images() -> None:
    order = ("tp", "cp", "dp", "pp")
    ends = (grid(order, 0, tp=2, dp=2, pp=2), grid(order, 8, tp=4, dp=2, pp=2))
    found = bridge(*ends, 8)
    assert found.leader_edges == ((5, 8), (7, 12))
    assert found.forward.form == "shards"
    assert rows(found.forward) == [
        (4, 8, 0, 1), (5, 9, 1, 2), (4, 10, 2, 3), (5, 11, 3, 4),
        (6, 12, 4, 5), (7, 13, 5, 6), (6, 14, 6, 7), (7, 15, 7, 8),
    ]  # fmt: skip
    assert found.forward.groups == ((8, 9, 10, 11), (12, 13, 14, 15))
    assert rows(found.backward) == [
        (8, 4, 0, 2), (9, 5, 2, 4), (12, 6, 4, 6), (13, 7, 6, 8),
    ]  # fmt: skip
    assert found.forward.bytes_between == 8 * SAMPLE
    assert found.forward.bytes_busiest == 2 * SAMPLE
    assert found.forward.bytes_within == 3 * 8 * SAMPLE
    assert found.forward.messages == 8
    assert found.forward.reason == (
        "Cheapest route: each rank of a replica receives a part and they gather, 8.39 MB."
    )


def test_fan_in_and_fan_out() -> None:
    order = ("tp", "cp", "dp", "pp")
    fan_in = bridge(grid(order, 0, dp=4), grid(order, 4), 8)
    assert (fan_in.direction, fan_in.ratio) == ("fan_in", 4)
    assert fan_in.leader_edges == ((0, 4), (1, 4), (2, 4), (3, 4))
    assert fan_in.forward.form == "leader"
    assert [(t.start, t.stop) for t in fan_in.forward.transfers] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    fan_out = bridge(grid(order, 0), grid(order, 1, dp=4), 8)
    assert (fan_out.direction, fan_out.ratio) == ("fan_out", 4)
    assert fan_out.leader_edges == ((0, 1), (0, 2), (0, 3), (0, 4))
    # One sample for four ranks cannot be cut, so one of them takes it for all.
    whole = bridge(grid(order, 0), grid(order, 1, tp=4), 1)
    assert whole.forward.form == "leader"
    assert whole.forward.groups == ((1, 2, 3, 4),)
    # The ranks of a sending group take turns: no leader has to send everything.
    turns = bridge(grid(order, 0, tp=2), grid(order, 2, dp=2), 2)
    assert turns.forward.form == "copies"
    assert [t.source_rank for t in turns.forward.transfers] == [0, 1]


@pytest.mark.parametrize(
    ("source", "destination", "samples", "reason"),
    [
        ({"dp": 3}, {"dp": 2, "offset": 3}, 6, "data_parallel 2 does not divide 3"),
        ({"dp": 4}, {"dp": 2, "offset": 4}, 6, "does not divide the micro-batch of 6"),
        ({"dp": 4}, {"dp": 2, "offset": 3}, 8, "share ranks"),
        ({"dp": 2}, {"dp": 2, "offset": 0}, 8, "share ranks"),
    ],
)
def test_what_cannot_be_bridged(source, destination, samples: int, reason: str) -> None:
    order = ("tp", "dp", "pp")
    with pytest.raises(ValueError, match=f"from 'images' to 'language'.*{reason}"):
        bridge(grid(order, **source), grid(order, **destination), samples)
    with pytest.raises(ValueError, match="cannot share its samples evenly"):
        bridge(grid(order), grid(order, 1, tp=4), 6, form="shards")


def test_uneven_rows() -> None:
    # Trap T24: rows per sample, cut for two receivers.
    halves = [(0, 2), (2, 4)]
    assert [row_range(half, (0, 4), [3, 1, 2, 2]) for half in halves] == [(0, 4), (4, 8)]
    assert [row_range(half, (0, 4), [1, 2, 3, 4], 10) for half in halves] == [(0, 3), (3, 10)]
    assert row_range((6, 7), (4, 8), [5, 0, 7, 1]) == (5, 12)
    assert row_range((5, 6), (4, 8), [5, 0, 7, 1]) == (5, 5)


@pytest.mark.parametrize(
    ("samples", "held", "counts", "rows", "reason"),
    [
        ((0, 2), (0, 2), [3, 1], 5, "4 rows together, but the tensor has 5"),
        ((0, 2), (0, 2), [3], None, "2 stored samples need 2 row counts"),
        ((0, 2), (0, 2), [3, -1], None, "row counts of 0 or more"),
        ((1, 3), (0, 2), [3, 1], None, "samples 1 to 3 are not all among"),
    ],
)
def test_rows_that_do_not_fit(samples, held, counts, rows, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        row_range(samples, held, counts, rows)
