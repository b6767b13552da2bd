"""The peak of a GPU by the name that CUDA gives it, for ranks, which import no more of GPUs."""

import json
import re
from pathlib import Path

from mimokit.config.runtime import PRECISION_OF_RUNS

_SHIPPED = Path(__file__).parent / "hardware" / "gpus"
_OTHER_BOARDS = re.compile(r"\b(h100|h200)\b.*\b(pcie|nvl)\b")
"""GPUs of the same name whose peak is not that of the shipped hardware, which is SXM."""


def peak_of_device(name: str | None, precision: str | None = None) -> float | None:
    """Return the FLOP/s of a GPU at most.

    Args:
        name: as CUDA reports it, such as "NVIDIA H100 80GB HBM3".
        precision: of matrix products; None: that of runs.

    Returns:
        None without a GPU, or if none of that name is among the shipped hardware.
    """
    words = (name or "").lower()
    if _OTHER_BOARDS.search(words):
        return None
    for file in sorted(_SHIPPED.glob("*.json")):
        if re.search(rf"\b{re.escape(file.stem)}\b", words):
            peaks: dict[str, float] = json.loads(file.read_text())["peak_flops"]
            return peaks.get(precision or PRECISION_OF_RUNS)
    return None
