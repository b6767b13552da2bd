"""`mimokit clusters`: the engines that this user has started on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mimokit.cli.shared import Json, console, failures
from mimokit.tables import Section

if TYPE_CHECKING:
    from mimokit.cluster.local.listing import ClusterState


def clusters(
    end: Annotated[
        list[str] | None,
        typer.Option("--end", help="End the cluster of this name, and what runs on it."),
    ] = None,
    end_all: Annotated[bool, typer.Option("--end-all", help="End all that are listed.")] = False,
    as_json: Json = False,
) -> None:
    """List the clusters that were started on this machine, or end some.

    A name is what EngineCluster(stay=True, name=...) was given.
    """
    from mimokit.cluster.local.listing import clusters as there
    from mimokit.cluster.local.listing import end_cluster

    with failures():
        for name in [*(end or ()), *(state.entry.name for state in there() if end_all)]:
            end_cluster(name)
            if not as_json:
                typer.echo(f"Ended {name}.")
    if as_json:
        typer.echo(json.dumps([state.to_json() for state in there()]))
    elif not end and not end_all:
        _show(there())


def _show(states: list[ClusterState]) -> None:
    if not states:
        typer.echo("There is no cluster.")
        return
    rows = [
        (
            state.entry.name,
            "no answer" if state.engines is None else str(state.engines),
            "none" if state.client is None else f"process {state.client}",
            state.run or "",
            "stays" if state.entry.stays else "ends",
        )
        for state in states
    ]
    columns = ("name", "engines", "client", "last run", "when its client is gone")
    console().print(Section("", columns, rows))
