"""In how many steps tensors are compared, and by how much a right one may differ."""

STEPS = 2
"""The first shows every fault of a step, the second those of what a step leaves behind."""

TOLERANCE = 1e-5
"""Relative difference that is allowed in any case."""

ALLOWED, ALLOWED_WITH_EXPERTS = 5.0, 8.0
"""Times the largest difference between one process and the same from weights that are changed by
a rounding that a layout may differ by. Measured in bf16 in drawn layouts that are right, at most
2.5, and 6.4 of one with experts, where a rounding sends a token to another one; the planted fault
that differs least where it begins, of those that are seen there, by 6.1."""

UNLIKE, ALLOWED_OF_NOISE = 0.9, 3.0
"""No more is allowed, since a tensor that is 0 differs by 1, and one of other numbers by 1.4; but
this times what a rounding changes, where that is most of the tensor."""


def allowed_of(spread: float, times: float = ALLOWED_WITH_EXPERTS) -> float:
    """Return the relative difference that a layout may have where a rounding makes this one.

    Args:
        times: the spread; the larger one where nothing is known of the model.
    """
    return max(TOLERANCE, min(times * spread, max(UNLIKE, ALLOWED_OF_NOISE * spread)))
