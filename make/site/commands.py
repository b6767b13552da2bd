"""The page of all commands, from the command line itself."""

from __future__ import annotations

import re

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from mimokit.cli.main import app

INTRODUCTION = """# Commands

Generated from the command line. `mimokit COMMAND --help` prints the same, and
`mimokit --install-completion` lets the shell complete commands and options.

A config that cannot work is rejected with one sentence per problem, all at once, and exit status 2.
Exit status 1 means that a rank failed, or that what was to be proved does not hold.
"""


def page() -> str:
    """Return the page in Markdown: a section for each command."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="mimokit")
    sections = text[text.index("\n## ") :]
    return INTRODUCTION + re.sub(r"^\* `--help`: .*\n", "", sections, flags=re.MULTILINE)
