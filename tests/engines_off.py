"""`pytest -p tests.engines_off`: leaves out what starts engines, a browser or a notebook.

Tests that take the shared engines are deselected. One that starts others is skipped as it does so.
"""

import sys
from typing import Any

import pytest

FIXTURES = {"cluster", "shared_cluster", "chromium"}
FOLDERS = ("tests/browser/", "tests/notebooks/")
STARTERS = (
    "mimokit.cluster.local.server",
    "make.notebooks.execute",
    "torch.distributed.run",
    "ipyparallel.controller",
    "ipykernel",
    "EngineCluster(",
)
"""What commands say that start engines or kernels, in an argument."""


def pytest_configure() -> None:
    """Look at all processes that are started from now on."""
    sys.addaudithook(_skip_starter)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what takes the shared engines."""
    left_out = [item for item in items if _takes_engines(item)]
    items[:] = [item for item in items if not _takes_engines(item)]
    config.hook.pytest_deselected(items=left_out)


def _takes_engines(item: pytest.Item) -> bool:
    in_folder = item.nodeid.startswith(FOLDERS)
    return in_folder or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def _skip_starter(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    said = " ".join(map(str, arguments[1]))
    for starter in STARTERS:
        if starter in said:
            pytest.skip(f"starts {starter}")
