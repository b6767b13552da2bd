"""The frames of a micro-batch in a plan: what replicas read, and what sharing them saves."""

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mimokit
from mimokit.config import ConfigError, ExperimentConfig, ModalityPresence, PredictionConfig
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL
from mimokit.config_files import load_preset
from mimokit.planning.layout import plan_layout
from mimokit.prediction import predict
from mimokit.prediction.hardware import load_hardware, save_hardware
from mimokit.prediction.workload import EncoderInput, FramePattern
from tests.cli.call import call
from tests.rows import rows

UNEVEN = [64, 64, 48, 32, 8, 4, 2, 1]


def videos(frames: list[int] | None = None, **prediction: Any) -> ExperimentConfig:
    """Return LLaVA on 8 ranks with 64 frames of 576 patches in a sample at most."""
    config = load_preset("llava_7b_colocated")
    most = config.model.module_architectures["images"].seq_length * 64
    config.data.modality_seq_lengths = {"images": most}
    config.data.seq_length = most + 1024
    config.model.module_architectures["language_module"].seq_length = most + 1024
    if frames is not None:
        config.data.modality_frames = {"images": frames}
    if prediction:
        config.prediction = PredictionConfig(**prediction)
    return config


def test_uneven_frames_are_worth_sharing() -> None:
    (batch,) = mimokit.plan(videos(UNEVEN)).frames
    assert batch.frames == tuple(UNEVEN), "one sample per replica"
    assert batch.ranks == tuple((rank,) for rank in range(8))
    assert not batch.shared
    found = batch.forecast
    assert found is not None
    assert found.worth_it
    assert max(found.before) / max(found.after) == pytest.approx(64 / 28, rel=0.3)
    assert found.patches_between.sum() == 576 * sum(UNEVEN)


@rows("any_size, times", (False, 1), (True, 2))
def test_images_of_one_size_travel_once(any_size: bool, times: int) -> None:
    config = videos(UNEVEN)
    network = config.model.module_architectures["images"]
    network.temporal_patch_size, network.any_image_size = 2, any_size
    (batch,) = mimokit.plan(config).frames
    assert batch.forecast is not None
    assert batch.forecast.links is not None
    pixels = network.num_channels * network.patch_size**2
    assert batch.forecast.links.input_bytes == 2 * times * pixels


def test_a_patch_without_effect_is_said_by_the_plan() -> None:
    config = load_preset("llava_7b_homogeneous")
    config.runtime.patch_type = [FRAME_PARALLEL]
    for module in config.model.module_parallelisms.values():
        module.tensor_parallel, module.data_parallel = 8, 1
    (batch,) = mimokit.plan(config, 8).frames
    assert "Frame parallel has no effect: one replica encodes all frames" in str(batch.forecast)


def test_the_time_is_that_of_the_prediction() -> None:
    """A micro-batch of as many frames on every rank takes what the predictor says a step takes."""
    config = videos([64])
    config.data.num_microbatches = 1
    (batch,) = mimokit.plan(config).frames
    assert batch.forecast is not None
    assert max(batch.forecast.before) == pytest.approx(predict(config).parts["encoder"], rel=0.02)
    assert not batch.forecast.worth_it


def test_the_prediction_of_uneven_frames_is_that_of_the_plan() -> None:
    config = videos(UNEVEN)
    config.data.num_microbatches = 1
    (batch,) = mimokit.plan(config).frames
    assert batch.forecast is not None
    read, shared = max(batch.forecast.before), max(batch.forecast.after)
    uneven = predict(config)
    assert uneven.parts["encoder"] == pytest.approx(read, rel=0.02)
    config.runtime.patch_type = [FRAME_PARALLEL]
    even = predict(config)
    assert even.parts["encoder"] == pytest.approx(shared, rel=0.02)
    saved = uneven.seconds - even.seconds
    assert saved == pytest.approx(read - shared, rel=0.05)


def test_the_prediction_of_samples_in_another_order() -> None:
    config = videos([32, 32, 1, 1])
    config.model.module_parallelisms["images"].data_parallel = 4
    config.model.module_parallelisms["images"].tensor_parallel = 2
    config.data.num_microbatches = 1
    drawn = predict(config).parts["encoder"]
    config.runtime.sample_order = BALANCED
    (batch,) = mimokit.plan(config).frames
    assert set(batch.frames) == {33}
    assert batch.forecast is not None
    even = predict(config).parts["encoder"]
    assert even == pytest.approx(max(batch.forecast.before), rel=0.02)
    assert even < 0.95 * drawn


