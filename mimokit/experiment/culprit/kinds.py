"""Patterns of a fault: what a wrong tensor is instead of the right one, in words."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config import ExperimentConfig
from mimokit.experiment.culprit.arrays import Array, OnRank, assembled
from mimokit.experiment.patterns import CLOSE, close, factor_of, moves_of
from mimokit.planning.seams import Floats
from mimokit.planning.types import LayoutPlan


def kind_of(
    whole: Array,
    parts: Sequence[OnRank],
    sizes: Mapping[str, int],
    stale: Floats | None = None,
    within: float = CLOSE,
    of_samples: bool = True,
) -> str:
    """Return a sentence's end about a tensor that differs; empty if it has no pattern.

    Args:
        stale: a weight as it was before the update; what is told is how its change differs.
        within: share of the largest entry by which an entry may miss a pattern.
        of_samples: its rows are those of samples.
    """
    what = "it"
    if stale is not None:
        what, whole, parts = "its change", *changes(whole, parts, stale)
    actual = assembled(whole, parts)
    for words in _patterns(whole, parts, actual, sizes, what, within, of_samples):
        return words
    return ""


def changes(whole: Array, parts: Sequence[OnRank], stale: Floats) -> tuple[Array, Sequence[OnRank]]:
    """Return what an update has changed."""
    changed = [
        replace(part, values=part.values - stale[np.ix_(part.rows, part.columns)]) for part in parts
    ]
    return replace(whole, values=whole.values - stale), changed


def _patterns(
    whole: Array,
    parts: Sequence[OnRank],
    actual: Floats,
    sizes: Mapping[str, int],
    what: str,
    within: float,
    of_samples: bool,
) -> Iterator[str]:
    right = whole.values
    if np.isnan(actual).all():
        yield "no rank has it"
        return
    if np.isnan(actual).any():
        rows = int(np.isnan(actual).any(1).sum())
        yield f"{rows} of its {len(actual)} rows are not complete on any rank"
        return
    if not np.isfinite(actual).all():
        yield "it is not finite"
        return
    if what == "it" and not actual.any():
        yield "it is 0"
        return
    if what != "it" and np.abs(actual).max() <= CLOSE * np.abs(right).max():
        yield "it is what it was before the update"
        return
    yield from _copies(whole, parts, what, within)
    factor = factor_of(actual, right, within)
    if factor is not None and abs(factor - 1) > within:
        digits = max(2, 1 + round(-math.log10(within)))
        times = f"{factor:.{digits}g} times"
        yield f"{what} is {times} what it should be{_named(factor, sizes, within)}"
    yield from _places(whole, parts, within)
    yield from _shifts(actual, right, within)
    rows = np.abs(actual - right).max(1) > within * np.abs(right).max()
    if 0 < rows.sum() < len(rows) / 2:
        samples = sorted(set(whole.samples[rows].tolist()))
        of = f", of {_listed('sample', samples)}" if of_samples else ""
        yield f"only {rows.sum()} of its {len(rows)} rows differ{of}"


def _copies(whole: Array, parts: Sequence[OnRank], what: str, within: float) -> Iterator[str]:
    groups: dict[tuple[str, bytes, bytes], list[OnRank]] = {}
    for part in parts:
        groups.setdefault((part.share, part.rows.tobytes(), part.columns.tobytes()), []).append(
            part
        )
    for group in groups.values():
        first = group[0]
        if all(_alike(part.values, first.values, within) for part in group[1:]):
            continue
        right = whole.values[np.ix_(first.rows, first.columns)]
        ranks = _listed("rank", [part.rank for part in group])
        unlike = _distinct(group, within)
        together = np.sum([part.values for part in unlike], axis=0)
        if what == "it" and close(together, right, within):  # updates are not added up
            yield f"{ranks} hold summands of it that were not added up"
        elif close(together / len(unlike), right, within):
            yield f"{ranks} hold different values, of which it is the mean"
        else:
            wrong = [part.rank for part in group if not close(part.values, right, within)]
            yield f"{ranks} should hold the same; {_listed('rank', wrong)} hold something else"
        return


def _alike(values: Floats, other: Floats, within: float) -> bool:
    return np.array_equal(values, other) or close(values, other, within)


def _distinct(group: Sequence[OnRank], within: float) -> list[OnRank]:
    distinct: list[OnRank] = []
    for part in group:
        if not any(_alike(part.values, other.values, within) for other in distinct):
            distinct.append(part)
    return distinct


def _places(whole: Array, parts: Sequence[OnRank], within: float) -> Iterator[str]:
    for part, other in itertools.permutations(parts, 2):
        if part.values.shape != other.values.shape:
            continue
        own = whole.values[np.ix_(part.rows, part.columns)]
        of_other = whole.values[np.ix_(other.rows, other.columns)]
        if not close(own, of_other, within) and close(part.values, of_other, within):
            yield f"rank {part.rank} holds the part of rank {other.rank}"
            return


def _shifts(actual: Floats, right: Floats, within: float) -> Iterator[str]:
    for moved in moves_of(actual, right, within=within):
        what = ("rows", "columns")[moved.axis]
        how = f"are shifted by {moved.places}" if moved.places else "are in reverse order"
        yield f"its {what} {how}"


def _named(factor: float, sizes: Mapping[str, int], within: float) -> str:
    words = [
        words
        for name, size in sizes.items()
        for value, words in ((size, name), (1 / size, f"1 / {name}"))
        if size > 1 and abs(factor / value - 1) < within
    ]
    return f", which is {' or '.join(words)}" if words else ""


def _listed(what: str, numbers: Sequence[int]) -> str:
    each = dict.fromkeys(numbers)
    text = ", ".join(map(str, each))
    return f"{what} {text}" if len(each) == 1 else f"{what}s {text}"


def possible_factors(config: ExperimentConfig, plan: LayoutPlan, module: str) -> Mapping[str, int]:
    """Return what a wrong factor may be."""
    names: Sequence[str] = [module] if module in plan.modules else [plan.llm_module_name]
    others = [name for name in plan.modules if name not in names]
    sizes: dict[str, int] = {}
    for name in (*names, *others):
        of_module = config.model.get_parallelism(name)
        for axis in (Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.EXPERT, Axis.PIPELINE):
            size = getattr(of_module, CONFIG_FIELDS[axis]) or 1
            owner = "" if name in names else f" of {name}"
            sizes[f"{CONFIG_FIELDS[axis]}{owner}"] = size
    sizes["num_microbatches"] = plan.batch.num_microbatches
    sizes["samples_per_microbatch"] = plan.batch.samples_per_microbatch
    return sizes
