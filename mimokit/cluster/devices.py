"""Which GPUs engines see, and on which of them a rank computes."""

import os
from pathlib import Path

from mimokit.versions import version_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = {VISIBLE: ""}
"""The environment of an engine that computes on the CPU, whatever GPUs its host has."""


def gpu_number(place: int, visible: int) -> int:
    """Return which of the GPUs that a rank sees is its device."""
    return place % visible


def gpus_of_host() -> int:
    """Count the GPUs that engines of this process would see, without opening one."""
    torch = version_of("torch")
    if torch is None or torch.endswith("+cpu"):
        return 0
    chosen = os.environ.get(VISIBLE)
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
