"""A comparison that was not run: the second of two ranks holds a tensor of twice the numbers."""

import numpy as np

from mimokit.experiment.culprit.arrays import Array, OnRank
from mimokit.experiment.culprit.measures import Measured
from mimokit.experiment.culprit.report import CulpritReport, Divergence
from mimokit.planning.seams import Seam, SeamPhase

WHOLE = Array(
    np.repeat(np.arange(4), 16), np.tile(np.arange(16), 4), np.arange(32),
    np.random.default_rng(1).normal(size=(64, 32)),
)  # fmt: skip
COLUMNS = np.arange(16), np.arange(16, 32)
PARTS = tuple(
    OnRank(rank, "", np.arange(64), columns, (1 + rank) * WHOLE.values[:, columns])
    for rank, columns in enumerate(COLUMNS)
)
SEAMS = tuple(
    Measured(
        Seam(0, module, f"decoder.layers.{layer}", phase),
        samples=(0, 1) if wrong else (),
        ranks=(1,) if wrong else (),
        difference=0.7 if wrong else 2e-7 * layer,
        allowed=1e-5,
        spread=1e-7,
        by_rank={rank: 0.7 if wrong and rank else 2e-7 * layer for rank in (0, 1)},
    )
    for phase in (SeamPhase.FORWARD, SeamPhase.BACKWARD)
    for module in ("images", "language_module")
    for layer in range(4)
    for wrong in [phase == SeamPhase.BACKWARD and layer > 1]
)
FIRST = next(one for one in SEAMS if one.differs)
CULPRIT = CulpritReport(
    "layout", "one process", 1, SEAMS, (), Divergence(FIRST, 0, "", "", (WHOLE, PARTS))
)
