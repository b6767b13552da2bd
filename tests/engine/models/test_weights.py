"""Modules that start from checkpoints compute what Hugging Face computes, in any layout."""

from __future__ import annotations

import pytest
import torch

import mimokit
from mimokit.experiment import verify
from tests.hugging_face_weights import checkpoint
from tests.layouts_weights import STD, weights_config
from tests.whole_runs import pooled_weights, whole_runs

ONE = {"data_parallel": 1}
EXPERTS_APART = {"data_parallel": 2, "expert_parallel": 2}


def _computed(plan, config, ids, pixels):
    """Return the logits of words, whole, and what the tower makes of images."""
    import torch.distributed as dist

    from mimokit.engine.models.specs import multimodal_provider

    provided = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False)
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)[None, None]
    (tower,) = provided.model.modality_submodules["images"].encoders.values()
    with torch.no_grad():
        logits = provided.model.language_model(ids, None, mask)
        images = tower(pixel_values=pixels)
    group = provided.pg_collections["language_module"].tp
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.contiguous(), group=group)
    return torch.cat(parts, dim=-1)[..., :101], images


def _of_transformers(language, tower, ids, pixels):
    import transformers as hf

    words = hf.AutoModelForCausalLM.from_pretrained(checkpoint(language, STD), dtype=torch.float32)
    kind = hf.CLIPVisionModel if tower == "clip_tower" else hf.SiglipVisionModel
    images = kind.from_pretrained(checkpoint(tower, STD))
    with torch.no_grad():
        seen = images.eval()(pixel_values=pixels).last_hidden_state
        if tower == "clip_tower":  # a module's output has the norm behind it
            inner = getattr(images, "vision_model", images)
            seen = inner.post_layernorm(seen)[:, 1:]
        return words.eval()(ids).logits, seen.flatten(0, 1)


@pytest.mark.parametrize(
    ("language", "tower", "sizes"),
    [
        ("qwen3", "clip_tower", {"tensor_parallel": 4, **ONE}),
        ("qwen2", "siglip_tower", {"tensor_parallel": 4, **ONE}),
        ("gpt2", "clip_tower", {"tensor_parallel": 2, **ONE}),
        ("phi3", "clip_tower", {"tensor_parallel": 2, **ONE}),
        ("mixtral", "clip_tower", EXPERTS_APART),
        ("qwen2_moe", "siglip_tower", EXPERTS_APART),
        ("qwen3_moe", "clip_tower", EXPERTS_APART),
    ],
)
def test_a_module_computes_what_its_checkpoint_computes(cluster, language, tower, sizes):
    config = weights_config(language, tower, "homogeneous", sizes, sizes)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 101, (2, 20), generator=generator)
    pixels = torch.rand(3, 3, 8, 8, generator=generator)
    expected = _of_transformers(language, tower, ids, pixels)
    plan = mimokit.plan(config)
    computed = cluster.run(_computed, plan, config, ids, pixels, world_size=plan.world_size)
    for found in computed:
        for mine, theirs in zip(found, expected, strict=True):
            assert float((mine - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max())


def test_a_pooling_head_computes_what_its_checkpoint_computes(cluster):
    from transformers import SiglipVisionModel

    sizes = {"tensor_parallel": 4, **ONE}
    config = pooled_weights("homogeneous", sizes, sizes)
    pixels = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    ids = torch.randint(0, 101, (2, 20), generator=torch.Generator().manual_seed(6))
    images = SiglipVisionModel.from_pretrained(checkpoint("siglip_tower", STD)).eval()
    with torch.no_grad():
        expected = images(pixel_values=pixels).pooler_output
    plan = mimokit.plan(config)
    for _, found in cluster.run(_computed, plan, config, ids, pixels, world_size=plan.world_size):
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@whole_runs("modules that start from weights")
def test_training_goes_on_from_weights_as_in_one_process(cluster, run):
    report = verify(cluster, run.make(), steps=run.steps)
    assert report.passed, report.verdict
