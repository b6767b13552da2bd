"""Strips of digits, their layout as tokens, and which rank reads which."""

import itertools

import numpy as np
import pytest
import torch

from mimokit.config import ModalityPresence
from mimokit.engine.data.batch import check_tokens
from mimokit.engine.data.digits import (
    END_TOKEN,
    PADDING_TOKEN,
    READ_TOKEN,
    DigitCollate,
    DigitStrips,
    chance_of_exact_match,
    load_scans,
)
from mimokit.engine.data.iterators import PlannedBatches, PlannedIndex
from mimokit.engine.data.sources import (
    DigitData,
    default_data,
    synthetic_data,
    why_no_digits,
    why_no_multimodal_digits,
)
from mimokit.experiment import verify
from tests.layouts import IMAGE_TOKEN, digits_config


def test_scans_are_the_whole_set_and_no_scan_is_in_both_splits():
    train, test = load_scans("train"), load_scans("test")
    assert len(train[0]) + len(test[0]) == 1797
    both = torch.cat((train[0], test[0])).flatten(1).numpy()
    distinct = {scan.tobytes() for scan in both}
    held_out = {scan.tobytes() for scan in test[0].flatten(1).numpy()}
    seen = {scan.tobytes() for scan in train[0].flatten(1).numpy()}
    assert len(distinct) == 1797
    assert not held_out & seen
    assert 0 <= both.min() <= both.max() <= 1


def test_scans_and_digits_are_those_that_scikit_learn_loads():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    known = {
        (scan / 16.0).astype(np.float32).tobytes(): digit
        for scan, digit in zip(theirs.images, theirs.target, strict=True)
    }
    for images, digits in (load_scans("train"), load_scans("test")):
        assert images.shape[1:] == (8, 8)
        assert [known[image.numpy().tobytes()] for image in images] == digits.tolist()


def test_answers_are_what_the_scans_show():
    images, digits = load_scans("train")
    lookup = {image.numpy().tobytes(): int(d) for image, d in zip(images, digits, strict=True)}
    for index in range(20):
        strip = DigitStrips(task="read")[index]
        shown = [lookup[image.numpy().tobytes()] for image in strip["images"]]
        assert strip["answer"] == [*shown, END_TOKEN]
        total = DigitStrips(task="sum")[index]["answer"]
        assert total == [*map(int, str(sum(shown))), END_TOKEN]


def test_an_index_outside_the_set_is_refused():
    with pytest.raises(IndexError, match="Strip 3 asked for, but there are 3"):
        DigitStrips(size=3)[3]


def test_chance_is_that_of_guessing():
    assert chance_of_exact_match("read", 1) == pytest.approx(0.1)
    assert chance_of_exact_match("read", 2) == pytest.approx((0.1 + 0.01) / 2)
    sums = [a + b for a, b in itertools.product(range(10), repeat=2)]
    best = max(np.bincount(sums)) / 100
    assert chance_of_exact_match("sum", 2) == pytest.approx((0.1 + best) / 2)


def test_tokens_of_a_strip():
    sample = {"images": torch.ones(2, 8, 8), "question": [READ_TOKEN], "answer": [3, 4, END_TOKEN]}
    batch = DigitCollate(seq_length=8, image_token_ids=[IMAGE_TOKEN], tokens_per_image=2)([sample])
    image = IMAGE_TOKEN
    assert batch["input_ids"].tolist() == [[image] * 4 + [READ_TOKEN, 3, 4, END_TOKEN]]
    assert batch["loss_mask"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0]]
    assert batch["labels"][0, 4:7].tolist() == [3, 4, END_TOKEN]
    assert batch["labels"].max() <= PADDING_TOKEN, "a placeholder is never a label"


def test_a_strip_that_is_too_long_is_refused():
    collate = DigitCollate(seq_length=8, image_token_ids=[IMAGE_TOKEN], tokens_per_image=4)
    with pytest.raises(ValueError, match=r"strip of 2 digits needs 11 tokens but data\.seq_length"):
        collate([{"images": torch.ones(2, 8, 8), "question": [11], "answer": [1, 2, 10]}])


def test_ranks_read_the_samples_of_the_plan_in_an_order_no_layout_changes():
    whole = list(itertools.islice(PlannedBatches(100, 8, (0, 8), seed=5), 30))
    for start, stop in [(0, 4), (4, 8), (2, 3)]:
        part = itertools.islice(PlannedBatches(100, 8, (start, stop), seed=5), 30)
        assert [batch[start:stop] for batch in whole] == list(part)
    epoch = [index for batch in whole[:12] for index in batch]
    assert len(set(epoch)) == 96, "no sample twice in an epoch"
    later = list(itertools.islice(PlannedBatches(100, 8, (0, 8), seed=5, first=14), 5))
    assert later == whole[14:19]


