"""Digits seen, heard and read: the samples, their batches and where modalities are absent."""

import pickle

import numpy as np
import pytest
import torch

import mimokit
from mimokit.architecture.tokens import tokens_per_item
from mimokit.config import DataConfig
from mimokit.engine.data.batch import check_tokens
from mimokit.engine.data.digits import END_TOKEN, READ_TOKEN
from mimokit.engine.data.iterators import PlannedIndex, iterate_batches, place_of
from mimokit.engine.data.sources import (
    DigitData,
    MultimodalDigitData,
    default_data,
    synthetic_data,
    why_no_multimodal_digits,
)
from mimokit.engine.data.speech import frames_of, load_speech, log_mel, mel_filters, padded, speak
from tests.layouts_multimodal import LANGUAGE, PRESENCE, SPECIAL_TOKENS, multimodal_config
from tests.rows import rows

MIXED = {"clip": (1, 4), "dino": (4, 1), "audio": (2, 2), LANGUAGE: (2, 2)}
TOKENS = {name: SPECIAL_TOKENS[name] for name in MIXED if name != LANGUAGE}


def _config(**options):
    return multimodal_config(MIXED, "colocated", num_microbatches=2, **options)


def test_there_are_ten_different_recordings():
    recordings = load_speech()
    assert len({recording.tobytes() for recording in recordings}) == 10
    for recording in recordings:
        assert 0.2 < len(recording) / 8000 < 0.4
        assert -1 <= recording.min() < -0.1 < 0.1 < recording.max() <= 1


@rows("frequency", 300.0, 1000.0, 3000.0)
def test_a_tone_is_loudest_in_its_band(frequency):
    tone = np.sin(2 * np.pi * frequency * np.arange(4000) / 8000)
    frames = log_mel(tone, 20)
    assert frames.shape == (20, frames_of(4000))
    centres = mel_filters(20) @ torch.linspace(0, 4000, 129) / mel_filters(20).sum(1)
    nearest = int((centres - frequency).abs().argmin())
    assert abs(int(frames[:, 20].argmax()) - nearest) <= 1
    silent = padded(frames, 60)
    assert silent.shape == (20, 60)
    assert torch.equal(silent[:, :51], frames)
    assert silent[:, 51:].unique().tolist() == [float(frames.min())]


def test_digits_told_apart_by_their_sound():
    """A recording, distorted, is nearer to its own digit than to most others."""
    generator = np.random.default_rng(1)

    def profile(recording):
        frames = log_mel(recording, 20)
        return torch.nn.functional.interpolate(frames[None], 24, mode="linear")[0]

    known = torch.stack([profile(recording) for recording in load_speech()])
    right = 0
    for digit in range(10):
        heard = profile(speak(digit, generator))
        right += int((known - heard).square().sum((1, 2)).argmin()) == digit
    assert right >= 6, "chance is 1"


def test_an_answer_is_what_was_seen_heard_and_written():
    data = MultimodalDigitData()(_config())
    sample = data.train[5]
    seen, heard = len(sample["items"]["clip"]), len(sample["items"]["audio"])
    assert len(sample["items"]["dino"]) == seen
    words = sample["words"].tolist()
    written = words[: words.index(READ_TOKEN)]
    answer = words[words.index(READ_TOKEN) + 1 :]
    assert answer[-1] == END_TOKEN
    assert len(answer) == seen + heard + len(written) + 1
    assert answer[seen + heard : -1] == written
    assert sample["learned"].tolist() == [0.0] * (len(written) + 1) + [1.0] * len(answer)


def test_chance_is_that_of_guessing_what_is_there():
    """Two digits at most by each sense: 0.055 to guess those of one."""
    assert MultimodalDigitData()(_config()).chance == pytest.approx(0.055**2)
    # Audio in half of the micro-batches, there in six of eight samples.
    heard = MultimodalDigitData()(_config(presence={"audio": PRESENCE["audio"]})).chance
    assert heard == pytest.approx(0.055 * (1 + (6 * 0.055 + 2) / 8) / 2)


