"""How far an entry is from the one of one process."""

import numpy as np
import pytest

from mimokit.engine.verify.compare import _relative


@pytest.mark.parametrize("entry", [1.0, 3.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_entry_differs_whether_it_is_smaller_or_larger(entry: float, sign: int) -> None:
    expected, piece = sign * np.array([2.0, 4.0]), sign * np.array([entry, 4.0])
    assert _relative(piece, expected, scale=4.0) == 0.25
    assert _relative(piece, expected, scale=4.0, rounding=0.25) == 0.125
    assert _relative(piece, expected, scale=4.0, rounding=0.5) == 0.0
