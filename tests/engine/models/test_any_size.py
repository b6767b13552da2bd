"""Images of different sizes: their grids travel with them, and one process computes the same."""

import pytest
import torch

import mimokit
from mimokit.cluster import RankError
from mimokit.engine.data.batch import check_tokens
from mimokit.engine.data.sources import DigitData, default_data
from mimokit.engine.pipeline.packing import checked_grids
from mimokit.engine.ragged import Ragged
from tests.layouts_multimodal import LANGUAGE, SPECIAL_TOKENS, multimodal_config
from tests.whole_runs import ONE_ROW_OF_ANY_SIZE


def _batch(samples=8, **options):
    config = multimodal_config({"qwen": (1, 1), LANGUAGE: (1, 1)}, "homogeneous", **options)
    data = default_data(config)
    return config, data, data.collate_fn([data.train[number] for number in range(samples)])


def test_scans_have_sizes_of_their_own():
    config, data, batch = _batch(32, three_axes=True)
    assert data.name == "digits (vision + text)"
    inputs = batch["modality_inputs"]["qwen"]["vit_encoder"]
    sizes = {tuple(grid) for grid in inputs["grid_thw"].tolist()}
    assert sizes == {(1, 2, 2), (1, 2, 4), (1, 4, 2), (1, 4, 4)}
    assert inputs["hidden_states"].shape == (int(inputs["grid_thw"].prod(1).sum()), 32)
    assert torch.equal(inputs["tokens_per_item"], inputs["grid_thw"].prod(1) // 4)
    assert batch["position_ids"].shape == (3, 32, 48)
    placeholders = {name: [token] for name, token in SPECIAL_TOKENS.items()}
    check_tokens(batch, placeholders, dict.fromkeys(SPECIAL_TOKENS, 4))
    with pytest.raises(ValueError, match="'qwen', not 'images'"):
        DigitData()(config)


def _encode(plan, config, patches, grid):
    """Return the rows of images."""
    import torch

    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    (encoder,) = model.modality_submodules["qwen"].encoders.values()
    with torch.no_grad():
        return encoder.eval()(hidden_states=patches, grid_thw=grid)


def _rows(cluster, patches, grid, **fields):
    config, _, _ = _batch(1)
    network = config.model.get_architecture("qwen")
    config.model.module_architectures["qwen"] = network.model_copy(
        update={"class_token": True, "num_registers": 2, **fields}
    )
    return cluster.run(_encode, mimokit.plan(config), config, patches, grid, world_size=1)[0]


@pytest.mark.parametrize(
    ("fields", "shape"), [({}, (2 + 4 + 1, 4 * 32)), (ONE_ROW_OF_ANY_SIZE, (3, 32))]
)
def test_an_image_becomes_its_own_rows_whatever_is_beside_it(cluster, fields, shape):
    generator = torch.Generator().manual_seed(5)
    grid = torch.tensor([[1, 2, 4], [1, 4, 4], [1, 2, 2]])
    parts = [torch.rand(int(one.prod()), 32, generator=generator) for one in grid]
    together = _rows(cluster, torch.cat(parts), grid, **fields)
    assert together.shape == shape
    alone = [
        _rows(cluster, part, one[None], **fields) for part, one in zip(parts, grid, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


def test_the_first_layer_is_a_convolution_over_repeated_images():
    from mimokit.architecture.tokens import image_geometry
    from mimokit.engine.models.patches import cut_patches

    config, _, _ = _batch(1)
    network = config.model.get_architecture("qwen")
    network = network.model_copy(update={"num_channels": 3, "temporal_patch_size": 2})
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(7))
    convolution = torch.nn.Conv3d(3, 32, kernel_size=(2, 4, 4), stride=(2, 4, 4))
    repeated = images[:, :, None].repeat(1, 1, 2, 1, 1)
    squares = convolution(repeated).reshape(5, 32, 2, 2, 2, 2).permute(0, 2, 4, 3, 5, 1)
    patches = cut_patches(images, image_geometry(network))
    found = torch.nn.functional.linear(patches, convolution.weight.flatten(1), convolution.bias)
    torch.testing.assert_close(found, squares.reshape(5, 16, 32))


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ([[1, 2, 6]], r"Image 0 has a grid of \[1, 2, 6\] .* one frame of up to 4 x 4 patches"),
        ([[1, 2, 2], [2, 2, 2]], r"Image 1 has a grid of \[2, 2, 2\]"),
        ([[1, 3, 4]], "in multiples of 2"),
        ([[1, 2, 2]], "The images have 12 patches, but grid_thw describes 4"),
    ],
)
def test_grids_that_the_encoder_cannot_take_are_refused(cluster, grid, sentence):
    with pytest.raises(RankError, match=sentence):
        _rows(cluster, torch.zeros(12, 32), torch.tensor(grid))


def test_a_grid_for_every_image():
    grids, rows = torch.tensor([[1, 1, 1], [1, 2, 1]]), torch.zeros(3, 4)
    right = Ragged(rows, samples=[1, 0, 2], items=[1, 0, 1], sizes=grids)
    assert checked_grids(right, "qwen") is grids
    with pytest.raises(ValueError, match="Module 'qwen' sent 2 grids for 3 images"):
        checked_grids(Ragged(rows, [1, 1, 1], [1, 1, 1], grids), "qwen")
    with pytest.raises(
        ValueError, match=r"sent 1 row for sample 2, but . are those of the grids of its 1 image;"
    ):
        checked_grids(Ragged(rows, [1, 0, 1], [1, 0, 1], grids), "qwen")
