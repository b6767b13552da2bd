"""A search in words and as tables, for terminals and notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mimokit.prediction import PART_WORDS, Prediction
from mimokit.tables import html_table, rich_table
from mimokit.units import gib_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Group

    from mimokit.layout_search.result import SearchResult

COLUMNS = (
    "mode",
    "GPUs",
    "layout",
    "step",
    "tokens/s",
    "TFLOP/s per GPU",
    "MFU",
    "memory",
)


def row_of(prediction: Prediction) -> tuple[str, ...]:
    """Return a prediction as the cells of a table with `COLUMNS`."""
    return (
        prediction.layout.mode,
        f"{prediction.layout.gpus:,}",
        str(prediction.layout).split(": ", 1)[1],
        seconds_text(prediction.seconds),
        f"{prediction.tokens_per_second:,.0f}",
        f"{prediction.tflops_per_gpu:.0f}",
        f"{prediction.utilisation:.1%}",
        gib_text(prediction.peak_memory),
    )


def differences(slow: Prediction, quick: Prediction) -> dict[str, float]:
    """Return the seconds that one prediction loses to another, by part, largest first."""
    gaps = {
        name: slow.parts.get(name, 0.0) - quick.parts.get(name, 0.0)
        for name in dict.fromkeys([*slow.parts, *quick.parts])
    }
    return dict(sorted(gaps.items(), key=lambda item: -abs(item[1])))


def differences_text(slow: Prediction, quick: Prediction, most: int = 3) -> str:
    """Return the largest differences in words."""
    gaps = list(differences(slow, quick).items())[:most]
    shown = [
        f"{PART_WORDS.get(name, name)} {'+' if value > 0 else '−'}{seconds_text(abs(value))}"
        for name, value in gaps
        if abs(value) >= 0.001 * quick.seconds
    ]
    return ", ".join(shown) or "less than a thousandth in every part"


ROWS = 10
REASONS = 8
_WHY = ("reason", "how many")


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
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = rich_table("Best layouts", ("",))
    # Beside the figures a layout would have the width of a word in a terminal.
    layouts = Table.grid("", "", padding=(0, 2, 0, 0))
    figures = [index for index, name in enumerate(COLUMNS) if name != "layout"]
    top = [row_of(prediction) for prediction in result.top(rows)]
    for index in figures:
        widest = max((len(row[index]) for row in top), default=0)
        table.add_column(COLUMNS[index], min_width=widest)  # a heading may wrap, a figure not
    for number, row in enumerate(top, start=1):
        table.add_row(str(number), *(Text(row[index]) for index in figures))
        layouts.add_row(str(number), Text(row[COLUMNS.index("layout")]))
    why = rich_table("Dropped", _WHY, _reasons(result))
    why.columns[1].justify = "right"
    cut = [Text(sentence, style="yellow") for sentence in result.cut]
    return Group(Text(title(result), style="bold"), *cut, table, layouts, Text(), why)


def result_to_html(result: SearchResult, rows: int = ROWS) -> str:
    """Return a search as one `<div>`."""
    table = html_table(
        COLUMNS,
        [row_of(prediction) for prediction in result.top(rows)],
        heading="Best layouts",
        unwrapped=[name for name in COLUMNS if name != "layout"],
    )
    cut = "".join(f"<div>{escape(sentence)}</div>" for sentence in result.cut)
    why = html_table(_WHY, _reasons(result), heading="Dropped", unwrapped=_WHY[1:])
    style = "font-size:.9em;line-height:1.4;color:inherit;max-width:80em;overflow-x:auto"
    head = f'<div style="font-weight:600">{escape(title(result))}</div>'
    return f'<div style="{style}">{head}{cut}{table}{why}</div>'


def _reasons(result: SearchResult) -> list[tuple[str, str]]:
    return [(reason, f"{count:,}") for reason, count in list(result.dropped.items())[:REASONS]]
