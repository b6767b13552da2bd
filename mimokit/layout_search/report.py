"""A search as tables, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from mimokit.layout_search.words import COLUMNS, row_of

if TYPE_CHECKING:
    from rich.console import Group

    from mimokit.layout_search.result import SearchResult

ROWS = 10
REASONS = 8
_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:.25em .8em .25em 0;border-bottom:{_LINE};text-align:left;font-size:inherit"


def title(result: SearchResult) -> str:
    """Return one line that says what was found."""
    task = result.task
    end = "" if result.complete else ", stopped before its end"
    return (
        f"{task.model.name} on {task.gpus:,} x {task.hardware.name}: {result.evaluated:,} layouts "
        f"evaluated in {result.seconds:.1f} s, {result.fitting:,} fit{end}"
    )


def result_to_rich(result: SearchResult, rows: int = ROWS) -> Group:
    """Return what `rich` prints for a search."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Best layouts", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    # Beside the figures a layout would have the width of a word in a terminal.
    layouts = Table.grid("", "", padding=(0, 2, 0, 1))
    figures = [index for index, name in enumerate(COLUMNS) if name != "layout"]
    found = [row_of(one) for one in result.top(rows)]
    table.add_column("")
    for index in figures:
        widest = max((len(row[index]) for row in found), default=0)
        table.add_column(COLUMNS[index], min_width=widest)  # a heading may wrap, a figure not
    for number, row in enumerate(found, start=1):
        table.add_row(str(number), *(Text(row[index]) for index in figures))
        layouts.add_row(str(number), Text(row[COLUMNS.index("layout")]))
    why = Table(title="Dropped", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    why.add_column("reason")
    why.add_column("how many", justify="right")
    for reason, count in list(result.dropped.items())[:REASONS]:
        why.add_row(Text(reason), f"{count:,}")
    cut = [Text(sentence, style="yellow") for sentence in result.cut]
    return Group(Text(title(result), style="bold"), *cut, table, layouts, Text(), why)


def result_to_html(result: SearchResult, rows: int = ROWS) -> str:
    """Return a search as one `<div>`."""
    found = _table("Best layouts", COLUMNS, [row_of(one) for one in result.top(rows)])
    reasons = [(reason, f"{count:,}") for reason, count in list(result.dropped.items())[:REASONS]]
    cut = "".join(f"<div>{escape(sentence)}</div>" for sentence in result.cut)
    why = _table("Dropped", ("reason", "how many"), reasons)
    style = "font-size:.9em;line-height:1.4;color:inherit;max-width:80em;overflow-x:auto"
    head = f'<div style="font-weight:600">{escape(title(result))}</div>'
    return f'<div style="{style}">{head}{cut}{found}{why}</div>'


def _table(heading: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    plain = '<tr style="background:transparent">'  # notebooks stripe rows of their own accord
    head = "".join(
        f'<th scope="col" style="{_CELL};font-weight:600">{escape(name)}</th>' for name in columns
    )
    body = "".join(
        plain
        + "".join(_cell(name, cell) for name, cell in zip(columns, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div style="margin:.9em 0 .2em;opacity:.75">{escape(heading)}</div>'
        f'<table style="border-collapse:collapse;color:inherit;font-size:inherit;margin:0">'
        f"<thead>{plain}{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(column: str, text: str) -> str:
    wrap = "normal" if column in ("layout", "reason") else "nowrap"
    return f'<td style="{_CELL};white-space:{wrap}">{escape(text)}</td>'
