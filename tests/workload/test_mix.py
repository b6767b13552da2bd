"""Mixes of samples: what files and data sets give, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mimokit
from mimokit.config import ConfigError
from mimokit.workload import SampleMix, mix_names, mix_of, named_mix, read_mix, write_mix
from mimokit.workload.files import Reservoir
from tests.cli.call import call
from tests.rows import rows

COLUMNS = {"text": [200, 8000, 30], "images.items": [0, 1, 64], "images.size": [0, 576, 576]}


def as_jsonl(columns: dict[str, list[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def as_csv(columns: dict[str, list[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


def written(path: Path, columns: dict[str, list[Any]]) -> Path:
    if path.suffix == ".parquet":
        from pyarrow import parquet, table

        parquet.write_table(table(columns), path)
    else:
        path.write_text((as_csv if path.suffix == ".csv" else as_jsonl)(columns))
    return path


SUFFIXES = pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])


@SUFFIXES
def test_a_file_of_counts_becomes_a_mix(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"counts{suffix}", {"id": ["a", "b", "c"], **COLUMNS})
    mix = mimokit.measure(path)
    assert {name: column.tolist() for name, column in mix.columns.items()} == COLUMNS
    assert (mix.rows, mix.sums["text"], mix.most["images.items"]) == (3, 8230, 64)
    assert mix.modalities == ("images",)
    assert mix.text_only.tolist() == [True, False, False]


@SUFFIXES
def test_of_many_rows_some_are_kept_and_totals_are_exact(tmp_path: Path, suffix: str) -> None:
    values = list(range(200_000))
    mix = read_mix(written(tmp_path / f"many{suffix}", {"text": values}), samples=1000)
    assert (len(mix), mix.rows, mix.sums["text"], mix.most["text"]) == (
        1000,
        200_000,
        sum(values),
        199_999,
    )
    kept = mix.columns["text"]
    assert len(set(kept.tolist())) == 1000
    assert abs(kept.mean() / 99_999.5 - 1) < 0.06  # 3 standard errors
    back = read_mix(write_mix(mix, tmp_path / "small.parquet"))
    assert (back.rows, back.sums) == (mix.rows, mix.sums)
    assert np.array_equal(back.columns["text"], kept)


def test_memory_does_not_grow_with_the_rows() -> None:
    """A reservoir of a stream four times as long takes no more memory."""
    piece = {"text": np.arange(50_000.0), "images.items": np.ones(50_000)}
    peaks = []
    for pieces in (8, 32):
        reservoir = Reservoir("stream", 1000, np.random.default_rng(0))
        tracemalloc.start()
        for _ in range(pieces):
            reservoir.add(piece)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert reservoir.mix().rows == pieces * 50_000
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("pieces", [8, 32])
def test_a_long_file_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Pieces of a Parquet file, of half a mebibyte each, are let go once they are read."""
    from pyarrow import parquet, table, total_allocated_bytes

    piece = table({"text": np.random.default_rng(0).integers(0, 2**40, 2**16)})
    with parquet.ParquetWriter(tmp_path / "long.parquet", piece.schema) as writer:
        for _ in range(pieces):
            writer.write_table(piece)
    held, before = list[int](), total_allocated_bytes()
    monkeypatch.setattr(Reservoir, "add", lambda *_: held.append(total_allocated_bytes()))
    with pytest.raises(ConfigError, match="it has 0 samples"):
        read_mix(tmp_path / "long.parquet")
    assert len(held) == pieces
    assert max(held) - before < 4 * 2**20


REFUSED = {
    "empty": ({"text": []}, "it has 0 samples; give it at least one."),
    "missing": ({"images.items": [1]}, "the column 'text', tokens of text of each sample, is miss"),
    "without items": ({"text": [1], "images.size": [4]}, "the column 'images.items' is missing"),
    "negative": ({"text": [5, -3]}, "column 'text' is -3 in sample 1; it must be a number of at"),
    "text": ({"text": ["5", "many"]}, "which is not a number"),
}


@SUFFIXES
def test_columns_that_count_nothing_are_named(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"counts{suffix}", {"text": [5], "images": [2], "images.items": [2]})
    assert read_mix(path).left_out == ("images",)
    said = call("measure", path).stdout
    assert "Left out: images; a count is text, or MODALITY.items" in said


