"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let interrupts interrupt: a shell that starts the tests behind it has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster() -> Iterator[EngineCluster]:
    """Eight engines for the whole session, started by the first test that asks for them."""
    from mimokit.cluster import EngineCluster

    with EngineCluster(n=8, progress=False) as engines:
        yield engines
