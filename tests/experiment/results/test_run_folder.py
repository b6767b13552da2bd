"""A run and its folder when the disk, or the client, gives out."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import mimokit
from mimokit.analysis import load_runs, read_run
from mimokit.cluster import RankError
from mimokit.config import ConfigError
from mimokit.experiment import background, sweep, train
from mimokit.experiment.results.folder import Folder
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.tables import AppendedTable
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TrainingRun
from mimokit.result_files import RunFile
from mimokit.samples import to_wire
from tests.charts.fakes import samples
from tests.disks import fill, mounted, read_only, small_disk
from tests.layouts import digits_config
from tests.processes import MARK, marked
from tests.rows import rows

CONFIG = digits_config((1, 8), (4, 2), num_iterations=10)
PLAN = mimokit.plan(CONFIG)
MOST_KB = 64
PATIENCE = 180.0
"""Seconds that what a killed client leaves may take to end on a busy machine."""


class _Ended:
    """A run of a cluster that has ended, with samples and maybe an error."""

    done, elapsed = True, 1.0

    def __init__(self, error: Exception | None = None) -> None:
        self.samples = [to_wire(sample) for sample in samples(iterations=10)]
        self.sample_count = len(self.samples)
        self._error = error

    def each_sample(self) -> Iterator[Any]:
        return iter(self.samples)

    def on_sample(self, callback: Callable[[Any], None]) -> None:
        threading.Thread(target=lambda: [callback(one) for one in self.samples]).start()

    def result(self, timeout: float | None = None) -> list[None]:
        if self._error is not None:
            raise self._error
        return []


class Received:
    """A run that hands over samples as a test receives them."""

    elapsed, done = 1.0, False

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._listeners: list[Callable[[Any], None]] = []
        self._ended = threading.Event()

    def give(self, messages: list[Any]) -> None:
        for message in messages:
            self._messages.append(message)
            for listener in self._listeners:
                listener(message)

    def end(self) -> None:
        self.done = True
        self._ended.set()

    @property
    def sample_count(self) -> int:
        return len(self._messages)

    def each_sample(self) -> Iterator[Any]:
        return iter(self._messages)

    def on_sample(self, callback: Callable[[Any], None]) -> None:
        self._listeners.append(callback)

    def result(self, timeout: float | None = None) -> list[None]:
        if not self._ended.wait(timeout):
            raise TimeoutError
        return []


def test_a_folder_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MOST_KB):
        fill(tmp_path / "disk")
        with pytest.raises(
            ConfigError, match=r"cannot be written there \(No space left on device\)"
        ):
            Folder.claim(tmp_path / "disk" / "run")


@rows("error", None, RankError(3, "KeyError", "no page", "in collate"))
def test_a_disk_that_fills_up_hides_neither_result_nor_error(
    tmp_path: Path, error: RankError | None
) -> None:
    """Rows stay whole, which is said once; with space again the result is there, and complete."""
    with small_disk(tmp_path / "disk", MOST_KB):
        folder = tmp_path / "disk" / "run"
        folder.mkdir()
        writer = RunWriter(Folder.claim(folder), RunSetting(CONFIG, PLAN))
        writer.begin()
        filler = fill(folder)
        run: Any = _Ended(error)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            training = TrainingRun(run, CONFIG, PLAN, folder, writer)
            with pytest.raises(RankError if error else OSError) as raised:
                training.result()
        (sentence,) = [str(one.message) for one in said]
        assert sentence.startswith(
            f"the run goes on, but its results cannot be written to {folder}"
        )
        notes = " ".join(raised.value.__notes__)
        assert "could not be written completely" in notes
        rows = folder / RunFile.METRICS_BY_RANK  # absent where not even its header had room
        assert not rows.exists() or rows.read_bytes().endswith(b"\n")
        filler.unlink()
        if error is None:
            assert len(training.result().steps) == 80
        else:
            with pytest.raises(RankError):
                training.result()
            assert json.loads((folder / RunFile.ERROR).read_text())["rank"] == 3
        assert len(read_run(folder).metrics) == 10


def test_a_disk_that_is_read_only_for_a_while_gets_all_rows_and_says_so_once(
    tmp_path: Path,
) -> None:
    """A bind mount, since root may write in spite of the mode of a folder."""
    place = tmp_path / "place"
    with mounted(place, "--bind", str(tmp_path)):
        folder = place / "run"
        writer = RunWriter(Folder.claim(folder), RunSetting(CONFIG, PLAN))
        writer.begin()
        received = Received()
        training = TrainingRun(received, CONFIG, PLAN, folder, writer)
        made = [to_wire(sample) for sample in samples(iterations=10)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            received.give(made[:24])
            with read_only(place):
                received.give(made[24:48])
                rows = (folder / RunFile.METRICS_BY_RANK).read_text().splitlines()
                assert len(rows) == 1 + 24, "whole lines, up to the last that could be written"
                assert not training.done
            received.give(made[48:])
            assert len((folder / RunFile.METRICS_BY_RANK).read_text().splitlines()) == 1 + 80
            received.end()
            assert len(training.result().steps) == 80
        assert len(said) == 1
        assert "(Read-only file system): rows are kept and written as soon as" in str(
            said[0].message
        )
        found = read_run(folder)
        assert (len(found.metrics), len(found.metrics_by_rank)) == (10, 80)
        assert found.info["status"] == "completed"


def test_rows_that_a_slow_disk_has_not_taken_at_the_end_are_in_the_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_WRITING", 0.1)
    slow, write = threading.Event(), AppendedTable._write

    def when_it_may(self: AppendedTable) -> None:
        slow.wait(60)
        write(self)

    monkeypatch.setattr(AppendedTable, "_write", when_it_may)
    writer = RunWriter(Folder.claim(tmp_path), RunSetting(CONFIG, PLAN))
    writer.begin()
    run: Any = _Ended()
    training = TrainingRun(run, CONFIG, PLAN, tmp_path, writer)
    heard: list[Any] = []
    training.on_sample(heard.append)
    deadline = time.monotonic() + 60
    while len(heard) < run.sample_count:  # others do not wait for the disk
        assert time.monotonic() < deadline
        time.sleep(0.01)
    threading.Timer(0.3, slow.set).start()
    training.result()
    with training._taken:
        training._taken.wait_for(lambda: training._messages_taken == run.sample_count, 60)
    found = read_run(tmp_path)
    assert (len(found.metrics), len(found.metrics_by_rank)) == (10, 80)
    assert len(found.evaluations) == 1


def test_a_read_only_folder_is_refused_before_engines_work(tmp_path: Path) -> None:
    """A bind mount, since root may write in spite of the mode of a folder."""
    place = tmp_path / "read only"
    with mounted(place, "--bind", str(tmp_path)), read_only(place):
        unused: Any = _OfEight()
        for start in (
            lambda: train(unused, CONFIG, directory=place),
            lambda: sweep(unused, CONFIG, results_dir=place),
        ):
            with pytest.raises(ConfigError, match="Read-only file system"):
                start()


class _OfEight:
    """A cluster that may not be used."""

    def __len__(self) -> int:
        return 8


KILLED_CLIENT = """
import sys
from mimokit.cluster import EngineCluster
from mimokit.experiment import train
from tests.layouts import digits_config

