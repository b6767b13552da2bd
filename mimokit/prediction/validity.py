"""What is refused before anything is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np

from mimokit.architecture.modules import Model
from mimokit.axes import COUNT_FIELDS
from mimokit.config.errors import ConfigError, Problem, refuse_if_any, unknown_name
from mimokit.config.runtime import DeploymentMode
from mimokit.prediction.divisions import indivisible
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.workload import Workload, branches_of, language_of


def check_precision(hardware: Hardware, workload: Workload) -> None:
    """Refuse a precision that the hardware has not.

    Raises:
        ConfigError: with those it has.
    """
    if workload.precision not in hardware.precisions:
        raise unknown_name("Precision", workload.precision, hardware.precisions)


def check_layout(model: Model, layout: Layout, workload: Workload) -> None:
    """Refuse a layout that cannot be built, before anything is predicted of it.

    Raises:
        ConfigError: an unknown mode or module, sizes that are no whole numbers of at least 1, or
            sizes that what they cut cannot be divided by.
    """
    modes = get_args(DeploymentMode)
    if layout.mode not in modes:
        raise unknown_name("Mode", layout.mode, modes)
    encoders = [branch.name for branch in branches_of(model)]
    refuse_if_any(misplaced(encoders, layout))
    known = (*encoders, language_of(model).name)
    for name in (*workload.inputs, *workload.frozen):
        if name not in known:
            raise unknown_name("Module", name, known)
    refuse_if_any(_fractions(layout))
    refuse_if_any(indivisible(model, layout, workload))


def check_price(price: float | None) -> None:
    """Refuse a price below nothing.

    Raises:
        ConfigError: the price is negative or no number.
    """
    if price is not None and not 0 <= price < np.inf:
        sentence = f"Price per GPU-hour: it is {price}; it must be a number of at least 0."
        raise ConfigError([Problem("price", "price_per_gpu_hour", price, sentence)])


def misplaced(encoders: list[str], layout: Layout) -> Iterator[Problem]:
    """Yield what is wrong with the names and sizes of a layout's modules."""
    if not layout.modules:
        yield _layout_problem("layout", "it has sizes of no module; give every module its sizes")
        return
    for name in encoders:
        if name not in layout.modules or name == layout.language:
            yield _layout_problem(name, "the layout has no sizes for it")
    if layout.language not in layout.modules:
        yield _layout_problem(layout.language, "it is the language module, but it has no sizes")
    for name in layout.encoders:
        if name not in encoders:
            known = ", ".join(encoders) or "none"
            yield _layout_problem(name, f"the model has no such encoder; it has {known}")
    for name, sizes in layout.modules.items():
        for field, value in vars(sizes).items():
            least = np.min(value)
            if field in COUNT_FIELDS and not least > 0:
                yield _layout_problem(name, f"{field} is {least}; it must be above 0")


def _fractions(layout: Layout) -> Iterator[Problem]:
    for name, sizes in layout.modules.items():
        for field in COUNT_FIELDS:
            value = getattr(sizes, field)
            if value % 1:
                yield _layout_problem(name, f"{field} is {value}; it must be a whole number")


def _layout_problem(module: str, what: str) -> Problem:
    return Problem(module, "layout", None, f"Module '{module}': {what}.")
