"""Replicas fill hosts one after the other: by brute force, and by hand."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.planning.replicas import Placement, crossed_links, place_replicas
from tests.rows import rows


@st.composite
def clusters(draw: st.DrawFn, most: int = 24) -> tuple[list[str], int, int]:
    """Return the hosts of engines in any order, and replicas for which there is room."""
    hosts = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=most))
    ranks = draw(st.integers(1, len(hosts)))
    return hosts, ranks, draw(st.integers(1, len(hosts) // ranks))


@settings(max_examples=100)
@given(clusters())
def test_every_rank_has_an_engine_and_every_host_is_filled_in_one_go(cluster) -> None:
    hosts, ranks, replicas = cluster
    found = place_replicas(hosts, ranks, replicas)
    assert len(found.slots) == len(set(found.slots)) == ranks * replicas
    assert found.hosts == tuple(hosts[slot] for slot in found.slots)
    whole = sum(count // ranks for count in Counter(hosts).values())
    assert replicas - len(found.split) == min(whole, replicas), "as many as there is room for"
    for replica in range(replicas):
        own = found.hosts[replica * ranks : (replica + 1) * ranks]
        runs = [host for host, _ in itertools.groupby(own)]
        assert len(runs) == len(set(runs)), "no host comes twice in a replica"
        assert found.hosts_of(replica) == tuple(runs)
    alone = [found.hosts_of(one)[0] for one in range(replicas) if one not in found.split]
    runs = [host for host, _ in itertools.groupby(alone)]
    assert len(runs) == len(set(runs)), "a host is full before the next one begins"


@settings(max_examples=40)
@given(clusters(most=5))
def test_no_order_of_the_engines_splits_fewer_replicas(cluster) -> None:
    hosts, ranks, replicas = cluster
    found = place_replicas(hosts, ranks, replicas)
    least = min(
        len(Placement(order, tuple(hosts[slot] for slot in order), ranks).split)
        for order in itertools.permutations(range(len(hosts)), ranks * replicas)
    )
    assert len(found.split) == least
    assert (found.problem is None) == (least == 0)


@settings(max_examples=60)
@given(clusters())
def test_what_is_in_order_stays_in_order(cluster) -> None:
    hosts, ranks, replicas = cluster
    found = place_replicas(sorted(hosts), ranks, replicas)
    if not found.split:
        assert list(found.slots) == sorted(found.slots)


@rows(
    "hosts, ranks, replicas, slots",
    ("abab", 2, 2, (0, 2, 1, 3)),
    ("aaaabbbb", 2, 3, (0, 1, 2, 3, 4, 5)),
    ("aaabbb", 2, 2, (0, 1, 3, 4)),
    ("aaaabbbbcccc", 6, 2, (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 6, 7)),
    ("abcc", 2, 2, (2, 3, 0, 1)),
)
def test_by_hand(hosts: str, ranks: int, replicas: int, slots: tuple[int, ...]) -> None:
    assert place_replicas(hosts, ranks, replicas).slots == slots


def test_what_cannot_be_is_one_sentence() -> None:
    problem = place_replicas("aaabbb", 2, 3).problem
    assert problem is not None
    assert problem.startswith("Replica 2 of 2 ranks is spread over the hosts a, b, so that more")
    assert place_replicas("aabb", 2, 2).problem is None


def test_exchanges_cross_the_links_between_the_hosts_of_peers() -> None:
    assert crossed_links("aabb", (0, 2)) == (("a", "b"),)
    assert crossed_links("aabb", (0, 1)) == ()
    assert crossed_links("abca", (0, 1, 2, 3)) == (("a", "b"), ("a", "c"), ("b", "c"))
