"""Texts and tables that every room shares."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from mimokit.tables import Section
from mimokit.units import (
    bits_per_second,
    counted,
    gib_text,
    listed,
    rate_text,
    seconds_of,
    seconds_text,
    shown,
)
from tests.rows import rows

COLUMNS = ("name", "why")
ROWS = [("a <b>", "[red]x"), ("c & d", "y")]


def test_texts_of_units() -> None:
    assert [counted(1, "micro-batch"), counted(2, "micro-batch")] == [
        "1 micro-batch",
        "2 micro-batches",
    ]
    assert [counted(0, "replica"), counted(1024, "rank")] == ["0 replicas", "1,024 ranks"]
    assert gib_text(3 * 2**29) == "1.5 GiB"
    assert gib_text(2**30, digits=2) == "1.00 GiB"
    assert [seconds_text(one) for one in (1234, 1.234, 0.0123, 0.001234)] == [
        "1,234 s",
        "1.23 s",
        "12 ms",
        "1.2 ms",
    ]


@rows("words, text", ([], ""), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c"))
def test_words_as_a_list(words: list[str], text: str) -> None:
    assert listed(words) == text


def test_a_html_table_escapes_texts() -> None:
    table = Section("<H>", COLUMNS, ROWS, unwrapped=("name",)).to_html()
    assert "a &lt;b&gt;" in table
    assert "c &amp; d" in table
    assert "&lt;H&gt;" in table
    assert table.count("white-space:nowrap") == len(ROWS) + 1
    assert table.count("<tr") == len(ROWS) + 1


def test_a_rich_table_shows_texts_as_they_stand() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(Section("Title", COLUMNS, ROWS))
    text = console.export_text()
    for row in ROWS:
        assert all(cell in text for cell in row)


def test_units_tables_and_axes_import_nothing_heavy_and_no_room() -> None:
    check = (
        "import sys, mimokit.units, mimokit.tables, mimokit.axes; "
        "print(sorted({'rich', 'numpy', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_value_of_any_size_is_shown_in_a_few_characters() -> None:
    assert shown("a") == "'a'"
    assert shown(10**5000) == "too large to show (int)"
    assert shown([10**5000]) == "too large to show (list)"
    assert len(shown("a" * 1000)) == 60


@rows(
    "text, bits",
    ("200 Mbit/s", 2e8),
    ("25 MB/s", 2e8),
    ("1Gbps", 1e9),
    ("0.5 Tbit/s", 5e11),
    ("9.6 kbit/s", 9600),
    ("7 bit/s", 7),
)
def test_bandwidths_are_read_and_written(text: str, bits: float) -> None:
    assert bits_per_second(text) == pytest.approx(bits)
    assert bits_per_second(rate_text(bits)) == pytest.approx(bits)


def test_durations_are_read() -> None:
    assert [seconds_of(text) for text in ("30 ms", "0 s", "50us", "1.5 s")] == pytest.approx(
        [0.03, 0, 5e-5, 1.5]
    )


@rows("text", "", "1", "ms", "1 Mbit", "1..2 s", "nan s", "1e999 s")
def test_what_is_no_bandwidth_and_no_duration_is_rejected(text: str) -> None:
    for read in (bits_per_second, seconds_of):
        with pytest.raises(ValueError, match=r"; write "):
            read(text)
