"""This tree against a tag: `make bench-against TAG=v0.1.0`, on an otherwise idle machine.

It prints a table of ratios, and keeps the figures of the tag in `benchmarks/history.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from benchmarks.against.cases import CASES
from benchmarks.against.history import record
from benchmarks.against.measuring import in_turn, prepare
from benchmarks.against.ratios import table
from benchmarks.against.tags import RefusedTag, check_packages, checked_out

ROOT = Path(__file__).parents[2]


def main(tag: str) -> None:
    """Check the tag, measure both trees, print, and record."""
    try:
        check_packages(ROOT, tag)
    except RefusedTag as refused:
        sys.exit(str(refused))
    with checked_out(ROOT, tag) as other:
        trees = {tag: other, "this tree": ROOT}
        for tree in trees.values():
            prepare(tree)
        figures = in_turn(CASES, trees)
    Console(width=100).print(table(figures, tag))
    record(ROOT / "benchmarks" / "history.json", tag, figures[tag])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give a tag: make bench-against TAG=v0.1.0.")
    main(sys.argv[1])
