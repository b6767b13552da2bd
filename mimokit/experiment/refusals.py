"""How the command line tells of a config that was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

REFUSED = 2
"""Exit status of a config that was refused."""


@contextmanager
def refusals() -> Iterator[None]:
    """Print the sentences of a refused config to stderr and exit with `REFUSED`."""
    from mimokit.config import ConfigError

    try:
        yield
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(REFUSED) from None
