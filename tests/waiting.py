"""Waiting for what must come, also on a busy machine."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
