"""Tiny LLaVAs that read digits, and what Hugging Face makes of them."""

from __future__ import annotations

import copy
import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from mimokit.experiment import Oracle
from mimokit.interop import config_of_checkpoint
from tests.hugging_face_weights import GROUPED, SIZES, kept_folder

IMAGE_TOKEN = 20
VOCABULARY = 23
"""No tensor parallel size divides it."""

VISION = {**SIZES, "image_size": 8, "patch_size": 4, "num_channels": 1}
TEXT = {**GROUPED, "vocab_size": VOCABULARY}
VARIANTS: dict[str, dict[str, Any]] = {
    "clip": {"vision": "clip_vision_model", "text": "llama"},
    "clip_full": {
        "vision": "clip_vision_model", "text": "qwen2", "vision_feature_layer": 2,
        "vision_feature_select_strategy": "full", "tie_word_embeddings": True,
    },
    "siglip": {
        "vision": "siglip_vision_model", "text": "mistral", "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
    },
}  # fmt: skip
"""What their configs state beyond the sizes."""


@functools.cache
def llava_checkpoint(variant: str, std: float = 0.2) -> Path:
    """Return the directory of a LLaVA in fp32, made once per process; all parameters are random."""
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    stated = dict(VARIANTS[variant])
    tied = stated.get("tie_word_embeddings", False)
    text = {**TEXT, "model_type": stated.pop("text"), "tie_word_embeddings": tied}
    vision = {**VISION, "model_type": stated.pop("vision")}
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, **stated
    )
    torch.manual_seed(len(variant))
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    path = kept_folder() / f"llava-{variant}"
    model.save_pretrained(path)
    return path


def llava_config(
    variant: str, mode: str, images: dict[str, int], words: dict[str, int], samples: int = 4
) -> ExperimentConfig:
    """Return a config that was imported from a LLaVA, in a layout, with strips of digits.

    Args:
        variant: of `VARIANTS`.
        mode: deployment mode.
        images: parallel sizes of the tower.
        words: of the language model.
        samples: of a step.
    """
    content = config_of_checkpoint(llava_checkpoint(variant), seq_length=24).to_mapping()
    content["model"] |= {
        "deployment_mode": mode,
        "module_parallelisms": {"images": images, "language_module": words},
    }
    replicas = words.get("data_parallel", 1)
    content["data"] |= {"base_batch_size": samples // replicas, "image_seq_length": 15}
    content["runtime"] = {"num_iterations": 1}
    return config_from_mapping(content)


def of_hugging_face(oracle: Oracle, directory: Path, steps: int) -> tuple[Oracle, Any]:
    """Return what Hugging Face's model computes in this process, and its first logits.

    Args:
        oracle: says the batches and the optimizer; its results are replaced.
        directory: of the LLaVA.
        steps: optimizer steps.

    Returns:
        An oracle for `verify`; logits [samples, tokens, vocabulary].
    """
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import LlavaForConditionalGeneration

    from mimokit.engine.verify.oracle import OracleStep

    model = LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    runtime = oracle.config.runtime
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=runtime.learning_rate,
        weight_decay=runtime.weight_decay,
        eps=runtime.adam_epsilon,
    )
    taken, first = [], None
    for batch in _batches(oracle, steps):
        (pixels,) = batch["modality_inputs"]["images"]["vit_encoder"].values()
        logits = model(input_ids=batch["input_ids"], pixel_values=pixels.unsqueeze(1)).logits
        first = logits.detach() if first is None else first
        losses = cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        ).view_as(batch["labels"])
        loss = (losses * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        if runtime.clip_grad > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), runtime.clip_grad)
        gradients = _by_megatron(oracle, directory, model, lambda one: one.grad)
        optimizer.step()
        weights = _by_megatron(oracle, directory, model, lambda one: one.data)
        taken.append(OracleStep(loss.item(), gradients, weights, runtime.adam_epsilon))
    return replace(oracle, replicas=(tuple(taken),)), first


def _batches(oracle: Oracle, steps: int) -> Any:
    """Yield the batches of one process."""
    import mimokit
    from mimokit.engine.data.iterators import iterate_batches
    from mimokit.engine.data.sources import data_of, default_data

    config = oracle.config
    data = data_of(default_data, config)
    batches = iterate_batches(
        mimokit.plan(config), config.data, 0, data.train, data.collate_fn, config.runtime.seed
    )
    for _ in range(steps):
        yield next(batches)


def _by_megatron(oracle: Oracle, directory: Path, model: Any, values: Any) -> Any:
    """Return tensors of Hugging Face's parameters by module and Megatron's name.

    A gradient is laid out as its weight is, so it is read as one.
    """
    import torch

    from mimokit.engine.weights.files import opened
    from mimokit.engine.weights.reading import read_parameter
    from mimokit.planning.weights.modules import module_planner

    shown = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, own in zip(shown.parameters(), model.parameters(), strict=True):
            value = values(own)
            parameter.copy_(torch.zeros_like(own) if value is None else value)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shown.save_pretrained(folder)
        with opened(folder) as (checkpoint, source):
            for name, network in oracle.config.model.module_architectures.items():
                planner = module_planner(
                    checkpoint,
                    network,
                    language=name == oracle.config.model.llm_module_name,
                    tensor_parallel=1,
                    pipeline_parallel=1,
                )
                planned = planner.rank(0).parameters.items()
                found[name] = {key: read_parameter(one, source).numpy() for key, one in planned}
    return found
