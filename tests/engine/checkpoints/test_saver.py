"""What a saver does where the disk is slow, full, read-only or gone."""

import re
import shutil
import subprocess
from pathlib import Path

from mimokit.cluster import EngineCluster
from mimokit.cluster.standstill import does_nothing
from tests.disks import fill, small_disk
from tests.engine.checkpoints.savers import places_while_the_disk_is_slow, save_in_trouble

DISK_KB = 8192
"""Three checkpoints of two ranks, and more."""


def test_a_rank_that_waits_for_its_writer_is_not_idle(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    ((before, now),) = cluster.run(places_while_the_disk_is_slow, str(tmp_path), world_size=1)
    assert "finish" in before.stack
    assert "finish" in now.stack
    assert not does_nothing(before, now)


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder.parent)], check=True)


def test_a_bad_disk_costs_checkpoints_alone_and_is_told_of_once(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    troubles = {
        2: lambda folder: fill(folder.parent),
        4: lambda folder: (folder.parent / "filler").unlink(),
        5: lambda folder: _remount(folder, "ro"),
        7: lambda folder: _remount(folder, "rw"),
        8: shutil.rmtree,
    }
    folder = tmp_path / "disk" / "checkpoints"
    with small_disk(folder.parent, DISK_KB):
        ranks = cluster.run(save_in_trouble, str(folder), troubles, world_size=2)
        assert not list(folder.glob(".*")), "nothing unfinished takes room"
    kept = [steps for _, steps in ranks[0].values()]
    assert kept == [[1], [1], [1], [1, 4], [1, 4], [1, 4], [4, 7], [8], [8, 9], [9, 10]]
    said = {step: text for step, (text, _) in ranks[0].items() if text}
    assert said.keys() == {2, 5}
    full = r"The checkpoint of step 2 in .* could not be written by rank 0 \(.*no space left on dev"
    assert re.match(full, said[2], re.IGNORECASE)
    assert "(Read-only file system): training goes on" in said[5]
    assert not any(text for text, _ in ranks[1].values())
