"""Image decoders behind the language model, on ranks of their own."""

from dataclasses import replace

import pytest
import torch

from mimokit.architecture.tokens import AudioGeometry, ImageGeometry
from mimokit.engine.data.reconstruction import Reconstruction
from mimokit.engine.models.patches import cut_patches
from mimokit.experiment import Evaluations, explain, train
from tests.layouts_apart import apart_config, with_image_decoder

ONE = (1, 1, 1)


def _config(painter=ONE, *options, **runtime):
    return with_image_decoder(apart_config(ONE, ONE, *options, **runtime), painter)


def test_a_right_image_decoder_has_no_culprit(cluster):
    report = explain(cluster, _config(), steps=1)
    assert report.passed, report.verdict
    assert report.not_compared == ()
    found = {one.seam.operation for one in report.compared if one.seam.module == "painter"}
    assert "encoders.row_encoder.decoder.layers.1" in found


def test_it_learns_and_its_loss_is_a_column(cluster, tmp_path):
    config = _config((2, 1, 1), 2, num_iterations=20, learning_rate=3e-3)
    evaluated = Evaluations(final_samples=16)
    steps = train(cluster, config, evaluations=evaluated, directory=tmp_path).result().steps
    errors = steps.groupby("iteration")["painter_reconstruction_loss"].first()
    assert errors.iloc[-3:].mean() < 0.7 * errors.iloc[0]
    assert steps["painter_tokens_per_sec"].iloc[0] == steps["images_tokens_per_sec"].iloc[0] > 0


_READ = ImageGeometry(1, 2, 2, 1, 1)
MADE = Reconstruction("painter", "images", (), 9, _READ, None, 1.0)


def _batch(images: torch.Tensor) -> dict[str, object]:
    inputs = {"items_per_sample": torch.tensor([1, 0]), "vit_encoder": {"pixel_values": images}}
    return {"input_ids": torch.zeros(2, 3), "modality_inputs": {"images": inputs}}


def test_pixels_of_a_row_are_those_of_a_patch():
    batch = _batch(torch.arange(8.0).reshape(1, 1, 2, 4))
    assert MADE.targets(batch).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    batch["targets"] = {"painter": {"pixel_values": torch.ones(1, 2, 4)}}
    assert MADE.targets(batch).tolist() == [[1.0] * 4] * 2
    batch["targets"] = {"painter": {"pixel_values": torch.ones(2, 2, 4)}}
    with pytest.raises(ValueError, match=r"'painter' is to make have shape \(2, 2, 4\) in the bat"):
        MADE.targets(batch)
    batch["targets"] = {"painter": {}}
    with pytest.raises(ValueError, match=r"are missing in the batch; give targets of \(1, 1, 2, 4"):
        MADE.targets(batch)


def test_pixels_of_images_of_any_size_are_those_of_their_merged_patches():
    read = ImageGeometry(4, 4, 2, 3, 2, any_size=True, frames_per_patch=2)
    made = replace(MADE, geometry=ImageGeometry(2, 2, 4, 3, 1), any_size=read)
    images = torch.arange(96.0).reshape(1, 3, 8, 4), torch.arange(96.0, 192).reshape(1, 3, 4, 8)
    patches = torch.cat([cut_patches(image, read)[0] for image in images])
    tokens = {"hidden_states": patches, "tokens_per_item": torch.tensor([2, 2])}
    inputs = {"items_per_sample": torch.tensor([2]), "vit_encoder": tokens}
    batch = {"input_ids": torch.zeros(1, 4), "modality_inputs": {"images": inputs}}
    tall, wide = images
    rows = tall[..., :4, :], tall[..., 4:, :], wide[..., :4], wide[..., 4:]
    assert torch.equal(made.targets(batch), torch.stack([row.flatten() for row in rows]))
    batch["targets"] = {"painter": {"hidden_states": patches[:4]}}
    with pytest.raises(
        ValueError, match=r"have shape \(4, 24\) in the batch; give targets of \(16, "
    ):
        made.targets(batch)


def test_rows_of_a_recording_are_the_frames_of_its_tokens():
    made = replace(MADE, geometry=AudioGeometry(positions=4, mel_bins=2, merge_size=2))
    recordings = torch.arange(32.0).reshape(2, 2, 8)
    tensors = {"input_features": recordings, "tokens_per_item": torch.tensor([1, 2])}
    inputs = {"items_per_sample": torch.tensor([1, 1]), "whisper_encoder": tensors}
    batch = {"input_ids": torch.zeros(2, 3), "modality_inputs": {"images": inputs}}
    short, long = recordings
    rows = torch.stack([short[:, :4].flatten(), long[:, :4].flatten(), long[:, 4:].flatten()])
    assert torch.equal(made.targets(batch), rows)
    batch["targets"] = {"painter": {"input_features": recordings[:1]}}
    with pytest.raises(
        ValueError, match=r"input_features that module 'painter' .* shape \(1, 2, 8\)"
    ):
        made.targets(batch)
