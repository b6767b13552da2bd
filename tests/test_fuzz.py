"""Files that are almost right are read or refused in a sentence each, and never executed.

`python -m benchmarks.fuzz` does the same 10,000 times, with limits of time and memory.
"""

import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimokit.units import short
from tests.fuzzing.covered import corpus, covering
from tests.fuzzing.readers import READERS, Reader

MUTANTS = {"configs": 60, "layouts": 60, "results": 12}
MOST = 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutants_are_read_or_refused(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted = [0, 0]

    @settings(max_examples=MUTANTS.get(reader.name, MOST), derandomize=True, database=None)
    @given(st.integers(0, 2**32))
    def attempt(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            accepted[reader.attempt(Random(seed), Path(folder))] += 1

    attempt()
    assert all(accepted), "mutants that are all refused, or all read, test nothing"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutants_that_reached_further_lines_are_read_or_refused(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that `python -m tests.fuzzing.covered` has kept."""
    monkeypatch.chdir(tmp_path)
    seeds = corpus()[reader.name]
    assert seeds
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            reader.attempt(Random(seed), Path(folder))


def test_a_mutant_is_kept_if_it_reaches_a_further_line(tmp_path: Path) -> None:
    """Half of the random numbers are above a half."""
    reader = Reader(
        "one of two", lambda random, _: short("x" * (900 if random.random() > 0.5 else 1))
    )
    seeds = range(20)
    kept = covering(reader, seeds)
    branches = [Random(seed).random() > 0.5 for seed in seeds]
    assert kept == ([0] if branches[0] else [0, branches.index(True)])


def test_a_reader_that_raises_or_executes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError):
        Reader("raises", lambda random, folder: {}["a"]).attempt(Random(0), tmp_path)
    silent = Reader("silent", lambda random, folder: int(""), (ValueError,))
    assert silent.attempt(Random(0), tmp_path) is False
    from tests.fuzzing.mutants import CANARY

    runs = Reader("runs", lambda random, folder: Path(CANARY).touch())
    with pytest.raises(AssertionError, match="executed"):
        runs.attempt(Random(0), tmp_path)
