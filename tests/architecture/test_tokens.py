"""How images and recordings become positions and tokens."""

from dataclasses import replace
from typing import Any

import pytest

from mimokit.architecture.tokens import audio_geometry, image_geometry, tokens_per_item
from mimokit.config import ModuleArchitecture
from tests.rows import rows


def architecture(**fields: Any) -> ModuleArchitecture:
    sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 24}
    return ModuleArchitecture(**{**sizes, "vocab_size": 0, **fields})


def test_class_token_and_registers_are_positions_but_no_tokens() -> None:
    clip = architecture(image_size=8, patch_size=4, class_token=True)
    dino = architecture(image_size=16, patch_size=4, class_token=True, num_registers=4)
    assert (image_geometry(clip).positions, tokens_per_item(clip)) == (5, 4)
    assert (image_geometry(dino).positions, tokens_per_item(dino)) == (21, 16)


def test_a_recording_becomes_as_many_tokens_as_it_needs() -> None:
    audio = architecture(mel_bins=20, merge_size=4)
    geometry = audio_geometry(audio)
    assert (geometry.frames, geometry.frames_per_token, geometry.tokens) == (48, 8, 6)
    assert [geometry.tokens_of(frames) for frames in (1, 8, 9, 48)] == [1, 1, 2, 6]
    assert tokens_per_item(audio) == 6


@rows("frames", 0, 49)
def test_a_recording_that_is_empty_or_too_long_is_refused(frames: int) -> None:
    geometry = audio_geometry(architecture(mel_bins=20, merge_size=4))
    with pytest.raises(ValueError, match=f"has {frames} frames; the encoder takes 1 to 48"):
        geometry.tokens_of(frames)


def test_audio_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="seq_length 24 must be a multiple of merge_size 5"):
        audio_geometry(architecture(mel_bins=20, merge_size=5))
    with pytest.raises(ValueError, match="needs mel_bins"):
        audio_geometry(architecture())


def test_positions_follow_from_the_parts() -> None:
    geometry = image_geometry(architecture(image_size=8, patch_size=4))
    assert replace(geometry, registers=3).positions == geometry.patches + 3
