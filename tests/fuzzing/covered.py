"""Mutants that reach lines which no other does: `python -m tests.fuzzing.covered [COUNT]`.

Their numbers are kept in a file, the corpus, which `tests/test_fuzz.py` reads again. A new run
begins with the corpus, and keeps what it adds to it.
"""

import contextlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import mimokit
from tests.fuzzing.readers import READERS, Reader

CORPUS = Path(__file__).parents[1] / "fixtures" / "fuzz_corpus.json"
COUNT = 40
MOST = 16
"""Mutants of a reader that are kept: the first ones that reach new lines."""
_PRODUCT = str(Path(mimokit.__file__).parent) + os.sep

Lines = frozenset[tuple[str, int]]


def lines_of(reader: Reader, seed: int) -> Lines:
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
            reader.attempt(Random(seed), Path(folder))
        finally:
            sys.settrace(before)
    return frozenset(reached)


def covering(reader: Reader, seeds: Iterable[int], most: int = MOST) -> list[int]:
    """Return the mutants that reach lines which none before them has reached."""
    known: set[tuple[str, int]] = set()
    kept: list[int] = []
    for seed in seeds:
        lines = lines_of(reader, seed)
        if lines - known and len(kept) < most:
            kept.append(seed)
            known |= lines
    return kept


def corpus() -> Mapping[str, list[int]]:
    """Return reader -> its mutants."""
    content: dict[str, list[int]] = json.loads(CORPUS.read_text())
    return content


def main() -> None:
    """Write the corpus."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    known = corpus() if CORPUS.exists() else {}
    random, found = Random(), {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for reader in READERS:
            drawn = (random.randrange(2**32) for _ in range(count))
            found[reader.name] = covering(reader, [*known.get(reader.name, []), *drawn])
            print(f"{reader.name}: {len(found[reader.name])} of {count} reach further lines")
    CORPUS.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
