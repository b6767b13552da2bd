"""What all tests share."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.circles import ROOT, SuitePlugin
from tests.processes import nothing_left_behind
from tests.resumed import plugin_of
from tests.scheduling import GroupScheduling, order
from tests.seconds import SecondsPlugin

if TYPE_CHECKING:
    from xdist.remote import Producer

    from mimokit.cluster import EngineCluster
    from tests.shared_cluster import SharedCluster


# jsonschema, which nbformat and altair import, would parse a grammar of URIs for 0.8 s of CPU, and
# load calendars; no schema here has such formats.
for of_formats in ("rfc3987_syntax", "rfc3986_validator", "isoduration"):
    sys.modules.setdefault(of_formats, None)  # type: ignore[arg-type]
gc.disable()  # while the tests are imported: nothing of that is garbage

settings.register_profile("any machine", deadline=None)  # a busy one takes ten times as long
settings.load_profile("any machine")
# Whose constants are drawn: it would resolve the paths of all modules of Python and of the tests.
PRODUCT = tuple(f"{ROOT / folder}/" for folder in ("mimokit", "widgets", "benchmarks"))
providers.is_local_module_file = lambda file: file.startswith(PRODUCT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two ways in which make takes the tests."""
    group = parser.getgroup("mimokit")
    group.addoption("--suite", action="store_true", help="what `make test` takes: tests/circles.py")
    group.addoption("--go-on", action="store_true", help="a run that was cut off: tests/resumed.py")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the seconds of all tests, and choose them as asked."""
    config.pluginmanager.register(SecondsPlugin(config))
    if config.option.suite:
        config.pluginmanager.register(SuitePlugin())
    if config.option.go_on:
        config.pluginmanager.register(plugin_of(config))


def pytest_collection_finish() -> None:
    """Leave out of all later garbage collections what was imported: it would be most of them."""
    gc.freeze()
    gc.enable()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Spread the tests over the workers of `--numprocesses`."""
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the groups that take longest, so that all workers end together."""
    items.sort(key=lambda item: order(item.nodeid.split("::")[0]))


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let interrupts interrupt: a shell that starts the tests behind it has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left() -> Iterator[None]:
    """Every process that the tests have started ends with them."""
    with nothing_left_behind():
        yield


@pytest.fixture(scope="session")
def shared_cluster(_nothing_left: None) -> Iterator[SharedCluster]:
    """Eight engines for the whole session, started by the first test that asks for them."""
    from tests.shared_cluster import SharedCluster

    shared = SharedCluster(n=8)
    yield shared
    shared.close()


@pytest.fixture
def cluster(
    shared_cluster: SharedCluster, request: pytest.FixtureRequest
) -> Iterator[EngineCluster]:
    """Eight engines, idle; what the test leaves running on them is ended and fails it."""
    yield shared_cluster.get()
    shared_cluster.take_back(request.node.nodeid)
