"""No piece of a calibration takes a tensor of another device than that of its rank."""

from __future__ import annotations

from mimokit.cluster import EngineCluster


def pieces_on_two_devices() -> list[str]:
    """Run each piece on a rank that has a device; return their names."""
    from mimokit.engine.calibration.pieces import pieces_of_step
    from mimokit.engine.calibration.single_rank import Alone
    from mimokit.engine.device import close_groups_since, open_groups
    from tests.two_devices import two_devices

    before = open_groups()
    with two_devices():
        pieces, stages = pieces_of_step(Alone.create())
        for piece in pieces:
            piece.run(piece.watch)
    for stage in stages:
        stage.wrapped.release()
    close_groups_since(before)
    return [piece.name for piece in pieces]


def test_pieces_compute_on_the_device_of_the_rank(cluster: EngineCluster) -> None:
    (names,) = cluster.run(pieces_on_two_devices, world_size=1)
    assert {"load", "encoder forward", "language backward", "update"} <= set(names)
