"""Execute a notebook from top to bottom and leave it as an HTML page.

    python -m make.notebooks.execute NOTEBOOK --output DIR

Prints what goes on while it goes on. Leaves DIR/NAME.html, which needs neither a kernel nor a
network, and DIR/NAME.ipynb. Exits 1 if a cell fails; the page then ends with the error.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from make.notebooks.terminal import Terminal
from mimokit.charts._renderer import import_jsonschema

BAD_ARGUMENT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the notebook that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="make.notebooks.execute", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    if not options.notebook.is_file():
        print(f"There is no notebook {options.notebook}.", file=sys.stderr)
        return BAD_ARGUMENT
    terminal = Terminal()
    terminal.heading(f"Running {options.notebook}")
    return execute(options.notebook, options.output, terminal)


def execute(file: Path, output: Path, terminal: Terminal) -> int:
    """Execute a notebook in its own folder; return the exit status."""
    # These take half a second to import; the first line is on the screen before.
    import_jsonschema()
    import nbformat

    from make.notebooks.headless import FAILED, INTERRUPTED, HeadlessNotebook
    from make.notebooks.page import to_page

    try:
        notebook = nbformat.read(file, as_version=4)
    except Exception as error:
        print(f"The file {file} is not a notebook ({error}).".splitlines()[0], file=sys.stderr)
        return BAD_ARGUMENT
    page = output / f"{file.stem}.html"

    def leave() -> None:
        output.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, output / file.name)
        page.write_text(to_page(notebook, file.stem), encoding="utf-8")

    status = HeadlessNotebook(notebook, file, terminal).run(leave)
    terminal.heading({0: "Done.", FAILED: "Failed.", INTERRUPTED: "Interrupted."}[status])
    terminal.text(f"The page: {page}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
