"""Further figures that a model or a strategy reports during a fit; each becomes a column."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

Metrics = dict[str, list[float]]

OWN_COLUMNS = frozenset(
    ("step", "examples_trained", "train_loss", "train_perplexity", "lr", "loss", "perplexity")
)
"""What no metric may be called."""

_collected: list[Metrics] = []


def log_metrics(**values: Any) -> None:
    """Report figures of this step or of this validation, from a model's `forward` or a strategy.

    A value is a number or a tensor of one entry. The mean over micro-batches and nodes becomes a
    column of `train.csv`, during a validation one of `validation.csv`. Outside a fit nothing
    happens.

    Raises:
        ValueError: a metric has the name of a column that the tables have already.
    """
    clash = OWN_COLUMNS & set(values)
    if clash:
        raise ValueError(f"metric {min(clash)!r}: the tables have such a column; rename it")
    if _collected:
        for name, value in values.items():
            number = value.detach() if isinstance(value, Tensor) else value
            _collected[-1][name].append(float(number))


@contextmanager
def collecting() -> Iterator[Metrics]:
    """Collect what is reported in a block."""
    metrics: Metrics = defaultdict(list)
    _collected.append(metrics)
    try:
        yield metrics
    finally:
        _collected.pop()


def means(metrics: Metrics) -> dict[str, float]:
    """Return the mean of each metric."""
    return {name: sum(values) / len(values) for name, values in metrics.items()}
