"""What the ranks of a run record in the folder of a cluster that stays, and who reads it later.

    runs/<run id>/run.json                  function, engine of each rank, a note of the client
    runs/<run id>/rank_00003.samples        batches: length in 8 bytes, compressed pickle
    runs/<run id>/rank_00003.outcome        a pickle, whole or not there

Only the owner of the cluster enters that folder, who may run anything on its engines anyway.
The last run of a cluster is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

RUN_FILE = "run.json"
LOOK_SECONDS = 0.2
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class RunRecord:
    """A run that is recorded.

    Attributes:
        name: the qualified name of its function.
        engines: rank -> the id of its engine.
        note: what the client has remembered with the run, as JSON can say it.
    """

    run_id: str
    name: str
    engines: dict[int, int]
    note: Mapping[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.time)

    def write(self, runs: Path) -> Path:
        """Write it into the folder of runs, in place of others; returns its own folder."""
        folder = runs / self.run_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".{RUN_FILE}.part"
        part.write_text(json.dumps(asdict(self)))
        os.replace(part, folder / RUN_FILE)
        for other in runs.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return folder


def last_record(runs: Path) -> RunRecord | None:
    """Return the last run that is recorded in a folder of runs, None if there is none."""
    found = []
    for file in runs.glob(f"*/{RUN_FILE}"):
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(file.read_text())
            engines = {int(rank): engine for rank, engine in content["engines"].items()}
            found.append(RunRecord(**content | {"engines": engines}))
    return max(found, key=lambda record: record.started, default=None)


class RankRecorder:
    """Records what one rank sends; gives up, and lets the run go on, where the disk does."""

    def __init__(self, folder: str, rank: int) -> None:
        self._samples, self._outcome = _files(Path(folder), rank)
        self._broken = False

    def add(self, batch: list[bytes]) -> None:
        """Append samples."""
        packed = zlib.compress(pickle.dumps(batch), 1)
        self._try(lambda: _append(self._samples, packed))

    def close(self, outcome: object) -> None:
        """Write how the run ended on this rank, also if samples are missing."""
        self._broken = False
        self._try(lambda: _replace(self._outcome, pickle.dumps(outcome)))

    def _try(self, write: Any) -> None:
        if not self._broken:
            try:
                write()
            except OSError:
                # A gap would let later samples pass for earlier ones.
                self._broken = True


class RunEvents(Protocol):
    """Who hears of a run that is read."""

    @property
    def done(self) -> bool:
        """Whether the run has ended."""

    def received(self, rank: int, batch: list[bytes]) -> None:
        """Samples of one rank have come."""

    def returned(self, rank: int, result: Any) -> None:
        """A rank's task is over."""


class SampleFiles:
    """The samples that ranks record, evenly: first those of the rank that has told fewest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._told: dict[Path, int] = {}

    def next(self) -> tuple[int, list[bytes]] | None:
        """Return a rank and samples of it, None if no rank has recorded more."""
        for file in sorted(self._folder.glob("rank_*.samples")):
            self._told.setdefault(file, 0)
        for file in sorted(self._told, key=self._told.__getitem__):
            if (batch := self._next_of(file)) is not None:
                self._told[file] += len(batch)
                return int(file.stem.removeprefix("rank_")), batch
        return None

    def _next_of(self, path: Path) -> list[bytes] | None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._places.get(path, 0))
            batch = _next(file)
            if batch is not None:
                self._places[path] = file.tell()
            return batch
        return None


class RecordReader:
    """Tells what a run records, from its start to its end, from a separate thread."""

    def __init__(self, folder: Path, ranks: tuple[int, ...], events: RunEvents) -> None:
        self._samples = SampleFiles(folder)
        self._outcomes = {rank: _files(folder, rank)[1] for rank in ranks}
        self._events = events
        self._lock = threading.Lock()

    def follow(self) -> None:
        """Begin; returns at once."""
        threading.Thread(target=self._follow, name="mimokit-record", daemon=True).start()

    def catch_up(self) -> None:
        """Tell all that has been recorded so far."""
        with self._lock:
            # Looked for first: what was sent before it is in the file then.
            over = {rank: file for rank, file in self._outcomes.items() if file.exists()}
            while (told := self._samples.next()) is not None:
                self._events.received(*told)
            for rank, outcome in over.items():
                del self._outcomes[rank]
                with contextlib.suppress(OSError):
                    self._events.returned(rank, pickle.loads(outcome.read_bytes()))

    def _follow(self) -> None:
        while not self._events.done:
            self.catch_up()
            time.sleep(LOOK_SECONDS)


def _files(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank_{rank:05d}.samples", folder / f"rank_{rank:05d}.outcome"


def _next(file: Any) -> list[bytes] | None:
    """Return the next batch of a file, None where it is not yet whole."""
    length = int.from_bytes(head := file.read(_LENGTH_BYTES), "big")
    packed = file.read(length)
    if len(head) < _LENGTH_BYTES or len(packed) < length:
        return None
    batch: list[bytes] = pickle.loads(zlib.decompress(packed))
    return batch


def _append(file: Path, packed: bytes) -> None:
    frame = len(packed).to_bytes(_LENGTH_BYTES, "big") + packed
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.write(descriptor, frame) < len(frame):
            raise OSError("the disk is full")
    finally:
        os.close(descriptor)


def _replace(file: Path, content: bytes) -> None:
    part = file.with_suffix(".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
        target.write(content)
    os.replace(part, file)