def test_patterns_give_every_layout_its_imbalance() -> None:
    uneven = FramePattern(((8, 0, 4, 4), (0, 0, 0, 0)))
    seen = EncoderInput(16, uneven.mean, pattern=uneven)
    assert seen.count == 2
    assert seen.imbalance_over(4, 1) == 2
    assert seen.imbalance_over(np.array([4, 2, 1]), np.array([1, 2, 4])).tolist() == [2, 1, 1]
    assert replace(uneven, shared=True).imbalance(4, 1) == 1
    assert FramePattern(((0,),)).imbalance(4, 2) == 1


def test_even_frames_and_slow_links_are_not_worth_it(tmp_path: Path) -> None:
    even = str(mimokit.plan(videos([8])))
    assert "not worth it: the slowest encoder takes only 1.00 times the mean" in even
    fast = load_hardware("h100")
    slow = replace(fast, domain=replace(fast.domain, bandwidth=1e3))
    path = save_hardware(slow, tmp_path / "slow.yaml")
    (batch,) = mimokit.plan(videos(UNEVEN, gpu=str(path))).frames
    assert batch.forecast is not None
    assert not batch.forecast.worth_it
    assert "Frame parallel is not worth it: the slowest encoder would take" in str(batch.forecast)


def test_all_displays_say_the_same(tmp_path: Path) -> None:
    config = videos(UNEVEN)
    path = str(config.save(tmp_path / "videos.yaml"))
    plan = mimokit.plan(config)
    (batch,) = plan.frames
    done = call("plan", path, columns=200)
    assert done.exit_code == 0, done.stderr
    for text in (done.stdout, str(plan), unescape(plan._repr_html_())):
        assert "Frames of 'images' in a micro-batch, not shared (runtime.patch_type)" in text
        assert "36,864" in text, "patches of 64 frames"
        assert str(batch.forecast)[:40] in text
    found = json.loads(call("plan", path, "--json").stdout)["frames"]
    assert found["images"]["frames"] == UNEVEN
    assert found["images"]["worth_it"]
    assert max(found["images"]["after"]) < max(found["images"]["before"])


def test_a_config_that_says_nothing_about_frames_has_none() -> None:
    assert mimokit.plan(videos()).frames == ()
    assert "frames" not in mimokit.plan(videos()).to_json()


def test_what_is_shared_and_what_is_absent() -> None:
    config = videos()
    config.data.modality_seq_lengths = {"images": 576 * 2}
    config.runtime.patch_type = [FRAME_PARALLEL]
    config.data.modality_presence = {
        "images": ModalityPresence(microbatches=[False, True], samples=[True, True, False])
    }
    (batch,) = mimokit.plan(config).frames
    assert batch.shared
    assert batch.frames == (2, 2, 0, 2, 2, 0, 2, 2), "of the first micro-batch with images"


def test_a_plan_takes_no_time_for_each_of_very_many_micro_batches_or_samples() -> None:
    """Counted one by one they took hours; a mutant of a config had them."""
    config = videos()
    config.data.num_microbatches = 10**9
    config.data.modality_presence = {"images": ModalityPresence(samples=[False] * 1000)}
    (batch,) = mimokit.plan(config).frames
    assert not any(batch.frames)
    config.data.base_batch_size = 10**9
    assert mimokit.plan(config).frames == ()


def test_a_time_that_is_unknown_is_said_to_be() -> None:
    config = videos(UNEVEN)
    config.runtime.precision = "fp7"
    (batch,) = mimokit.plan(config).frames
    assert batch.forecast is None
    text = str(mimokit.plan(config))
    assert "Encoder times are not estimated" in text
    assert "36,864" in text


def test_frames_without_room_are_rejected() -> None:
    sentence = r"Module 'images': a sample has 65 frames of 576 tokens .* give fewer frames\."
    for planned in (mimokit.plan, plan_layout):
        with pytest.raises(ConfigError, match=sentence):
            planned(videos([65, 1]))
