"""A run and its folder when the disk, or the client, gives out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mimokit
from mimokit.analysis import read_run
from mimokit.cluster import RankError
from mimokit.config import ConfigError
from mimokit.experiment import sweep, train
from mimokit.experiment.results.folder import Folder
from mimokit.experiment.results.info import RunSetting
from mimokit.experiment.results.writer import RunWriter
from mimokit.experiment.training import TrainingRun
from mimokit.result_files import RunFile
from mimokit.samples import to_wire
from tests.charts.fakes import samples
from tests.disks import fill, mounted, small_disk
from tests.layouts import digits_config

CONFIG = digits_config((1, 8), (4, 2), num_iterations=10)
PLAN = mimokit.plan(CONFIG)
MOST_KB = 64


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


def _train(folder: Path, error: Exception | None = None) -> TrainingRun:
    writer = RunWriter(Folder.claim(folder), RunSetting(CONFIG, PLAN))
    writer.begin()
    run: Any = _Ended(error)
    return TrainingRun(run, CONFIG, PLAN, folder, writer)


def test_a_folder_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MOST_KB):
        fill(tmp_path / "disk")
        with pytest.raises(
            ConfigError, match=r"cannot be written there \(No space left on device\)"
        ):
            Folder.claim(tmp_path / "disk" / "run")


@pytest.mark.parametrize("error", [None, RankError(3, "KeyError", "no page", "in collate")])
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


def test_a_read_only_folder_is_refused_before_engines_work(tmp_path: Path) -> None:
    """A bind mount, since root may write in spite of the mode of a folder."""
    place = tmp_path / "read only"
    with mounted(place, "--bind", str(tmp_path)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
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

config = digits_config(num_iterations=100_000)
with EngineCluster(n=1, progress=False) as cluster:
    train(cluster, config, directory=sys.argv[1]).result()
"""


def test_a_client_that_is_killed_leaves_all_whole_rows(tmp_path: Path) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED_CLIENT, str(tmp_path)], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 600
        table = tmp_path / RunFile.METRICS
        while not table.is_file() or table.read_bytes().count(b"\n") < 20:
            assert client.poll() is None, "the client has ended by itself"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
    found = read_run(tmp_path)
    assert len(found.metrics) >= 19
    assert found.metrics["loss"].notna().all()
    assert found.metrics["iteration"].tolist() == list(range(len(found.metrics)))
    assert len(found.metrics_by_rank) >= len(found.metrics)
    assert found.info["status"] == "running"
    Folder.claim(tmp_path).release()
