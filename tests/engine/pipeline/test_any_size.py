"""Images of different sizes on ranks of their own: their grids cross, and one process agrees."""

from dataclasses import replace

import pytest
import torch

import mimokit
from mimokit.cluster import RankError
from mimokit.experiment import verify
from tests import seams
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted, replacing


def test_grids_and_positions_have_slots():
    sizes = {"qwen": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    pipeline = mimokit.plan(apart_multimodal_config(sizes, three_axes=True)).pipeline
    counts = [stage.counts for stage in pipeline.slots.stages]
    assert counts == [
        {"text": 0, "audio": 0, "vision": 0},
        {"text": 0, "audio": 0, "vision": 4},  # header, hidden states, images per sample, grids
        {"text": 0, "audio": 0, "vision": 5},  # header, rows and images per sample, rows, grids
        {"text": 3, "audio": 0, "vision": 0},  # header, hidden states, position ids
    ]


@replacing
def _grids_shrunk(original, self, microbatch, edge, message):
    """Plant: grids arrive that describe fewer rows than came with them."""
    if message.sizes is not None:
        shrunk = torch.tensor([1, 2, 2]).expand(len(message.sizes), -1)
        message = replace(message, sizes=shrunk)
    original(self, microbatch, edge, message)


def test_rows_that_do_not_match_their_grids_are_refused(cluster):
    config = apart_multimodal_config({"qwen": (1, 1, 1), LANGUAGE: (1, 1, 1)}, three_axes=True)
    with (
        planted(cluster, seams.TAKE, _grids_shrunk, 2),
        pytest.raises(RankError, match=r"'qwen' sent \d+ rows .*, but \d+ are those of the grids"),
    ):
        verify(cluster, config, steps=1)
