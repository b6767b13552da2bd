"""What a schedule does, as arrays: every computation and message is a task."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, eq=False)
class Tasks:
    """Computations, worker by worker in order, and then messages, edge by edge.

    Attributes:
        place: task -> index of its stage (a computation) or of its edge (a message).
        kind: task -> place of its kind in `COMPUTATIONS`; a message is forward or backward.
        transfer: whether a task is a message.
    """

    place: Indices
    microbatch: Indices
    kind: Indices
    transfer: NDArray[np.bool_]
