"""A predicted step on cores that ranks share, as a table that a trace can be laid over."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from mimokit.prediction.local_cpu import SharedPrediction

COLUMNS = ("rank", "name", "module", "microbatch", "start", "stop")


def predicted_steps(prediction: SharedPrediction) -> pd.DataFrame:
    """Return what every rank is predicted to do when, waiting included.

    Columns are those of `traced_iteration` that charts need: rank, name, module, microbatch, start
    and stop (seconds from the begin of the step). Module and micro-batch are None but for forward
    and backward passes, which a rank does in the order of the micro-batches.
    """
    passes: Counter[tuple[int, str]] = Counter()
    rows: list[tuple[object, ...]] = []
    for span in sorted(prediction.spans, key=lambda one: (one.rank, one.start)):
        module, _, way = span.label.rpartition(" ")
        if way not in ("forward", "backward"):
            rows.append((span.rank, span.label, None, None, span.start, span.stop))
            continue
        number = passes[span.rank, span.label]
        passes[span.rank, span.label] += 1
        rows.append((span.rank, way, module, number, span.start, span.stop))
    return pd.DataFrame(rows, columns=list(COLUMNS))
