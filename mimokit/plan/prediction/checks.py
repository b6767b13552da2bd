"""What is refused before anything is predicted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mimokit.config.problems import Problem
from mimokit.plan.hardware import Hardware
from mimokit.plan.names import unknown_name
from mimokit.plan.prediction.layout import Layout
from mimokit.plan.prediction.workload import Workload

SIZES = ("tensor", "pipeline", "virtual", "context", "expert", "data", "micro_batch", "instances")
"""Fields of `ParallelSizes` that are counts."""


def check_precision(hardware: Hardware, workload: Workload) -> None:
    """Refuse a precision that the hardware has not.

    Raises:
        ConfigError: with those it has.
    """
    if workload.precision not in hardware.precisions:
        raise unknown_name("Precision", workload.precision, hardware.precisions)


def misplaced(encoders: list[str], layout: Layout) -> Iterator[Problem]:
    """Yield what is wrong with the names and sizes of a layout's modules."""
    if not layout.modules:
        yield _layout_problem("layout", "it has sizes of no module; give every module its sizes")
        return
    for name in encoders:
        if name not in layout.modules or name == layout.language:
            yield _layout_problem(name, "the layout has no sizes for it")
    for name in list(layout.modules)[:-1]:
        if name not in encoders:
            known = ", ".join(encoders) or "none"
            yield _layout_problem(name, f"the model has no such encoder; it has {known}")
    for name, sizes in layout.modules.items():
        for field, value in vars(sizes).items():
            least = np.min(value)
            if field in SIZES and not least > 0:
                yield _layout_problem(name, f"{field} is {least}; it must be above 0")


def _layout_problem(module: str, what: str) -> Problem:
    return Problem(module, "layout", None, f"Module '{module}': {what}.")
