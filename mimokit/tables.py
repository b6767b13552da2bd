"""Rows as a table: for a terminal (rich) and for a notebook (HTML)."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:.25em .8em .25em 0;border-bottom:{_LINE};text-align:left;font-size:inherit"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;margin:0"
_ROW = '<tr style="background:transparent">'  # notebooks give every second row a background


@dataclass(frozen=True)
class Section:
    """A table under a heading, and the sentences below it.

    Attributes:
        rows: texts per column.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str] = ()

    def table(self) -> Table:
        """Return the table for a terminal."""
        return rich_table(self.heading, self.columns, self.rows)

    def to_html(self, marks: Sequence[str] = ()) -> str:
        """Return the table for a notebook; `marks` as `html_table` takes them."""
        return html_table(self.columns, self.rows, heading=self.heading, marks=marks)


class Report:
    """Shows itself as a section, in a terminal, in a notebook and printed; `repr` is one line."""

    def section(self) -> Section:
        """Return what is shown."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the table and the sentences, which are plain text."""
        from rich.text import Text

        section = self.section()
        yield section.table()
        yield from map(Text, section.sentences)

    def __str__(self) -> str:
        return plain_text(self)

    def __repr__(self) -> str:
        first = "".join(f": {sentence}" for sentence in self.section().sentences[:1])
        return f"<{type(self).__name__}{first}>"

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        section = self.section()
        return section.to_html() + "".join(map(html_heading, section.sentences))


def plain_text(shown: Any) -> str:
    """Return what rich shows of an object without colours, 120 columns wide."""
    from rich.console import Console

    target = io.StringIO()
    Console(file=target, width=120, color_system=None).print(shown)
    return target.getvalue().rstrip("\n")


def rich_table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> Table:
    """Return a table with a title and a line under its headings; all of it is plain text.

    Args:
        rows: texts per column; none where the caller adds its own.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(heading, style="table.title"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for name in columns:
        table.add_column(Text(name), overflow="fold")  # names that are cut look alike
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def html_heading(text: str) -> str:
    """Return the line above a table."""
    return f'<div style="margin:.9em 0 .2em;opacity:.75">{escape(text)}</div>'


def html_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    heading: str = "",
    marks: Sequence[str] = (),
    unwrapped: Collection[str] = (),
) -> str:
    """Return a table in HTML with the colours of the page it is on. Texts are escaped.

    Args:
        rows: texts per column.
        marks: HTML in front of the first cell of each row, such as a coloured dot.
        unwrapped: the columns whose texts stay on one line.
    """
    head = "".join(
        f'<th scope="col" style="{_CELL};font-weight:600">{escape(name)}</th>' for name in columns
    )
    styles = [f"{_CELL};white-space:nowrap" if name in unwrapped else _CELL for name in columns]
    body = ""
    for number, row in enumerate(rows):
        cells = list(map(escape, row))
        cells[0] = f"{marks[number] if marks else ''}{cells[0]}"
        line = "".join(
            f'<td style="{style}">{cell}</td>' for style, cell in zip(styles, cells, strict=True)
        )
        body += f"{_ROW}{line}</tr>"
    return (
        f'{html_heading(heading) if heading else ""}<table style="{_TABLE}">'
        f"<thead>{_ROW}{head}</tr></thead><tbody>{body}</tbody></table>"
    )
