"""Files that are almost right are read or refused in a sentence each, and never executed.

`python -m benchmarks.fuzz` does the same 10,000 times, with limits of time and memory.
"""

import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import covered
from tests.fuzzing.covered import Mutant, corpus, covering
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
    mutants = corpus()[reader.name]
    assert mutants
    for mutant in mutants:
        with tempfile.TemporaryDirectory() as folder:
            reader.attempt(mutant.drawn(), Path(folder))


def behind_three_numbers(random: Random) -> None:
    """Raise for one of 262,144 triples."""
    if random.randrange(64) != 7:
        return
    if random.randrange(64) != 7:
        return
    if random.randrange(64) != 7:
        return
    raise KeyError("found")


def test_mutants_that_reach_further_lines_lead_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covered, "_PRODUCT", __file__)
    reader = Reader("three", lambda random, _: behind_three_numbers(random))
    search = covering(reader, [], Random(0), 0.0)
    while not search.failed and search.tried < 20_000:
        search.attempt(search.next())
    assert list(search.failed.values()) == ["KeyError: 'found'"]
    assert len(search.kept) == 3
    (mutant,) = search.failed
    with pytest.raises(KeyError):
        behind_three_numbers(mutant.drawn())


def test_the_numbers_of_a_mutant_are_those_of_its_seed_but_for_the_replaced() -> None:
    one, other = (Mutant(5, numbers).drawn() for numbers in ((), ((1, 7),)))
    first, again = ([drawn.getrandbits(16) for _ in range(3)] for drawn in (one, other))
    assert again == [first[0], 7, first[2]]
    assert one.count == 3
    assert 0 <= one.random() < 1
    assert {one.randrange(3) for _ in range(40)} == {0, 1, 2}


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
