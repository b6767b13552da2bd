"""Loops that poll are told from loops that work, by looking at them from another thread."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import torch

from mimokit.cluster.standstill import does_nothing
from mimokit.cluster.worker.rounds import LOOKS, Look, _without_an_odd_one
from mimokit.cluster.worker.stack import Place, main_place
from tests.rows import rows

Stop = SimpleNamespace
"""What a loop looks at: `set` is false until it is to end."""


def busy(stop: Stop) -> None:
    while not stop.set:
        pass


def asks_a_function(stop: Stop) -> None:
    event = threading.Event()
    while not (event.is_set() or stop.set):
        pass


def looks_at_the_clock(stop: Stop) -> None:
    late = time.time() + 3600.0
    while not stop.set:
        now = time.time()
        if now > late:
            raise TimeoutError


def sleeps(stop: Stop) -> None:
    tries = 0
    while not stop.set:
        time.sleep(0.01)
        tries += 1


def waits_for_an_item(stop: Stop) -> None:
    items = queue.Queue[int]()
    while not stop.set:
        try:
            items.get(timeout=0.05)
        except queue.Empty:
            continue


def counts(stop: Stop) -> None:
    total = 0
    while not stop.set:
        total += 1


def multiplies_in_place(stop: Stop) -> None:
    model = SimpleNamespace(weight=torch.ones(200, 200))
    while not stop.set:
        model.weight.mul_(1.0)


def adds_again_and_again(stop: Stop) -> None:
    weight = torch.eye(200)
    for _ in itertools.takewhile(lambda _: not stop.set, itertools.repeat(None)):
        weight = weight + 1.0


def gathers_slowly(stop: Stop) -> None:
    parts: list[bytes] = []
    while not stop.set:
        time.sleep(0.01)
        parts.append(b"")


def goes_along(stop: Stop) -> None:
    node = first = SimpleNamespace(value="a")
    for _ in range(100_000):  # two looks hardly ever find it at the same place
        node.next = SimpleNamespace(value="a")
        node = node.next
    node.next = first
    while not stop.set:
        node = node.next


def follows_other_ranks(stop: Stop) -> None:
    work = SimpleNamespace(is_completed=lambda: stop.set)
    while not work.is_completed():
        time.sleep(0.001)


def matrix_product(stop: Stop) -> None:
    matrix = torch.ones(500, 500)
    while not stop.set:
        torch.linalg.matrix_power(matrix, 2**12)


POLLING = (busy, asks_a_function, looks_at_the_clock, sleeps, waits_for_an_item)
WORKING = (
    *(counts, multiplies_in_place, adds_again_and_again, gathers_slowly, goes_along),
    *(follows_other_ranks, matrix_product),
)


def two_looks(loop: Callable[[Stop], None]) -> Iterator[Place]:
    """Run a loop in the main thread, and look at it twice from another one.

    It has run between the looks, also on a busy machine. The work of other threads is left out:
    those of earlier tests do some in this process.
    """
    stop = SimpleNamespace(set=False)
    clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)

    def look() -> list[Place]:
        try:
            time.sleep(0.05)
            first, ran = main_place(), time.clock_gettime(clock)
            time.sleep(0.2)
            while time.clock_gettime(clock) == ran:
                time.sleep(0.01)
            return [first, main_place()]
        finally:
            stop.set = True

    with ThreadPoolExecutor(1) as threads:
        looked = threads.submit(look)
        loop(stop)
        yield from (replace(place, work_seconds=0.0) for place in looked.result())


@rows("loop", *POLLING)
def test_a_loop_in_which_nothing_changesdoes_nothing(loop: Callable[[Stop], None]) -> None:
    """Ranks are asked again and again: where all looks are at one call, it may be at work there."""
    pairs = (tuple(two_looks(loop)) for _ in range(8))
    seen = next((now for before, now in pairs if does_nothing(before, now)), None)
    assert seen is not None
    assert loop.__name__ in seen.stack


@rows("loop", *WORKING)
def test_a_loop_that_works_or_waits_for_work_is_not_accused(loop: Callable[[Stop], None]) -> None:
    before, now = two_looks(loop)
    assert not does_nothing(before, now)


def test_a_thread_seen_once_between_two_computations_does_not_go_round() -> None:
    computes, between = Look(((1, 10),), False), Look(((1, 4),), True)
    looks = [computes] * LOOKS
    assert set(_without_an_odd_one([between, *looks[1:]])) == {computes}
    assert set(_without_an_odd_one([*looks[1:], between])) == {computes}
    assert set(_without_an_odd_one([between, between, *looks[2:]])) == {computes, between}


def test_what_a_loop_keeps_of_its_own_names_stays() -> None:
    kept: list[dict[str, object]] = []

    def keeps(stop: Stop) -> None:
        weight = torch.ones(2)
        kept.append(locals())
        while not stop.set:
            weight.mul_(1.0)

    list(two_looks(keeps))
    assert kept[0].keys() >= {"stop", "weight"}
