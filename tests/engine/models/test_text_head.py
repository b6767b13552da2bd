"""A text head on separate ranks: it embeds words, and packing puts them in their places."""

import pytest
import torch

from mimokit.architecture.tokens import tokens_per_item
from mimokit.engine.data.batch import check_tokens
from mimokit.engine.data.sources import MultimodalDigitData, default_data, synthetic_data
from tests.layouts_multimodal import LANGUAGE, SPECIAL_TOKENS, multimodal_config

PADDING = 13


def _config(**options):
    sizes = {"words": (1, 1), "clip": (1, 1), LANGUAGE: (1, 1)}
    return multimodal_config(sizes, "homogeneous", **options)


def test_the_head_reads_the_words_and_placeholders_are_in_their_place():
    config = _config()
    plain = multimodal_config({"clip": (1, 1), LANGUAGE: (1, 1)}, "homogeneous")
    data, plain = default_data(config), MultimodalDigitData()(plain)
    assert data.name == plain.name == "digits (vision + text)"
    batch, wanted = (
        one.collate_fn([one.train[number] for number in range(8)]) for one in (data, plain)
    )
    assert torch.equal(batch["labels"], wanted["labels"])
    tensors = batch["modality_inputs"]["words"]["text_encoder"]
    counted = torch.arange(12) < tensors["tokens_per_item"][:, None]
    words = batch["input_ids"] == SPECIAL_TOKENS["words"]
    assert torch.equal(words.sum(1), tensors["tokens_per_item"])
    assert torch.equal(wanted["input_ids"][words], tensors["words"][counted])
    assert bool((tensors["words"][~counted] == PADDING).all())
    known = {n: tokens_per_item(config.model.get_architecture(n)) for n in ("words", "clip")}
    check_tokens(batch, {n: [SPECIAL_TOKENS[n]] for n in known}, known)


def test_noise_has_no_more_words_than_the_head_reads():
    data = synthetic_data(_config())
    batch = data.collate_fn([data.train[number] for number in range(64)])
    tokens = batch["modality_inputs"]["words"]["text_encoder"]["tokens_per_item"]
    assert int(tokens.max()) == 12


def test_a_sample_with_more_words_than_the_head_reads_is_refused():
    data = default_data(_config())
    sample = {**data.train[0], "words": torch.ones(13, dtype=torch.int64)}
    sample["learned"] = torch.ones(13)
    with pytest.raises(ValueError, match="13 words but module 'words' takes 12; raise its seq_len"):
        data.collate_fn([sample])