def test_an_index_knows_its_place_on_the_way_to_a_worker():
    index = pickle.loads(pickle.dumps(PlannedIndex(7, 1, 3)))
    assert index == 7
    assert place_of(index) == (1, 3)
    assert place_of(7) == (0, 0)


@rows("source", default_data, synthetic_data)
def test_modalities_are_absent_where_the_pattern_says(source):
    config = _config(presence=PRESENCE)
    data, plan = source(config), mimokit.plan(config)
    # The first replica reads samples 0 to 7: dino has one replica.
    batches = iterate_batches(plan, config.data, 0, data.train, data.collate_fn, 1)
    tokens = {n: tokens_per_item(config.model.get_architecture(n)) for n in TOKENS}
    for number in range(4):
        batch = next(batches)
        check_tokens(batch, config.model.input_token_ids, tokens)
        for name in TOKENS:
            items = batch["modality_inputs"][name]["items_per_sample"]
            expected = [config.data.is_present(name, number % 2, sample) for sample in range(8)]
            assert (items > 0).tolist() == expected
        assert batch["loss_mask"].sum(1).min() > 0, "text is always there"


def test_an_absent_modality_has_inputs_of_no_items():
    config = _config(presence=PRESENCE)
    data = default_data(config)
    batch = data.collate_fn([data.train[PlannedIndex(i, 1, i)] for i in range(8)])
    audio = batch["modality_inputs"]["audio"]
    assert audio["whisper_encoder"]["input_features"].shape == (0, 20, 48)
    assert audio["whisper_encoder"]["tokens_per_item"].shape == (0,)
    assert not (batch["input_ids"] == TOKENS["audio"]).any()
    assert not torch.isin(batch["labels"], torch.tensor(list(TOKENS.values()))).any()


def test_workers_read_the_same_places():
    config = _config(presence=PRESENCE)
    plan, data = mimokit.plan(config), default_data(config)
    alone, helped = (
        iterate_batches(plan, sizes, 0, data.train, data.collate_fn, 1)
        for sizes in (config.data, DataConfig(**{**config.data.model_dump(), "num_workers": 1}))
    )
    for _ in range(2):
        assert torch.equal(next(alone)["input_ids"], next(helped)["input_ids"])


@rows(
    "change, reason",
    ({"vocab_size": 10}, "data.vocab_size is 10, less than 14"),
    ({"seq_length": 30}, "data.seq_length is 30, less than"),
)
def test_configs_that_cannot_spell_digits_get_noise(change, reason):
    config = _config()
    config.data = config.data.model_copy(update=change)
    assert reason in (why_no_multimodal_digits(config) or "")
    with pytest.raises(ValueError, match="Digits seen and heard do not fit the config"):
        MultimodalDigitData()(config)
    assert default_data(config).name == "synthetic"


@rows(
    "sizes, reason",
    (MIXED, "it has 3 encoders, not one"),
    ({"audio": (1, 1), LANGUAGE: (1, 1)}, "its encoder 'audio' hears and does not see"),
)
def test_strips_are_for_one_encoder_that_sees(sizes, reason):
    config = multimodal_config(sizes, "colocated")
    with pytest.raises(ValueError, match=reason):
        DigitData()(config)


def test_an_encoder_that_cannot_hear_a_digit_gets_noise():
    config = _config()
    audio = config.model.get_architecture("audio").model_copy(update={"seq_length": 12})
    config.model.module_architectures["audio"] = audio
    assert "module 'audio' takes 24 frames, less than" in (why_no_multimodal_digits(config) or "")
    assert default_data(config).name == "synthetic"


def test_room_for_less_than_one_item_is_refused():
    config = _config()
    config.data.modality_seq_lengths = {"clip": 3, "dino": 8, "audio": 6}
    with pytest.raises(ValueError, match="gives module 'clip' 3 tokens, less than the 4 of one"):
        default_data(config)


def test_a_sample_longer_than_the_sequence_is_refused():
    data = default_data(_config())
    data.collate_fn.seq_length = 12
    with pytest.raises(ValueError, match=r"needs \d+ tokens but data.seq_length is 12"):
        data.collate_fn([data.train[index] for index in range(8)])