@SUFFIXES
@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, suffix: str, case: str) -> None:
    columns, sentence = REFUSED[case]
    path = written(tmp_path / f"counts{suffix}", columns)
    if case == "text" and suffix == ".csv":
        sentence = "'text' has 'many'"
        path.write_text("text\nmany\nmany\n")
    with pytest.raises(ConfigError) as caught:
        read_mix(path)
    (said,) = str(caught.value).splitlines()
    assert said.startswith("Workload '")
    assert sentence in said


@rows(
    "name, content, sentence",
    ("none.parquet", None, "there is no such file; write it with mimokit measure."),
    ("vidoes", None, "it is neither a .parquet, .csv, .jsonl file nor one of image_captions"),
    ("broken.parquet", b"PAR1 no", "it cannot be read ("),
    ("late.csv", b"text\n" + b"1\n" * 900_000 + b"x\n", "it cannot be read ("),
    ("late.jsonl", b'{"text": 1}\n' * 200_000 + b'{"text": "x"}\n', "it cannot be read ("),
    ("gap.jsonl", b'{"text": 1}\n{"images.items": 1}\n', "column 'text' is no number in sam"),
)
def test_what_is_no_mix_is_refused(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        tmp_path.joinpath(name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_mix(tmp_path / name if "." in name else name)
    assert sentence in str(caught.value)


def test_columns_of_several_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"several lengths \(text 2, images.items 1\)"):
        mix_of({"text": [1, 2], "images.items": [1]})
    with pytest.raises(ConfigError, match="column 'text' has 'x', which is not a number"):
        mix_of({"text": [1, "x"]})


@rows("name", *mix_names())
def test_a_published_mix_is_the_same_each_time(name: str) -> None:
    mix, again = named_mix(name), named_mix(name)
    assert mix.table() == again.table()
    assert len(mix) == 10_000


def test_published_mixes_have_the_published_means() -> None:
    """Clipping and rounding move them a little; the sources state three digits."""
    means = {name: named_mix(name).sums for name in mix_names()}
    published = {
        ("image_captions", "text"): 10.3,
        ("interleaved_pages", "text"): 815,
        ("interleaved_pages", "vision.items"): 2.5,
        ("videos", "vision.seconds"): 8.5,
        ("videos", "text"): 13.2 * 1.3,
        ("speech", "audio.seconds"): 12.3,
    }
    for (name, column), mean in published.items():
        assert means[name][column] / 10_000 == pytest.approx(mean, rel=0.05)


class Counts:
    """A data set of mappings, one of which may raise."""

    def __init__(self, size: int, broken: int | None = None) -> None:
        self.size, self.broken = size, broken

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, float]:
        if index == self.broken:
            raise OSError("the disk is full")
        return {"text": index % 7, "images.items": 1} if index % 2 else {"text": index % 7}


def test_a_data_set_of_mappings_is_measured() -> None:
    mix = mimokit.measure(Counts(100))
    assert (len(mix), mix.sums["images.items"]) == (100, 50)
    assert len(mimokit.measure(Counts(100), samples=10)) == 10


@rows(
    "dataset, samples, sentence",
    (Counts(0), 10, "Workload 'Counts': it has 0 samples; give it at least one."),
    (
        Counts(5000, broken=4711),
        5000,
        "Workload 'Counts': sample 4,711 raised OSError: the disk is full; mend it, or",
    ),
    (range(3), 10, "sample 0 raised TypeError: it is a int, not a mapping such as"),
    (iter([]), 10, "it has no length; give it __len__ and __getitem__."),
    (Counts(3), 0, "samples is 0; it must be a whole number of at least 1."),
)
def test_a_data_set_that_cannot_be_measured_is_refused(
    dataset: Any, samples: int, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        mimokit.measure(dataset, samples)
    assert sentence in str(caught.value)


def test_an_experiment_is_measured_through_its_batches() -> None:
    """Nobody speaks in every second micro-batch, and in the first every fourth sample is silent."""
    mix = mimokit.measure("preset:digits_audio", samples=400)
    assert set(mix.columns) == {
        "text", "images.items", "images.size", "audio.items", "audio.size", "audio.seconds",
    }  # fmt: skip
    images, audio = mix.columns["images.items"], mix.columns["audio.items"]
    assert images.min() >= 1
    assert images.max() <= 4
    assert 0.25 < (audio > 0).mean() < 0.5
    assert set(mix.columns["images.size"].tolist()) == {4.0}
    # words, the question, the answer and its end: each digit stands once, written ones twice
    rest = mix.columns["text"] - images - audio
    assert rest.min() >= 4 - 1
    assert isinstance(mix, SampleMix)
