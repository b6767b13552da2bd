"""Rows as a table: for a terminal (rich) and for a notebook (HTML)."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:.25em .8em .25em 0;border-bottom:{_LINE};text-align:left;font-size:inherit"
_UNWRAPPED = ";white-space:nowrap"
_ALIGNED = f"{_UNWRAPPED};font-family:monospace"
_INDENTED = ";padding-left:.5em"
_SAID = "margin:.3em 0;opacity:.75;max-width:70em"
_TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;margin:0"
_HEADING = "margin:.9em 0 .2em;opacity:.75"
_ROW = '<tr style="background:transparent">'  # notebooks give every second row a background


@dataclass(frozen=True)
class Section:
    """A table under a heading, and the sentences below it.

    Attributes:
        columns: none where there is a heading alone.
        rows: texts per column.
        colors: of each row those of its cells, from the first on, as #rrggbb or empty.
        unwrapped: columns whose texts stay on one line.
        aligned: those whose letters are equally wide, likewise.
    """

    heading: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    sentences: Sequence[str] = ()
    colors: Sequence[Sequence[str]] = ()
    unwrapped: Collection[str] = ()
    aligned: Collection[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield self._table() if self.columns else Text(self.heading, style="bold")
        yield from map(Text, self.sentences)

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(self.heading, style="table.title"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for place, name in enumerate(self.columns):
            # Names that are cut look alike.
            table.add_column(Text(name), overflow="ellipsis" if name in self.aligned else "fold")
            if name in self.unwrapped:  # its heading may wrap
                longest = max((len(row[place]) for row in self.rows), default=0)
                table.columns[place].min_width = longest
        for row, colors in zip_longest(self.rows, self.colors, fillvalue=()):
            cells = zip_longest(row, colors, fillvalue="")
            table.add_row(*(Text(text, style=color) for text, color in cells))
        return table

    def to_html(self) -> str:
        """Return the table and the sentences for a notebook, in the colours of their page."""
        head = f'<div style="font-weight:600">{escape(self.heading)}</div>'
        said = "".join(f'<p style="{_SAID}">{escape(each)}</p>' for each in self.sentences)
        return (self._html_table() if self.columns else head) + said

    def _html_table(self) -> str:
        cell = _CELL + _INDENTED * bool(self.colors)
        styles = [
            f"{cell}{_ALIGNED * (name in self.aligned)}{_UNWRAPPED * (name in self.unwrapped)}"
            for name in self.columns
        ]
        head = "".join(
            f'<th scope="col" style="{style};font:inherit;font-weight:600">{escape(name)}</th>'
            for name, style in zip(self.columns, styles, strict=True)
        )
        body = ""
        for row, hues in zip_longest(self.rows, self.colors, fillvalue=()):
            cells = zip_longest(row, styles, hues, fillvalue="")
            line = "".join(_html_cell(text, style, hue) for text, style, hue in cells)
            body += f"{_ROW}{line}</tr>"
        above = f'<div style="{_HEADING}">{escape(self.heading)}</div>' if self.heading else ""
        return (
            f'{above}<table style="{_TABLE}">'
            f"<thead>{_ROW}{head}</tr></thead><tbody>{body}</tbody></table>"
        )


class Report:
    """Shows itself as sections, in a terminal, in a notebook and printed; `repr` is one line."""

    def section(self) -> Section:
        """Return what is shown, of a report with one section."""
        raise NotImplementedError

    def sections(self) -> Sequence[Section]:
        """Return what is shown."""
        return (self.section(),)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.sections()

    def __str__(self) -> str:
        return plain_text(self)

    def __repr__(self) -> str:
        first = "".join(f": {sentence}" for sentence in self.section().sentences[:1])
        return f"<{type(self).__name__}{first}>"

    def _repr_html_(self) -> str:
        *others, last = self.sections()
        passed = getattr(self, "passed", None)
        if passed is not None:
            *said, verdict = last.sentences
            last = replace(last, sentences=[*said, f"{'✔' if passed else '✘'} {verdict}"])
        return html_sections([*others, last])


def html_sections(sections: Iterable[Section]) -> str:
    """Return sections as one `<div>` without scripts, readable on light and dark pages."""
    style = "font-size:.9em;line-height:1.4;color:inherit;max-width:80em;overflow-x:auto"
    return f'<div style="{style}">{"".join(section.to_html() for section in sections)}</div>'


def plain_fields(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them: with lists in place of its tuples."""
    fields = asdict(record).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}


def plain_text(shown: Any) -> str:
    """Return what rich shows of an object without colours, 120 columns wide."""
    from rich.console import Console

    target = io.StringIO()
    Console(file=target, width=120, color_system=None).print(shown)
    return target.getvalue().rstrip("\n")


def _html_cell(text: str, style: str, color: str) -> str:
    # Translucent, so that the text has the colour of the page, light or dark.
    fill = f";background:{color}40" if color else ""
    return f'<td style="{style}{fill}">{escape(text)}</td>'
