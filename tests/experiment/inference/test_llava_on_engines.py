"""A LLaVA on engines: the check of its parts, and what its language model generates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE
from mimokit.cluster import EngineCluster
from mimokit.config import ConfigError
from mimokit.experiment import ShardedModel, check_weights
from tests.llava import IMAGE_TOKEN, llava_checkpoint

PROMPTS = [[1, 2, 3, 22, 5, 6, 7], [9, 10, 19], [4, 4]]


FAULTS = {
    1: f"{ENCODER}decoder.layers.2",
    3: f"{LANGUAGE}decoder.layers.3",
}
"""Rank -> the part of it that is changed; ranks 2 and 3 are of the second stage."""


def test_a_check_passes_and_finds_a_fault_of_tower_and_language_model(
    cluster: EngineCluster,
) -> None:
    sizes = {"tensor_parallel": 2, "pipeline_parallel": 2}
    report = check_weights(cluster, llava_checkpoint("clip"), **sizes)
    assert report.passed, report.verdict
    assert report.oracle == "transformers"
    for rank, part in FAULTS.items():

        def change(
            number: int,
            parameters: Mapping[str, torch.Tensor],
            wrong: tuple[int, str] = (rank, part),
        ) -> None:
            if number == wrong[0]:
                parameters[f"{wrong[1]}.mlp.linear_fc1.weight"][0] += 0.1

        report = check_weights(cluster, llava_checkpoint("clip"), **sizes, change=change)
        assert report.first_wrong is not None
        assert report.first_wrong.name == part


def test_its_language_model_generates_as_hugging_face_does(cluster: EngineCluster) -> None:
    from transformers import LlavaForConditionalGeneration

    directory = llava_checkpoint("clip")
    theirs = LlavaForConditionalGeneration.from_pretrained(directory).eval()
    with ShardedModel(cluster, directory, tensor_parallel=2) as model:
        found = model.logits(PROMPTS)
        made = model.generate(PROMPTS, 8, stop_tokens=[])
        assert model.health().healthy
        with pytest.raises(ConfigError, match="prompt 1 has the id 20, which represents an image"):
            model.generate([[1, 2], [3, IMAGE_TOKEN]], 8)
    for row, prompt, tokens in zip(found, PROMPTS, made.tokens, strict=True):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            wanted = theirs(input_ids=ids).logits[0].numpy()
        assert np.abs(row[: len(prompt)] - wanted).max() < 1e-5 * np.abs(wanted).max()
        whole = theirs.generate(input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert tokens == whole[0, len(prompt) :].tolist()
