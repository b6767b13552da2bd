"""Commands of mimokit, in this process."""

from typer.testing import CliRunner, Result

from mimokit.cli.main import app


def call(*words: object, columns: int | None = None) -> Result:
    """Return what a command answers, in a terminal of as many columns."""
    env = {"COLUMNS": str(columns)} if columns else None
    return CliRunner().invoke(app, [str(word) for word in words], env=env)
