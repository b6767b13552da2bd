"""Mutants that reach lines which no other does: `python -m tests.fuzzing.covered [SECONDS]`.

A mutant is made from the random numbers of a seed, some of which are replaced. One that reaches a
further line is kept, and others are made from it by replacing one more number: what is found leads
on. The corpus, a file, is read again by `tests/test_fuzz.py`; a new run begins with it. Names of
readers behind the seconds search these alone.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import mimokit
from tests.fuzzing.readers import READERS, Reader

CORPUS = Path(__file__).parents[1] / "fixtures" / "fuzz_corpus.json"
SECONDS = 10.0
MOST = 32
"""Mutants of a reader that are kept: the first ones that reach further lines."""
FRESH = 0.2
"""Share of mutants that come of a seed alone."""
_PRODUCT = str(Path(mimokit.__file__).parent) + os.sep

Lines = frozenset[tuple[str, int]]
Numbers = tuple[tuple[int, int], ...]
"""(which draw, the bits that it gives instead)"""


class Drawn(Random):
    """The random numbers of a mutant, counted."""

    numbers: Mapping[int, int] = {}
    count = 0

    def getrandbits(self, bits: int) -> int:
        """Return the bits of the next draw; all other methods ask for bits."""
        drawn = self.numbers.get(self.count, super().getrandbits(bits))
        self.count += 1
        return drawn % (1 << bits)

    def random(self) -> float:
        """Return a number from 0 to 1, without 1."""
        return self.getrandbits(53) / (1 << 53)


@dataclass(frozen=True)
class Mutant:
    """A seed, and which of its random numbers are replaced."""

    seed: int
    numbers: Numbers = ()

    def drawn(self) -> Drawn:
        """Return its random numbers."""
        drawn = Drawn(self.seed)
        drawn.numbers = dict(self.numbers)
        return drawn

    def changed(self, random: Random, draws: int) -> "Mutant":
        """Return this one with another number among those that it has drawn."""
        place = random.randrange(max(1, draws))
        return Mutant(self.seed, (*self.numbers, (place, random.getrandbits(32))))


def lines_of(reader: Reader, drawn: Random) -> Lines:
    """Return the lines of mimokit that reading a mutant reaches."""
    reached: set[tuple[str, int]] = set()

    def within(frame: Any, event: str, argument: Any) -> Any:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return within

    def at_call(frame: Any, event: str, argument: Any) -> Any:
        return within if frame.f_code.co_filename.startswith(_PRODUCT) else None

    before = sys.gettrace()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.settrace(at_call)
        try:
            reader.attempt(drawn, Path(folder))
        finally:
            sys.settrace(before)
    return frozenset(reached)


class Search:
    """Looks for mutants that reach further lines.

    Attributes:
        kept: mutant -> how many numbers it draws.
        failed: mutants that were neither read nor refused -> how they failed.
    """

    def __init__(self, reader: Reader, random: Random) -> None:
        self._reader, self._random = reader, random
        self._known: set[tuple[str, int]] = set()
        self.kept: dict[Mutant, int] = {}
        self.failed: dict[Mutant, str] = {}
        self.tried = 0

    def attempt(self, mutant: Mutant) -> None:
        """Read a mutant, and keep it if it reaches a line that none before it has reached."""
        self.tried += 1
        drawn = mutant.drawn()
        try:
            lines = lines_of(self._reader, drawn)
        except Exception as error:
            self.failed[mutant] = f"{type(error).__name__}: {error}"
            return
        if lines - self._known and len(self.kept) < MOST:
            self.kept[mutant] = drawn.count
            self._known |= lines

    def next(self) -> Mutant:
        """Return a mutant to try: of a new seed, or of one that is kept."""
        if not self.kept or self._random.random() < FRESH:
            return Mutant(self._random.randrange(2**32))
        parent = self._random.choice(list(self.kept))
        return parent.changed(self._random, self.kept[parent])


def covering(reader: Reader, known: Iterable[Mutant], random: Random, seconds: float) -> Search:
    """Return a search that has read known mutants, then others for so long."""
    search, ends = Search(reader, random), time.monotonic() + seconds
    for mutant in known:
        search.attempt(mutant)
    while time.monotonic() < ends:
        search.attempt(search.next())
    return search


def corpus() -> Mapping[str, list[Mutant]]:
    """Return reader -> its mutants."""
    content: dict[str, list[Any]] = json.loads(CORPUS.read_text())
    return {
        reader: [Mutant(seed, tuple(map(tuple, numbers))) for seed, numbers in mutants]
        for reader, mutants in content.items()
    }


def main() -> None:
    """Write the corpus; ends with 1 if a mutant was neither read nor refused."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    known = dict(corpus()) if CORPUS.exists() else {}
    chosen = [reader for reader in READERS if reader.name in (sys.argv[2:] or [reader.name])]
    failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for reader in chosen:
            search = covering(reader, known.get(reader.name, []), Random(), seconds)
            known[reader.name] = list(search.kept)
            said = f"{len(search.kept)} of {search.tried} reach further lines"
            print(f"{reader.name}: {said}, {len(search.failed)} failed", flush=True)
            for mutant, why in search.failed.items():
                print(f"    {mutant}: {why[:300]}", flush=True)
            failed += len(search.failed)
    rows = {
        reader: [[mutant.seed, mutant.numbers] for mutant in mutants]
        for reader, mutants in known.items()
    }
    CORPUS.write_text(json.dumps(rows) + "\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
