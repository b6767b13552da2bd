"""The map of the best mode: which one, how far ahead, and what is no more than a tie."""

from typing import Any

import pandas as pd
import pytest

from mimokit import charts
from mimokit.charts import _palette, _renderer
from tests.charts.pictures import faults

CELLS: dict[tuple[str, int], dict[str, float]] = {
    ("small", 1): {"homogeneous": 1.02, "colocated": 1.0, "heterogeneous": 1.5},
    ("small", 64): {"homogeneous": 1.1, "colocated": 1.0, "heterogeneous": 1.101},
    ("large", 1): {"heterogeneous": 90.0},
    ("large", 64): {"colocated": 60.0, "heterogeneous": 50.0},
}
SHOWN = {
    ("small", 1): ("homogeneous, tie", "tie", "1.00 s ± 10%"),
    ("small", 64): ("colocated, ahead", "+10%", "1.00 s ± 10%"),
    ("large", 1): ("heterogeneous", "no other fits", "90.00 s ± 10%"),
    ("large", 64): ("heterogeneous", "+20%", "50.00 s ± 10%"),
}
TABLE = pd.DataFrame(
    {"encoder": encoder, "images": images, "mode": mode, "seconds": seconds,
     "low": 0.9 * seconds, "high": 1.1 * seconds}
    for (encoder, images), modes in CELLS.items() for mode, seconds in modes.items()
)  # fmt: skip


def cells(table: pd.DataFrame) -> dict[tuple[str, int], dict[str, Any]]:
    (rows,) = charts.mode_map(table, "encoder", "images").to_dict()["datasets"].values()
    return {(row["encoder"], row["images"]): row for row in rows}


def test_a_cell_has_the_best_mode_and_how_far_it_is_ahead() -> None:
    found = cells(TABLE)
    told = {key: (row["shade"], row["ahead"], row["step"]) for key, row in found.items()}
    assert told == SHOWN
    assert found["large", 1]["colocated"] == "does not fit"
    assert found["large", 64]["colocated"] == "60.00 s (54.00 s to 66.00 s)"


def test_a_mode_that_becomes_faster_takes_its_cell() -> None:
    faster = TABLE.copy()
    faster.loc[faster["mode"] == "colocated", "seconds"] /= 2
    assert cells(faster)["large", 64]["shade"] == "colocated"


def test_paler_is_less_sure_and_every_text_can_be_read() -> None:
    spec = charts.mode_map(TABLE, "encoder", "images").to_dict()
    scale = spec["layer"][0]["encoding"]["fill"]["scale"]
    fills = dict(zip(scale["domain"], scale["range"], strict=True))
    for mode in _palette.MODE_COLORS:
        shades = [fills[f"{mode}, tie"], fills[f"{mode}, ahead"], fills[mode]]
        assert sorted(shades, key=_palette.luminance, reverse=True) == shades
    assert (
        faults(_renderer.bundle_of(charts.mode_map(TABLE, "encoder", "images"))["image/svg+xml"])
        == []
    )


def test_a_table_without_bands_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"The chart mode_map needs a table with the column high\."
    ):
        charts.mode_map(TABLE.drop(columns="high"), "encoder", "images")
