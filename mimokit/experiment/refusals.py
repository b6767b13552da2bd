"""How a command ends that rejects a config."""

from collections.abc import Iterator
from contextlib import contextmanager

from mimokit.config.errors import ConfigError

REFUSED = 2
"""Exit status for a rejected config."""


@contextmanager
def refusals() -> Iterator[None]:
    """Print the problems of a rejected config to stderr and exit with `REFUSED`."""
    import typer

    try:
        yield
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(REFUSED) from None
