"""The text of a result on held-out samples, with and without a known chance level."""

import math

from mimokit.experiment.prepare import score_text
from tests.rows import rows


def test_beside_chance() -> None:
    assert score_text(0.897, 0.0137) == "exact match 89.7% on held-out samples, chance 1.4%"


@rows("unknown", None, math.nan)
def test_without_chance(unknown: float | None) -> None:
    assert score_text(0.5, unknown) == "exact match 50.0% on held-out samples"
