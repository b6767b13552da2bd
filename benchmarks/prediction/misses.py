"""Where a target is missed and which effect is likely why, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.gains import Gain
from benchmarks.prediction.predicted import predict_parts
from benchmarks.prediction.score import NOISE, Order, Score

EFFECTS: Mapping[str, str] = {
    "matrix": "the rate of matrix products of these shapes",
    "attention": "the rate of the attention core at this length",
    "memory": "kernels between products: casts, norms, permuting tokens for experts",
    "tensor": "tensor-parallel collectives and what hides them",
    "context": "passing keys and values around context-parallel ranks",
    "expert": "dispatch to experts and what hides it",
    "host": "what the host takes to launch kernels",
    "pipeline": "sends between stages",
    "bubble": "stages that wait: the tables do not say which layers a stage holds",
    "data": "reducing gradients and gathering weights, and what hides them",
    "optimizer": "the optimizer",
}
"""Part of a predicted step -> what it stands for."""
OUTLIER = 0.2
"""Error above which a row is named by itself."""
SURPLUS = 0.02
"""Share of the step by which a part must be larger in bad rows than in good ones to be blamed."""


def step_misses(score: Score, target: float) -> Iterator[str]:
    """Yield where and why the mean error of some rows is above a target in percent."""
    errors = np.abs(score.errors)
    usual = errors <= OUTLIER
    if usual.any() and not usual.all():
        yield _outliers(score, usual)
    rest = score.errors[usual] if usual.any() else score.errors
    mean, bias = 100 * np.abs(rest).mean(), 100 * rest.mean()
    if mean <= target:
        yield f"{score.name}: without them the mean is {mean:.1f} %, within the target."
        return
    way = "too slow" if bias > 0 else "too fast"
    sided = "throughout" if abs(bias) > 0.8 * mean else "mostly"
    part = likely_part(errors > target / 100, predict_parts(score.rows))
    yield (
        f"{score.name}: predicted {way} {sided} ({bias:+.1f} % on average); likely {EFFECTS[part]}."
    )


def _outliers(score: Score, usual: NDArray[np.bool_]) -> str:
    """Return which rows stand out, and whether another run of the same model does not."""
    odd = [row for row, fine in zip(score.rows, usual, strict=True) if not fine]
    names = sorted({row.label for row in odd})
    others = {row.name for row, fine in zip(score.rows, usual, strict=True) if fine}
    known = all(row.name in others for row in odd)
    why = (
        "the same model is closer in other releases or layouts here, so likely the software of "
        "that release, or a layout printed otherwise than it ran"
        if known
        else "no other row here is of that model"
    )
    shown = "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{score.name}: {len(odd)} of {len(usual)} rows are off by over 20 % ({shown}): {why}."


def likely_part(bad: NDArray[np.bool_], parts: Mapping[str, NDArray[np.float64]]) -> str:
    """Return the part of the step that is most larger in bad rows than in the others.

    The largest part where none is, or where all rows are bad.

    Args:
        bad: rows that are missed.
        parts: part -> its share of each row's predicted step.
    """
    if bad.any() and not bad.all():
        surplus = {name: shares[bad].mean() - shares[~bad].mean() for name, shares in parts.items()}
        most = max(surplus, key=surplus.__getitem__)
        if surplus[most] > SURPLUS:
            return most
    return max(parts, key=lambda name: float(parts[name].mean()))


def order_misses(orders: Sequence[Order], target: float) -> Iterator[str]:
    """Yield which workloads come in another order than measured."""
    low = [one for one in orders if one.spearman < target]
    if not low:
        return
    few = sum(one.layouts < 5 for one in low)
    worst = min(low, key=lambda one: one.spearman)
    faster, slower = worst.swapped
    yield (
        f"{worst.table}: {len(low)} of {len(orders)} workloads are ordered by less than "
        f"{target:g}, {few} of them with 4 layouts, where one swapped pair makes 0.8; lowest is "
        f"{worst.workload} ({worst.layouts} layouts), where '{faster}' was measured faster than "
        f"'{slower}' and is predicted slower{_closeness(worst)}."
    )
    wrong, ties = (sum(getattr(one, name) for one in low) for name in ("wrong", "wrong_ties"))
    enough = sum(one.ties_aside >= target for one in low)
    yield (
        f"{worst.table}: of the {wrong} swapped pairs in them {ties} are ties within noise; with "
        f"ties as predicted {enough} of the {len(low)} would be ordered by {target:g} or more."
    )


def _closeness(order: Order) -> str:
    return ", a tie within noise" if order.apart < NOISE else f" (they are {order.apart:.0%} apart)"


def gain_misses(gains: Sequence[Gain], target: float) -> Iterator[str]:
    """Yield which gains are missed by most."""
    off = sorted(gains, key=lambda one: -abs(one.predicted - one.measured))
    far = [one for one in off if abs(one.predicted - one.measured) > target]
    if far:
        shown = "; ".join(
            f"{one.label} ({one.measured:+.1f} % measured, {one.predicted:+.1f} % predicted)"
            for one in far[:3]
        )
        yield (
            f"gains: {len(far)} of {len(gains)} are off by over {target:g} points, most {shown}; "
            "the paper gives no dimensions of modules and no overlap of communication, and "
            "stand-ins of the same size have neither."
        )