def test_a_data_set_smaller_than_a_batch_is_taken_over_and_over():
    for size in (1, 3, 4, 7):
        batches = list(itertools.islice(PlannedBatches(size, 8, (0, 8), seed=0), 6))
        for batch in batches:
            assert sorted(batch[:size]) == list(range(size))
            assert batch[size:] == batch[:-size]
        assert size == 1 or len(set(map(tuple, batches))) > 1
        parts = itertools.islice(PlannedBatches(size, 8, (2, 5), seed=0), 6)
        assert [batch[2:5] for batch in batches] == list(parts)
    with pytest.raises(ValueError, match="has 0 samples; give it at least one"):
        PlannedBatches(0, 8, (0, 8), seed=0)


def test_configs_that_cannot_see_digits_get_noise():
    config = digits_config()
    assert why_no_digits(config) is None
    config.data = config.data.model_copy(update={"vocab_size": 10})
    assert why_no_digits(config) == "data.vocab_size is 10, less than 14"
    assert default_data(config).name == "synthetic"
    with pytest.raises(ValueError, match="Strips of digits do not fit the config"):
        DigitData()(config)


def _within_the_vocabulary(encoder, language):
    """A tokenizer of 32 tokens whose placeholder is 20, as Qwen2-VL's is 151655 of 152064."""
    config = digits_config(encoder, language)
    network = config.model.module_architectures["language_module"]
    config.model.module_architectures["language_module"] = network.model_copy(
        update={"vocab_size": 32}
    )
    config.model.special_token_ids = {"images": 20}
    data = config.data.model_copy(update={"vocab_size": 32, "image_special_token_id": 20})
    return config.model_copy(update={"data": data})


def test_a_placeholder_within_the_vocabulary_trains_on_digits(cluster):
    report = verify(cluster, _within_the_vocabulary((1, 2), (2, 1)), steps=2)
    assert report.data.startswith("digits")
    assert report.passed
    assert report.max_gradient_difference <= 1e-5


def test_synthetic_words_are_no_placeholders():
    config = _within_the_vocabulary((1, 1), (1, 1))
    beyond = digits_config((1, 1), (1, 1))
    beyond.model.special_token_ids = {"images": 99}
    beyond = beyond.model_copy(update={"data": beyond.data.model_copy(update={"vocab_size": 31})})
    within, plain = synthetic_data(config).train, synthetic_data(beyond).train
    assert within.vocab_size == plain.vocab_size + 1
    seen = set()
    for index in range(50):
        words, others = within[index]["words"], plain[index]["words"]
        assert torch.equal(words, others + (others >= 20)), "the same draw, with 20 left out"
        seen |= set(words.tolist())
    assert seen == set(range(32)) - {20}
    batch = synthetic_data(config).collate_fn([within[index] for index in range(8)])
    check_tokens(batch, {"images": [20]}, {"images": 4})


def test_digits_are_refused_where_a_placeholder_is_one_of_their_characters():
    config = _within_the_vocabulary((1, 1), (1, 1))
    config.model.special_token_ids = {"images": 5}
    told = "the placeholder 5 of 'images' is a character of the answers"
    assert why_no_digits(config) == told
    assert why_no_multimodal_digits(config) == told


def test_a_placeholder_is_no_label():
    ids = torch.tensor([[7, 20, 20, 3]])
    batch = {
        "input_ids": ids,
        "labels": ids.roll(-1, 1),
        "loss_mask": torch.tensor([[0.0, 0.0, 1.0, 1.0]]),
        "modality_inputs": {"images": {"items_per_sample": torch.tensor([1])}},
    }
    check_tokens(batch, {"images": [20]}, {"images": 2})
    batch["loss_mask"][0, 1] = 1.0
    with pytest.raises(ValueError, match="has the placeholder 20 of 'images' as the label of to"):
        check_tokens(batch, {"images": [20]}, {"images": 2})


def test_samples_have_as_many_frames_as_the_config_says():
    config = digits_config()
    config.data.modality_frames = {"images": [8, 0, 3]}
    config.data.modality_presence = {"images": ModalityPresence(samples=[True, True, False])}
    for source in (DigitData("sum"), synthetic_data):
        batch = source(config).collate_fn(
            [source(config).train[PlannedIndex(9, 0, sample)] for sample in range(4)]
        )
        assert batch["modality_inputs"]["images"]["items_per_sample"].tolist() == [8, 0, 0, 8]
    assert DigitData("read")(config).chance == pytest.approx((1e-8 + 1 + 1e-3) / 3)
    config.data.modality_frames = {"images": [0]}
    for source in (DigitData("sum"), synthetic_data):
        batch = source(config).collate_fn([source(config).train[PlannedIndex(9, 0, 0)]])
        assert batch["modality_inputs"]["images"]["items_per_sample"].tolist() == [0]
