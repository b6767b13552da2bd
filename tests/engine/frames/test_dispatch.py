"""What ranks compute does not depend on which rank encodes a frame."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mimokit.engine.frames import dispatch, input_dispatch, output_dispatch, wrap_vit_forward
from mimokit.planning.frames import FrameCost, FrameSettings, route_frames
from tests.engine.frames.toy import MERGE, SCALES, Case, ToyEncoder, Wrong, differences, errors

TOLERANCE = 1e-12
"""In float64."""
MIXED = [[(1, 2, 4), (3, 4, 4), (1, 6, 2)], [], [(1, 2, 2)], [(2, 4, 6), (1, 2, 2), (1, 2, 2)]]
CASES = {
    "mixed sizes, one rank without": Case(MIXED),
    "pixels of one rank need a gradient": Case(MIXED, pixels=[2]),
    "fewer frames than ranks": Case([[], [(1, 4, 4)], [], []]),
    "one long video": Case([[(16, 2, 2)], [], [(1, 2, 2)], []]),
    "whole videos": Case(MIXED, settings=FrameSettings(MERGE, split_time=False)),
    "by attention": Case(MIXED, settings=FrameSettings(MERGE, cost=FrameCost(1.0, 0.5))),
    "some ranks": Case(MIXED[:2], ranks=[1, 3]),
    "more rows than travel ahead": Case([[(1, 2, 2)] * 300, [], [], [(1, 2, 2)]]),
    "equal frames": Case([[(1, 4, 4)]] * 4),
    "no frames": Case([[]] * 4),
    "frozen": Case(MIXED, frozen=True),
}


@pytest.fixture(scope="module")
def compared(shared_cluster):
    """Return what every rank found, case by case."""
    cluster = shared_cluster.get()
    ranks = cluster.run(differences, list(CASES.values()), world_size=4)
    return {name: [found[n] for found in ranks] for n, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_without_dispatch(compared, name):
    members = CASES[name].members()
    for rank, found in enumerate(compared[name]):
        if rank not in members:
            assert found is None
            continue
        assert found["outputs"] <= TOLERANCE
        assert found["weights"] <= TOLERANCE
        assert found["patches"] <= TOLERANCE
        assert found["differentiable"] == (not CASES[name].frozen,) * 2
        assert (found["size"] > 0) == (name not in ("no frames", "frozen"))


def test_the_work_is_shared(compared):
    def patches(name):
        found = [one["encoded"] for one in compared[name]]
        return [before for before, _ in found], [after for _, after in found]

    assert patches("one long video") == ([64, 0, 4, 0], [20, 16, 16, 16])
    before, after = patches("whole videos")
    assert max(after) == 48 < max(before)
    assert sum(after) == sum(before)
    assert patches("fewer frames than ranks") == ([0, 16, 0, 0],) * 2
    assert patches("equal frames") == ([16] * 4,) * 2


WRONG = {
    Wrong(3, settings=FrameSettings(4)): "Ranks 0 and 3 of the group have different settings of",
    Wrong(1, width=2): "Ranks 0 and 1 of the group have different numbers per patch",
    Wrong(2, dtype=torch.float32): "Ranks 0 and 2 of the group have different types of patches",
    Wrong(2, no_grad=True): "Ranks 0 and 2 of the group have different ideas of whether gradients",
    Wrong(3, patches_left_out=1): "On rank 3 of the group, there are 3 patches, but grid_thw desc",
    Wrong(1, grid=((1, 2, 3),)): "On rank 1 of the group, row 0 of the grid is [1, 2, 3]",
    Wrong(1, grid=((1.0, 2.0, 2.0),)): "On rank 1 of the group, grid_thw is not [rows, 3]",
}


def test_every_rank_says_what_is_wrong_and_goes_on(cluster):
    """The case at the end is right again: after an error ranks are in step."""
    cases = [*WRONG, Wrong(3, rows_too_many=2), Wrong()]
    ranks = cluster.run(errors, cases, world_size=4)
    for rank, (*found, too_many, right) in enumerate(ranks):
        for sentence, wanted in zip(found, WRONG.values(), strict=True):
            assert sentence.startswith(wanted)
        assert right == ""
        if rank == 3:
            assert "On rank 3 of the group, the encoder was given" in too_many
            assert "output 1 has" in too_many
        else:
            assert too_many.startswith("The encoder of rank 3 of the group returned another number")


def test_wrong_rows_where_nothing_travels():
    grid = np.array([[1, 2, 2]])
    routes = route_frames([grid, grid], FrameSettings(MERGE))
    assert routes.all_at_home
    context = dispatch.FrameContext(routes, 1, SimpleNamespace(), True)
    with pytest.raises(dispatch.FrameDispatchError, match="output 1 has 2 rows of 4 patches"):
        output_dispatch(context, [torch.zeros(4, 1), torch.zeros(2, 1)], [1, 4])
    for scales in ([1], [1, 0]):
        with pytest.raises(dispatch.FrameDispatchError, match="for 2 outputs; give the patches"):
            output_dispatch(context, [torch.zeros(4, 1), torch.zeros(1, 1)], scales)


def test_one_rank_says_once_that_nothing_is_dispatched(caplog):
    alone = SimpleNamespace(size=lambda: 1)
    settings = FrameSettings(MERGE)
    dispatch._say_once.cache_clear()
    encoder, patches = ToyEncoder(), torch.ones(4, 5, dtype=torch.float64)
    plain = encoder(patches, torch.tensor([[1, 2, 2]]))
    wrapped = wrap_vit_forward(
        lambda patches, grid: input_dispatch(patches, grid, group=alone, settings=settings),
        encoder.forward,
        lambda context, outputs: output_dispatch(context, outputs, SCALES),
    )
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            found = wrapped(patches, torch.tensor([[1, 2, 2]]))
    assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
    assert [record.message for record in caplog.records] == [
        "Frames are not dispatched: the group has one rank."
    ]
