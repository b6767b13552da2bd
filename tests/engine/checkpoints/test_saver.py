"""What a saver does where the disk is slow."""

from __future__ import annotations

from pathlib import Path

from mimokit.cluster import EngineCluster
from mimokit.cluster.idle import _does_nothing
from tests.engine.checkpoints.savers import places_while_the_disk_is_slow


def test_a_rank_that_waits_for_its_writer_is_not_idle(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    ((before, now),) = cluster.run(places_while_the_disk_is_slow, str(tmp_path), world_size=1)
    assert "finish" in before.stack
    assert "finish" in now.stack
    assert not _does_nothing(before, now)
