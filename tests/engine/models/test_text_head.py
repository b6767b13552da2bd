"""A text head on separate ranks: it embeds words, and packing puts them in their places."""

from __future__ import annotations

import pytest
import torch

import mimokit
from mimokit.architecture.from_config import model_of_config
from mimokit.architecture.tokens import tokens_per_item
from mimokit.engine.data.batch import check_tokens
from mimokit.engine.data.sources import MultimodalDigitData, default_data, synthetic_data
from mimokit.engine.pipeline.microbatches import modal_type
from tests.layouts_apart import apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE, SPECIAL_TOKENS, multimodal_config

THREE_HEADS = {"words": (1, 1, 1), "clip": (1, 1, 1), "audio": (1, 1, 1), LANGUAGE: (1, 2, 1)}
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


def test_the_text_has_slots_in_packing():
    pipeline = mimokit.plan(apart_multimodal_config(THREE_HEADS)).pipeline
    kinds = [modal_type(pipeline, stage.index) for stage in pipeline.graph.stages]
    assert kinds == ["text", "vision", "audio", "packing", "text"]
    packing = pipeline.slots.stages[3]
    assert packing.counts == {"text": 3, "audio": 3, "vision": 3}
    assert packing.offsets == {"text": 0, "audio": 3, "vision": 6}


def test_the_plan_counts_its_parameters(cluster):
    config = _config()
    counted = cluster.run(_count, mimokit.plan(config), config, world_size=1)[0]
    branches = {branch.name: branch.parameters for branch in model_of_config(config.model).branches}
    assert counted == branches["words"]


def _count(plan, config):
    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    return sum(p.numel() for p in model.modality_submodules["words"].parameters())
