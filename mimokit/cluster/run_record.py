"""What the ranks of a run record in the folder of a cluster that stays, and who reads it later.

    runs/<run id>/run.json                  function, engine of each rank, a note of the client
    runs/<run id>/rank_00003.samples        batches: length in 8 bytes, compressed pickle
    runs/<run id>/rank_00003.outcome        a compressed pickle, whole or not there

What zlib compresses has a checksum (Adler-32).
Only the owner of the cluster enters that folder, who may run anything on its engines anyway.
The last run of a cluster is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.cluster.errors import ClusterError

if TYPE_CHECKING:
    from mimokit.cluster.worker.task import RankOutcome

RUN_FILE = "run.json"
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class RunRecord:
    """A run that is recorded.

    Attributes:
        engines: rank -> the id of its engine.
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
    records = []
    for file in runs.glob(f"*/{RUN_FILE}"):
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(file.read_text())
            engines = {int(rank): engine for rank, engine in content["engines"].items()}
            records.append(RunRecord(**content | {"engines": engines}))
    return max(records, key=lambda record: record.started, default=None)


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
        self._try(lambda: _replace(self._outcome, zlib.compress(pickle.dumps(outcome), 1)))

    def _try(self, write: Any) -> None:
        if not self._broken:
            try:
                write()
            except OSError:
                # A gap would let later samples pass for earlier ones.
                self._broken = True


class RecordReader:
    """Reads what the ranks of a run record, evenly: first of the rank that has told fewest."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._folder = folder
        self._files = {rank: _files(folder, rank) for rank in ranks}
        self._places = dict.fromkeys(self._files, 0)
        self._told = dict.fromkeys(self._files, 0)
        self._over: set[int] = set()

    def read(self) -> Iterator[tuple[int, list[bytes] | RankOutcome]]:
        """Yield (rank, samples) of all that is recorded by now, then (rank, outcome).

        Raises:
            ClusterError: a file has other bytes than its rank has written.
        """
        with contextlib.suppress(OSError):
            os.listdir(self._folder)  # NFS then looks for files that were not there before
        # Looked for first: what was sent before it is in the file then.
        over = [rank for rank, (_, file) in self._files.items() if file.exists()]
        while (told := self._next()) is not None:
            yield told
        for rank in over:
            if rank not in self._over:
                self._over.add(rank)
                with contextlib.suppress(OSError):
                    yield rank, _unpacked(self._files[rank][1], self._files[rank][1].read_bytes())

    def _next(self) -> tuple[int, list[bytes]] | None:
        for rank in sorted(self._told, key=self._told.__getitem__):
            with contextlib.suppress(OSError), self._files[rank][0].open("rb") as file:
                file.seek(self._places[rank])
                batch = _next(file, self._files[rank][0])
                if batch is not None:
                    self._places[rank] = file.tell()
                    self._told[rank] += len(batch)
                    return rank, batch
        return None


def _files(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"rank_{rank:05d}.samples", folder / f"rank_{rank:05d}.outcome"


def _unpacked(file: Path, packed: bytes) -> Any:
    try:
        return pickle.loads(zlib.decompress(packed))
    except zlib.error as error:
        raise ClusterError(f"{file} has other bytes than its rank has written ({error})") from None


def _next(file: Any, path: Path) -> list[bytes] | None:
    length = int.from_bytes(head := file.read(_LENGTH_BYTES), "big")
    packed = file.read(length)
    if len(head) < _LENGTH_BYTES or len(packed) < length:
        return None
    batch: list[bytes] = _unpacked(path, packed)
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
