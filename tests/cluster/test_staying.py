"""What clusters that stay leave for later clients: entries, and records of their runs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mimokit.cluster import ClusterError, EngineCluster, run_record
from mimokit.cluster.local import entries
from mimokit.cluster.local.callers import Caller, call, listen_in
from mimokit.cluster.local.entries import ENTRY, ClusterEntry
from mimokit.cluster.run_record import RankRecorder, RecordReader, RunRecord, last_record
from tests.rows import rows


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterEntry:
    """The written entry of a cluster whose server is this process."""
    monkeypatch.setattr(entries, "_places", lambda: [tmp_path])
    directory = entries.new_folder("one")
    made = ClusterEntry(str(directory), "fork", True, 2, 30.0, ()).of_this_process()
    made.write()
    return made


def test_an_entry_is_its_owners_and_goes_with_its_cluster(entry: ClusterEntry) -> None:
    folder = Path(entry.directory)
    modes = [path.stat().st_mode & 0o777 for path in (folder / ENTRY, folder)]
    assert (entry.name, modes) == ("one", [0o600, 0o700])
    assert entries.entries() == [entry]
    folder.chmod(0o755)
    assert entries.entries() == [], "others could have written it"
    folder.chmod(0o700)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    replace(entry, pid=gone.pid).write()
    assert entries.entries() == []
    assert not folder.exists()


def test_names_that_cannot_be_used(entry: ClusterEntry) -> None:
    for bad in ("", "../one", "a b", "x" * 65, ".one"):
        with pytest.raises(ClusterError, match="a cluster cannot be called"):
            EngineCluster.connect(bad)
    with pytest.raises(ClusterError, match=r"no cluster is called 'two' \(there are one\)"):
        EngineCluster.connect("two")
    with pytest.raises(ClusterError, match=r"a cluster is called 'one' already: "):
        EngineCluster(1, stay=True, name="one", progress=False)
    with pytest.raises(ClusterError, match="the cluster 'one' does not answer"):
        EngineCluster.connect("one")
    replace(entry, stays=False).write()
    with pytest.raises(ClusterError, match=r"ends with the process that started it.*stay=True"):
        EngineCluster.connect("one")
    entries.new_folder("two")
    with pytest.raises(ClusterError, match=r"mimokit-cluster-two is there and no cluster"):
        EngineCluster(1, name="two", progress=False)


def test_the_kernel_says_who_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen_in(tmp_path) as listener:
        ours, theirs = call(tmp_path), Caller(listener.accept()[0])
        assert (theirs.pid, theirs.is_owner) == (os.getpid(), True)
        monkeypatch.setattr(os, "geteuid", lambda: theirs._user + 1)
        assert theirs.is_owner == (theirs._user == 0)
        ours.say({"command": "look"})
        assert theirs.receive() == [{"command": "look"}]
        ours._connection.sendall(b'{"command": "en')
        ours.close()  # the rest never comes
        assert [theirs.receive(), theirs.receive()] == [[], None]
        theirs.close()


def test_a_record_is_read_to_its_last_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded after a full disk stays out: it would pass for what was lost."""
    run = RunRecord("run", "f", {0: 5, 1: 6})
    earlier = RunRecord("earlier", "g", {0: 5}, started=run.started - 1)
    earlier.write(tmp_path)
    folder = run.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert last_record(tmp_path) == run
    whole, torn = RankRecorder(str(folder), 0), RankRecorder(str(folder), 1)
    whole.add([b"a", b"b"])
    torn.add([b"c"])
    monkeypatch.setattr(run_record.os, "write", lambda descriptor, frame: 3)
    torn.add([b"lost"])
    monkeypatch.undo()
    torn.add([b"after it"])
    with (folder / "rank_00001.samples").open("ab") as file:
        file.write(b"\0\0\0")
    reader = RecordReader(folder, (0, 1))
    assert [*reader.read(), *reader.read()] == [(0, [b"a", b"b"]), (1, [b"c"])]
    whole.close("ended")
    assert [*reader.read(), *reader.read()] == [(0, "ended")]


@rows("file", "rank_00000.samples", "rank_00000.outcome")
def test_a_damaged_record_is_refused(tmp_path: Path, file: str) -> None:
    recorder = RankRecorder(str(tmp_path), 0)
    recorder.add([b"a", b"b"])
    recorder.close("ended")
    content = bytearray((tmp_path / file).read_bytes())
    content[-1] ^= 1
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ClusterError, match=f"{file} has other bytes than its rank has written"):
        list(RecordReader(tmp_path, (0,)).read())


def test_ranks_are_told_evenly(tmp_path: Path) -> None:
    """A reader that puts ranks together holds no more than they are apart."""
    for rank, together in ((0, 5), (1, 2)):
        recorder = RankRecorder(str(tmp_path), rank)
        for first in range(0, 60, together):
            recorder.add([bytes([number]) for number in range(first, first + together)])
    told = {0: [], 1: []}  # type: ignore[var-annotated]
    for rank, some in RecordReader(tmp_path, (0, 1)).read():
        told[rank] += some
        assert abs(len(told[0]) - len(told[1])) <= 5
    assert told[0] == told[1] == [bytes([number]) for number in range(60)]