config = digits_config((1, 2), (2, 1), num_iterations=100_000)
with EngineCluster(n=2, progress=False) as cluster:
    train(cluster, config, directory=sys.argv[1], checkpoints=5).result()
"""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files and state with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        yield Path(folder)


def test_a_client_that_is_killed_leaves_all_whole_rows_and_nothing_else(
    tmp_path: Path, scratch: Path, record_property: Callable[[str, object], None]
) -> None:
    mark = uuid.uuid4().hex
    own = {"TMPDIR": str(scratch), MARK: mark}
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED_CLIENT, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **own},
    )
    try:
        deadline = time.monotonic() + 600
        table = tmp_path / RunFile.METRICS
        while not table.is_file() or table.read_bytes().count(b"\n") < 20:
            assert client.poll() is None, "the client has ended by itself"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)
        family = marked(mark)
        assert len(family) >= 6, "client, server, controller and its parts, two engines"
        assert left_in(scratch)
        shared = {path for process in family for path in shared_memory(process)}
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
    killed = time.monotonic()
    while left := [*marked(mark), *left_in(scratch), *filter(os.path.exists, shared)]:
        assert time.monotonic() < killed + PATIENCE, left
        time.sleep(0.05)
    record_property("seconds until nothing was left", round(time.monotonic() - killed, 1))
    print(f"{time.monotonic() - killed:.1f} s until nothing was left")
    found = read_run(tmp_path)
    assert len(found.metrics) >= 19
    assert found.metrics["loss"].notna().all()
    assert found.metrics["iteration"].tolist() == list(range(len(found.metrics)))
    assert len(found.metrics_by_rank) >= 2 * len(found.metrics)
    assert found.info["status"] == "running"
    # A process that gives its memory back has no environment any more, and still is one.
    while load_runs(tmp_path).runs["status"].tolist() != ["ended"]:
        assert time.monotonic() < killed + PATIENCE
        time.sleep(0.05)
    Folder.claim(tmp_path).release()


def left_in(scratch: Path) -> list[Path]:
    """Return files, sockets and folders; those of torch's cache may stay."""
    lasting = [*scratch.glob("torchinductor_*")]
    there = [Path(at, name) for at, *names in os.walk(scratch) for name in [*names[0], *names[1]]]
    return [
        path
        for path in there
        if not (path.is_dir() and any(path.is_relative_to(folder) for folder in lasting))
    ]


def shared_memory(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        maps = process.memory_maps()
        return [one.path for one in maps if one.path.startswith("/dev/shm/")]
    return []
