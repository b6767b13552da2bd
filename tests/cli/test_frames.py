"""`mimokit frames`."""

import json
import re

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mimokit.cli.main import app
from tests.rows import rows

LINE = {"--frame-time": "2 ms", "--bandwidth": "25 GB/s", "--latency": "20 us"}


def call(counts: str, *words: str, **changed: str) -> Result:
    given = LINE | {f"--{key.replace('_', '-')}": value for key, value in changed.items()}
    options = [word for pair in given.items() for word in pair]
    return CliRunner().invoke(app, ["frames", counts, *options, *words], env={"COLUMNS": "80"})


def test_uneven_frames() -> None:
    done = call("64, 60 / 1 2 / / 1")
    assert done.exit_code == 0, done.stderr
    first = next(line for line in done.stdout.splitlines() if line.startswith("0 "))
    cells = "0 | 2 | 124 | 31,744 | 248 ms | 32 | 8,192 | 64 ms | 23,552 to 1–3 | –"
    assert re.split(r"\s{2,}", first.strip()) == cells.split(" | ")
    assert "Frame parallel saves 174 ms" in done.stdout


def test_the_same_as_json() -> None:
    found = json.loads(call("3 / 1", "--json").stdout)
    assert found["frames"] == [3, 1]
    assert sorted(found["after"]) == pytest.approx([0.004, 0.004])
    assert found["worth_it"]
    frozen = json.loads(call("3 / 1", "--json", "--frozen").stdout)
    assert frozen["traffic_bytes"] < found["traffic_bytes"]


def test_even_frames_and_slow_links_are_not_worth_it() -> None:
    assert "not worth it: the slowest encoder takes only 1.00 times" in call("8 / 8").stdout
    assert "Frame parallel is not worth it" in call("8 / 4", bandwidth="1 Mbit/s").stdout


@rows(
    "counts, changed, sentence",
    ("8 / -1", {}, "'-1' is not a number of frames; write 64 1 / 2"),
    ("eight", {}, "'eight' is not a number of frames"),
    ("9999999", {}, "9,999,999 are more than 1,000,000"),
    ("99999999", {}, "99999999 is more than 1,000,000"),
    ("", {}, "no sample is given; write 64 1 / 2"),
    ("1 / 2", {"frame_time": "2"}, "it has no unit; write 30 ms"),
    ("1 / 2", {"frame_time": "0 ms"}, "frame's cost is 0"),
    ("1 / 2", {"bandwidth": "fast"}, "--bandwidth is 'fast'"),
)
def test_what_is_rejected(counts: str, changed: dict[str, str], sentence: str) -> None:
    done = call(counts, **changed)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
