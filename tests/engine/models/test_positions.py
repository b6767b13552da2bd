"""Positions of three axes: words, and images of different sizes."""

import pytest
import torch

from mimokit.architecture.tokens import ImageGeometry
from mimokit.engine.models.patches import three_axis_positions, token_grids
from mimokit.engine.rotary import RotaryPositions
from tests.rows import rows

IMAGE = 8


def test_the_example_of_qwen2_vl():
    """A clip of three frames of 2 x 2 tokens, then five words.

    The figures are those of `Qwen2VLModel.get_rope_index` in transformers.
    """
    ids = torch.tensor([[IMAGE] * 12 + [1] * 5])
    shape = ImageGeometry(4, 4, patch_size=4, num_channels=1, merge_size=2, any_size=True)
    grid = token_grids(torch.tensor([[3, 4, 4]]), shape)
    assert three_axis_positions(ids, {IMAGE: grid})[:, 0].tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7],
        [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 3, 4, 5, 6, 7],
        [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 3, 4, 5, 6, 7],
    ]


def test_images_follow_each_other_across_samples():
    ids = torch.tensor([[1, IMAGE, IMAGE, IMAGE, 1], [1, 1, 9, IMAGE, 1]])
    grids = torch.tensor([[1, 1, 2], [1, 1, 1], [1, 1, 1]])
    found = three_axis_positions(ids, {IMAGE: grids})
    assert found[:, 0].T.tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3], [4, 4, 4]]
    assert found[:, 1].tolist() == [[0, 1, 2, 3, 4]] * 3, "a placeholder without grids is a word"


def test_without_images_all_axes_are_the_place():
    ids = torch.ones(2, 6, dtype=torch.int64)
    assert torch.equal(three_axis_positions(ids, {}), torch.arange(6).expand(3, 2, -1))


@rows(
    "row, grids, sentence",
    ([1, 8, 8, 1], [[1, 1, 3]], "Sample 0 has an image of 1 x 1 x 3 tokens, but not as many"),
    ([1, 8, 8, 1], [[1, 1, 1]], "Sample 0 has placeholders 8, but no grid is left for them"),
    ([1, 8, 8, 1], [[1, 1, 2], [1, 1, 1]], "grids of 1 image, but no placeholders 8"),
)
def test_grids_that_do_not_fit_are_refused(row, grids, sentence):
    with pytest.raises(ValueError, match=sentence):
        three_axis_positions(torch.tensor([row]), {IMAGE: torch.tensor(grids)})


def test_positions_in_a_row_rotate_as_those_of_llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=32, num_attention_heads=4)
    theirs = LlamaRotaryEmbedding(config)
    cosine, sine = theirs(torch.zeros(1, 9, 32), torch.arange(9)[None])
    half = torch.arange(9)[:, None] * RotaryPositions(10_000.0).frequencies(8)
    ours = torch.cat([half, half], dim=-1)
    torch.testing.assert_close(ours.cos(), cosine[0])
    torch.testing.assert_close(ours.sin(), sine[0])
