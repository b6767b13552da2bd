"""The work of every replica in drawn global batches, in items and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.runtime import BALANCED
from mimokit.prediction.over_samples.policy import Policy
from mimokit.prediction.sample_loads import SampleLoads
from mimokit.units import counted

Floats = NDArray[np.float64]
DEALT_TOGETHER = 256
"""Replicas among which a sample looks for the least loaded, at most."""


@dataclass(frozen=True)
class Replicas:
    """The replicas of the modules of a layout.

    Attributes:
        encoders: encoder -> replicas.
        language: replicas of the language model.
        micro_batches: of a step.
        samples: of a micro-batch, over all replicas.
        shares: encoders whose replicas can share frames: those of images.
    """

    encoders: Mapping[str, int]
    language: int
    micro_batches: int
    samples: int
    shares: frozenset[str] = frozenset()

    @property
    def of_step(self) -> int:
        """Samples of a global batch."""
        return self.micro_batches * self.samples

    @property
    def groups(self) -> int:
        """Sets of replicas of all modules that have the same samples, and wait for each other."""
        return gcd(self.language, *self.encoders.values())


@dataclass(frozen=True)
class BatchLoads:
    """What replicas compute in drawn global batches.

    Attributes:
        items: encoder -> [batches, micro-batches, replicas].
        tokens: of the language model, likewise; None: sequences are padded.
        pairs: sum of squares of the tokens of each sample, likewise.
        moved: encoder whose replicas share frames -> items that the busiest of them sends or
            receives: [batches, micro-batches, 1].
    """

    items: Mapping[str, Floats] = field(repr=False)
    tokens: Floats | None = field(repr=False)
    pairs: Floats | None = field(repr=False)
    micro_batches: int
    moved: Mapping[str, Floats] = field(default_factory=dict, repr=False)

    def evened(self) -> BatchLoads:
        """Return the same batches with equal work in all micro-batches and replicas."""

        def even(values: Floats) -> Floats:
            return np.asarray(values.mean(axis=(1, 2), keepdims=True))

        return replace(
            self,
            items={name: even(values) for name, values in self.items.items()},
            tokens=None if self.tokens is None else even(self.tokens),
            pairs=None if self.pairs is None else even(self.pairs),
            moved={name: np.zeros_like(items) for name, items in self.moved.items()},
        )


def drawn_batches(
    loads: SampleLoads, replicas: Replicas, policy: Policy, batches: int, seed: int
) -> BatchLoads:
    """Return the work of replicas in global batches whose samples are drawn at random.

    The samples do not depend on the layout: layouts with equal global batches see the same ones.
    """
    rows = drawn_rows(len(loads.tokens), replicas, batches, seed)
    if isinstance(policy.packing, int):
        return _packed_to(policy.packing, loads, rows.reshape(batches, -1), replicas)
    if policy.order == BALANCED:
        rows = _balanced(loads, rows, replicas, policy)
    items = {
        name: _dealt(loads.items[name][rows], count) for name, count in replicas.encoders.items()
    }
    moved = {}
    for name in replicas.shares if policy.shared_frames else ():
        read, items[name] = items[name], _shared(items[name])
        moved[name] = np.abs(read - items[name]).max(axis=-1, keepdims=True)
    if policy.packing == "padded":
        return BatchLoads(items, None, None, replicas.micro_batches, moved)
    tokens = loads.tokens[rows]
    return BatchLoads(
        items,
        _dealt(tokens, replicas.language),
        _dealt(tokens**2, replicas.language),
        replicas.micro_batches,
        moved,
    )


def drawn_rows(samples: int, replicas: Replicas, batches: int, seed: int) -> NDArray[np.int64]:
    """Return rows of a mix that are drawn: [batches, micro-batches, samples of a micro-batch]."""
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, samples, size=(batches, replicas.of_step))
    return drawn.reshape(batches, replicas.micro_batches, replicas.samples)


def _dealt(values: Floats, replicas: int) -> Floats:
    """Return [batches, micro-batches, replicas] of [batches, micro-batches, samples]."""
    dealt: Floats = values.reshape(*values.shape[:2], replicas, -1).sum(axis=-1)
    return dealt


def _shared(items: Floats) -> Floats:
    """Return the items of replicas that share them: whole ones, one more on some in turn."""
    replicas = items.shape[-1]
    total = items.sum(axis=-1, keepdims=True)
    whole = total // replicas
    begin = np.cumsum(total, axis=1) - total  # else the first replicas would have all that is left
    place = (np.arange(replicas) - begin) % replicas
    return np.asarray(whole + np.clip(total - whole * replicas - place, 0.0, 1.0))


def _balanced(
    loads: SampleLoads, rows: NDArray[np.int64], replicas: Replicas, policy: Policy
) -> NDArray[np.int64]:
    """Return samples dealt to replicas, the largest first, each to the least loaded with room.

    `order_samples`, which runs use, exchanges samples behind that; it comes closer to the bound by
    less than a hundredth. Where dealing gains nothing the order stays.
    """
    works = [(loads.items[name], count) for name, count in replicas.encoders.items()]
    if policy.packing == "row":
        works.append((loads.tokens, replicas.language))
    works = [(work / work.mean(), count) for work, count in works if work.any()]
    if not works:
        return rows
    key = np.sum([work for work, _ in works], axis=0)
    finest = max(count for _, count in works)
    dealt = np.take_along_axis(rows, _dealing(key[rows], finest), axis=-1)

    def slowest(chosen: NDArray[np.int64]) -> Floats:
        each = [_dealt(work[chosen], count).max(axis=-1) for work, count in works]
        return np.asarray(np.sum(each, axis=0))

    return np.where((slowest(dealt) < slowest(rows))[..., None], dealt, rows)


def _dealing(key: Floats, replicas: int) -> NDArray[np.int64]:
    """Return the order of samples in which replicas have about the same sum of a key.

    Many replicas deal in groups: each sample looks for the least loaded of its group alone.
    """
    *outer, samples = key.shape
    together = max(n for n in range(1, DEALT_TOGETHER + 1) if replicas % n == 0)
    groups, room = replicas // together, samples // replicas
    flat = key.reshape(-1, samples // groups)
    largest = np.argsort(-flat, axis=1, kind="stable")
    order, every = np.empty_like(largest), np.arange(len(flat))
    order[:, ::room] = largest[:, :together]  # the first of each replica, whose sums are all 0
    sums = np.take_along_axis(flat, largest[:, :together], axis=1)
    counts = np.ones(sums.shape, dtype=np.int64)
    for sample in largest.T[together:]:
        to = np.where(counts < room, sums, np.inf).argmin(axis=1)
        order[every, to * room + counts[every, to]] = sample
        counts[every, to] += 1
        sums[every, to] += flat[every, sample]
    begins = np.arange(groups)[:, None] * flat.shape[1]
    return (order.reshape(-1, groups, flat.shape[1]) + begins).reshape(*outer, samples)


def _packed_to(
    most: int, loads: SampleLoads, rows: NDArray[np.int64], replicas: Replicas
) -> BatchLoads:
    """Return the work of rows of at most so many tokens, each a micro-batch of a replica.

    Encoders share the items of a row evenly if they have more replicas than the language model.
    """
    batches, samples = rows.shape
    each = rows.reshape(batches, replicas.language, samples // replicas.language)
    tokens = loads.tokens[each]
    place = _filled(tokens, most)
    count = int(place.max()) + 1

    def summed(values: Floats) -> Floats:
        sums = np.zeros((batches, count, replicas.language))
        batch, replica, _ = np.indices(values.shape)
        np.add.at(sums, (batch, place, replica), values)
        return sums

    return BatchLoads(
        {
            name: _regrouped(summed(loads.items[name][each]), number)
            for name, number in replicas.encoders.items()
        },
        summed(tokens),
        summed(tokens**2),
        count,
    )


def _filled(tokens: Floats, most: int) -> NDArray[np.int64]:
    """Return the row of each sample: the next one where it does not fit into the last."""
    place = np.zeros(tokens.shape, dtype=np.int64)
    used, row = np.zeros(tokens.shape[:-1]), np.zeros(tokens.shape[:-1], dtype=np.int64)
    for sample in range(tokens.shape[-1]):
        fits = used + tokens[..., sample] <= most
        row = np.where(fits, row, row + 1)
        used = np.where(fits, used, 0.0) + tokens[..., sample]
        place[..., sample] = row
    return place


def _regrouped(values: Floats, replicas: int) -> Floats:
    """Return the work of another number of replicas, of which one number divides the other."""
    have = values.shape[-1]
    if replicas >= have:
        return np.asarray(np.repeat(values, replicas // have, axis=-1) * (have / replicas))
    return np.asarray(values.reshape(*values.shape[:-1], replicas, -1).sum(axis=-1))


def check_divisible(replicas: Replicas) -> None:
    """Refuse encoders whose replicas cannot share the samples of a micro-batch evenly."""
    refuse_if_any(
        Problem(
            "model",
            f"module_parallelisms.{name}.data_parallel",
            count,
            f"Prediction over samples: {counted(count, 'replica')} of encoder '{name}' cannot "
            f"share the {counted(replicas.samples, 'sample')} of a micro-batch evenly; give it a "
            "data_parallel that divides them, or micro-batches of more samples.",
        )
        for name, count in replicas.encoders.items()
        if replicas.samples % count
    )
