"""Give back what a run has used, so that the next one finds the memory free."""

from __future__ import annotations

import ctypes
import gc
import sys


def release() -> None:
    """Free objects in reference cycles, and return what allocators keep for later.

    A model is full of cycles, and each of its process groups keeps threads that poll.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    _trim()


def _trim() -> None:
    """Have the C library return free memory to the system (glibc; elsewhere nothing)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
