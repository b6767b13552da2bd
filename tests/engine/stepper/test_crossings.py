"""A stepper sees what crosses between modules of any kind, and gradients that come back."""

import pytest

from mimokit.experiment import Stepper
from tests.layouts_apart import apart_config, decoded_config, with_adapter, with_image_decoder
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import adapted_on_shared_ranks, direct_rows

ONE, TWO = (1, 1, 1), (1, 1, 2)
ROWS = {
    "adapter": (
        with_adapter(apart_config(ONE, ONE), TWO),
        {(False, 0, 2), (False, 0, 3), (True, 2, 0), (True, 3, 0)},
    ),
    "writer": (
        decoded_config({"images": ONE, LANGUAGE: TWO, "writer": ONE}),
        {(False, 1, 3), (False, 2, 3), (True, 3, 1), (True, 3, 2)},
    ),
    "painter": (
        with_image_decoder(apart_config(ONE, ONE), TWO),
        {(False, 1, 2), (False, 1, 3), (True, 2, 1), (True, 3, 1)},
    ),
}


def _pieces(cluster, config):
    """Return what crosses in a step; none of it differs from what was planned."""
    with Stepper(cluster, config) as stepper:
        while not stepper.snapshots or not stepper.now.result:
            stepper.next()
        assert not stepper.differences
        return [piece for snapshot in stepper.snapshots for piece in snapshot.pieces]


@pytest.mark.parametrize("module", ROWS)
def test_rows_cross_between_ranks_and_gradients_come_back(cluster, module):
    config, crossed = ROWS[module]
    crossings = [piece.crossing for piece in _pieces(cluster, config)]
    assert crossed == {
        (crossing.backward, crossing.source_rank, crossing.destination_rank)
        for crossing in crossings
        if crossing.destination == module
    }


def test_messages_between_sets_of_ranks_of_a_pipeline(cluster):
    around = adapted_on_shared_ranks((4, 1, 1), (1, 1, 4), (2, 2, 1))
    ends = {
        (piece.crossing.source_rank, piece.crossing.destination_rank)
        for piece in _pieces(cluster, around)
        if piece.crossing.destination == "adapter" and piece.crossing.backward
    }
    assert ends == {(rank, 3) for rank in range(4)}


def test_rows_cross_to_each_receiver(cluster):
    config = direct_rows(ONE, ONE, ONE)
    crossed = {
        (piece.crossing.backward, piece.crossing.destination, piece.shape[-1])
        for piece in _pieces(cluster, config)
        if piece.crossing.source == "images"
    }
    receivers = ("adapter", LANGUAGE)
    widths = {name: config.model.get_architecture(name).hidden_size for name in receivers}
    assert crossed == {(way, *of) for way in (False, True) for of in widths.items()}
