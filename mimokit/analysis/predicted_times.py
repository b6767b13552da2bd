"""A predicted step on cores that ranks share, as a table that a trace can be laid over."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from mimokit.prediction.local_cpu import SharedPrediction, Span
from mimokit.step_kinds import MODULE_PHASES

COLUMNS = ("rank", "name", "module", "microbatch", "start", "stop")


def predicted_steps(prediction: SharedPrediction) -> pd.DataFrame:
    """Return what every rank is predicted to do when, waiting included.

    Columns are those of `traced_iteration` that charts need: rank, name, module, microbatch, start
    and stop (seconds from the begin of the step). Module and micro-batch are None but for forward
    and backward passes, which a rank does in the order of the micro-batches.
    """
    passes: Counter[tuple[int, Span]] = Counter()
    rows: list[tuple[object, ...]] = []
    for one in sorted(prediction.spans, key=lambda span: (span.rank, span.start)):
        if one.span.kind not in MODULE_PHASES:
            rows.append((one.rank, one.span.kind, None, None, one.start, one.stop))
            continue
        number = passes[one.rank, one.span]
        passes[one.rank, one.span] += 1
        rows.append((one.rank, one.span.kind, one.span.module, number, one.start, one.stop))
    return pd.DataFrame(rows, columns=list(COLUMNS))
