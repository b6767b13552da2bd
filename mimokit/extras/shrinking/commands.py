"""`mimokit shrink`, which is also `mimokit verify --shrink`."""

from typing import Annotated

import typer

from mimokit.cli.shared import Cluster, File, Json, engines_for, failures, show_proof


def shrink(
    file: File,
    as_json: Json = False,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 5,
    cluster: Cluster = None,
) -> None:
    """Compare small layouts that have every kind of group, bridge and schedule pattern of a layout.

    Exit 1 if one differs from one process.
    """
    from mimokit.extras.shrinking.layout import shrunk
    from mimokit.extras.shrinking.report import explain_shrunk

    with failures():
        size = max(layout.total_world_size for layout in shrunk(file))
        with engines_for(size, cluster) as engines:
            report = explain_shrunk(engines, file, steps=steps)
    show_proof(report, as_json)
