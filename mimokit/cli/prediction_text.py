"""A prediction as tables for a terminal."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mimokit.prediction import PART_WORDS, Prediction
from mimokit.tables import rich_table
from mimokit.units import GIB, gib_text, seconds_text


def prediction_to_rich(found: Prediction) -> Group:
    """Return what `rich` prints for a prediction: totals, parts of the step, memory by module."""
    return Group(
        Text(str(found.layout), style="bold"), _totals(found), _parts(found), _memory(found)
    )


def _totals(found: Prediction) -> Text:
    room = "fits" if found.fits else "does NOT fit"
    cost = found.dollars_per_million_tokens
    price = "" if cost is None else f", {cost:.3g} dollars per million tokens"
    exchange = found.exchange_text()
    return Text(
        f"{found.layout.gpus:,} GPUs, {seconds_text(found.seconds)} per step "
        f"({seconds_text(found.low)} to {seconds_text(found.high)}), "
        f"{found.tokens_per_second:,.0f} tokens/s, {found.tflops_per_gpu:.0f} TFLOP/s per GPU "
        f"({found.utilisation:.1%} of peak){price}; fullest rank {found.peak_memory / GIB:.1f} of "
        f"{gib_text(found.capacity)}: {room}" + (f"; {exchange}" if exchange else "")
    )


def _parts(found: Prediction) -> Table:
    table = rich_table("Step time", ("part", "seconds", "share"))
    for name, seconds in sorted(found.parts.items(), key=lambda item: -item[1]):
        if seconds > 0:
            share = f"{seconds / found.seconds:.1%}"
            table.add_row(PART_WORDS.get(name, name), f"{seconds:.4f}", share)
    return table


def _memory(found: Prediction) -> Table:
    table = rich_table("Memory of the fullest rank of each module", ("module", "part", "GiB"))
    for module, parts in found.memory.items():
        for name, amount in parts.items():
            table.add_row(Text(module), name, f"{amount / GIB:.2f}")
    return table
