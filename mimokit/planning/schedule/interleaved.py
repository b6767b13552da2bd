"""Simulates an interleaved pipeline, in which every stage has several chunks of layers.

The order is Megatron's (arXiv 2104.04473, section 2.2): micro-batches come in rounds, one
micro-batch per stage, each round through all chunks of a stage; after
`2 (p - 1 - stage) + (v - 1) p` forwards a stage alternates. Encoders have no fixed order: their
stages compute whatever is ready first, so that `simulate`, which needs the order, does not apply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """One computation."""

    module: str
    stage: int
    chunk: int
    micro_batch: int
    backward: bool


@dataclass(frozen=True)
class Branch:
    """An encoder on separate ranks, before the first stage.

    Attributes:
        name: of the module.
        stages: of its pipeline, which is not interleaved.
        forward: seconds of one stage and micro-batch.
        backward: the same.
    """

    name: str
    stages: int
    forward: float
    backward: float


@dataclass(frozen=True)
class Interleaved:
    """The pipeline to simulate.

    Attributes:
        name: of the language model.
        chunks: of each stage.
        micro_batches: of a step, a multiple of the stages.
        forward: by stage: seconds of one micro-batch through all its chunks.
        backward: the same.
        branches: encoders before it.
    """

    name: str
    chunks: int
    micro_batches: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    branches: tuple[Branch, ...] = ()

    @property
    def stages(self) -> int:
        """Stages of the language model."""
        return len(self.forward)

    @property
    def ahead(self) -> int:
        """Most micro-batches between a forward and a backward of an encoder."""
        return 3 * self.stages + max((branch.stages for branch in self.branches), default=0)


def chunk_order(stage: int, pipeline: Interleaved) -> Iterator[Key]:
    """Yield the computations of a stage of the language model, in order."""
    stages, chunks, name = pipeline.stages, pipeline.chunks, pipeline.name
    whole = pipeline.micro_batches * chunks
    warmup = min(whole, 2 * (stages - 1 - stage) + (chunks - 1) * stages)

    def key(number: int, backward: bool) -> Key:
        turn, place = divmod(number, stages * chunks)
        chunk = place // stages
        micro_batch = turn * stages + place % stages
        return Key(name, stage, chunks - 1 - chunk if backward else chunk, micro_batch, backward)

    yield from (key(number, False) for number in range(warmup))
    for number in range(whole - warmup):
        yield key(warmup + number, False)
        yield key(number, True)
    yield from (key(number, True) for number in range(whole - warmup, whole))


def on_the_clock(pipeline: Interleaved) -> dict[Key, tuple[float, float]]:
    """Return when each computation begins and ends; messages take no time."""
    orders = [list(chunk_order(stage, pipeline)) for stage in range(pipeline.stages)]
    done: dict[Key, tuple[float, float]] = {}
    free: dict[tuple[str, int], float] = {}
    counted: Counter[tuple[str, int, bool]] = Counter()
    places = [0] * pipeline.stages
    while True:
        ready = [own[at] for own, at in zip(orders, places, strict=True) if at < len(own)]
        ready += [key for branch in pipeline.branches for key in _next(branch, pipeline, counted)]
        starts = [
            (max(free.get(key[:2], 0.0), begin), not key.backward, key)
            for key in ready
            if (begin := _begin(key, pipeline, done)) is not None
        ]
        if not starts:
            return done
        start, _, key = min(starts)
        done[key] = (start, start + _seconds(key, pipeline))
        free[key[:2]] = done[key][1]
        if key.module == pipeline.name:
            places[key.stage] += 1
        else:
            counted[key.module, key.stage, key.backward] += 1


def _next(
    branch: Branch, pipeline: Interleaved, counted: Mapping[tuple[str, int, bool], int]
) -> Iterator[Key]:
    """Yield the next forward and the next backward of every stage of an encoder."""
    for stage in range(branch.stages):
        forward, backward = (counted.get((branch.name, stage, way), 0) for way in (False, True))
        if backward < pipeline.micro_batches:
            yield Key(branch.name, stage, 0, backward, True)
        if forward < pipeline.micro_batches and forward - backward < pipeline.ahead:
            yield Key(branch.name, stage, 0, forward, False)


def _begin(key: Key, pipeline: Interleaved, done: dict[Key, tuple[float, float]]) -> float | None:
    """Return when all that a computation waits for is done; None: it is not done yet."""
    ends = [done.get(other) for other in _before(key, pipeline)]
    if any(end is None for end in ends):
        return None
    return max((end[1] for end in ends if end is not None), default=0.0)


def _before(key: Key, pipeline: Interleaved) -> Iterator[Key]:
    """Yield the computations that a computation waits for."""
    name, stage, chunk, micro_batch, backward = key
    if backward:
        yield Key(name, stage, chunk, micro_batch, False)
    branch = next((each for each in pipeline.branches if each.name == name), None)
    last = (pipeline.stages if branch is None else branch.stages) - 1
    step = 1 if backward else -1
    if 0 <= stage + step <= last:
        yield Key(name, stage + step, chunk, micro_batch, backward)
    elif branch is not None:
        if backward:
            yield Key(pipeline.name, 0, 0, micro_batch, True)
    elif 0 <= chunk + step < pipeline.chunks:
        yield Key(name, 0 if backward else last, chunk + step, micro_batch, backward)
    elif not backward:
        for each in pipeline.branches:
            yield Key(each.name, each.stages - 1, 0, micro_batch, False)


def _seconds(key: Key, pipeline: Interleaved) -> float:
    branch = next((each for each in pipeline.branches if each.name == key.module), None)
    if branch is not None:
        return branch.backward if key.backward else branch.forward
    seconds = pipeline.backward if key.backward else pipeline.forward
    return seconds[key.stage] / pipeline.chunks
