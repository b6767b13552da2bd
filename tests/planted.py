"""Plant a fault on the ranks of a cluster, for as long as a test looks at it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests import seams

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

FEWER_MEASUREMENTS = {
    seams.REPEATS: 2,
    seams.SECONDS_PER_SIZE: 0.01,
    seams.CPU_ROWS: (64, 256),
    seams.CPU_WIDTHS: (64, 128, 256),
}
"""A calibration that measures everything, but less often than one whose figures count, and smaller:
a processor without instructions for bf16 takes a second for 1,024 rows of 512."""


def replacing(changed: Callable[..., Any]) -> Callable[..., Any]:
    """Make what `planted` takes of a function that is given the original and its arguments.

    What it is given before the original is bound with `partial`.
    """

    @functools.wraps(changed)
    def make(*given: Any) -> Any:
        return lambda *args, **named: changed(*given, *args, **named)

    return make


@contextlib.contextmanager
def measured_less_often(cluster: EngineCluster, ranks: int = 8) -> Iterator[None]:
    """Let ranks repeat the measurements of a calibration less often."""
    with contextlib.ExitStack() as stack:
        for name, count in FEWER_MEASUREMENTS.items():
            stack.enter_context(planted(cluster, name, lambda _, count=count: count, ranks))
        yield


@contextlib.contextmanager
def planted(
    cluster: EngineCluster, target: str, make: Callable[[Any], Any], world_size: int
) -> Iterator[None]:
    """Replace a function or method on every rank of a world, and put it back at the end.

    Args:
        cluster: whose ranks.
        target: the full name, from `tests/seams.py`.
        make: takes the original, returns what takes its place; runs on the rank.
        world_size: how many ranks get it.

    Raises:
        AssertionError: if the block leaves a run in progress or a stepper open.
    """
    from tests.shared_cluster import end_what_is_left, what_is_left

    cluster.run(_plant, target, make, world_size=world_size)
    try:
        yield
    finally:
        left = what_is_left(cluster) + end_what_is_left(cluster)
        cluster.run(_mend, target, world_size=world_size)
    assert not left, f"the block with a planted {target} left {' and '.join(left)}"


def _plant(target: str, make: Callable[[Any], Any]) -> None:
    owner, name = find(target)
    # Kept next to the replacement: runs of a user's code import the modules of tests afresh.
    assert _kept(name) not in vars(owner), f"{target} is replaced already"
    original = vars(owner)[name]
    _check_not_copied(owner, name, original)
    setattr(owner, _kept(name), original)
    setattr(owner, name, make(original))


def _mend(target: str) -> None:
    owner, name = find(target)
    # An engine that was started after the planting has the original.
    if _kept(name) in vars(owner):
        replacement = vars(owner)[name]
        setattr(owner, name, vars(owner)[_kept(name)])
        delattr(owner, _kept(name))
        _check_not_copied(owner, name, replacement)


def _check_not_copied(owner: Any, name: str, function: Any) -> None:
    """Reject a method that a subclass has wrapped, as torch does with `step` of an optimizer.

    The subclass would go on with the wrapped one, whatever its base class has by then.
    """
    below = list(owner.__subclasses__()) if inspect.isclass(owner) else []
    while below:
        kind = below.pop()
        below.extend(kind.__subclasses__())
        wrapped = inspect.unwrap(vars(kind).get(name), stop=lambda one: one is function)
        assert wrapped is not function, (
            f"{kind.__name__} has a wrapper of {owner.__name__}.{name}, which stays what it is; "
            "plant the fault in a method that it calls"
        )


def _kept(name: str) -> str:
    return f"{name}, before the planting"


def find(target: str) -> tuple[Any, str]:
    """Return the module or class that holds the target, and the name it has there."""
    path, _, name = target.rpartition(".")
    try:
        return importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, kind = path.rpartition(".")
        return getattr(importlib.import_module(module), kind), name
