"""What commands that start engines share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mimokit.cluster import EngineCluster

FAILED = 1
"""Exit status of a layout that does not hold, and of a run in which a rank failed."""

Cluster = Annotated[
    str | None,
    typer.Option(help="Cluster file or profile of a running ipyparallel cluster."),
]


@contextmanager
def engines_for(ranks: int, running: str | None) -> Iterator[EngineCluster]:
    """Yield a cluster of so many engines, or a running one."""
    from mimokit.cluster import EngineCluster

    options: dict[str, Any] = {"n": ranks, "progress": False}
    with EngineCluster(**(options if running is None else connection(running))) as cluster:
        yield cluster


def connection(running: str) -> dict[str, Any]:
    """Return how to connect to a running cluster: by its file or its profile."""
    return {"cluster_file" if Path(running).is_file() else "profile": running}


@contextmanager
def failures() -> Iterator[None]:
    """Print why a config was rejected or a rank failed, without mimokit's traceback."""
    from mimokit.cluster import ClusterError
    from mimokit.experiment.prepare import refusals

    with refusals():
        try:
            yield
        except (ClusterError, ValueError, OSError) as error:
            from mimokit.config import ConfigError

            if isinstance(error, ConfigError):
                raise
            typer.echo(" ".join([str(error), *getattr(error, "__notes__", ())]), err=True)
            raise typer.Exit(FAILED) from None
