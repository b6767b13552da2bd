"""Modules that start from checkpoints compute what Hugging Face computes, in any layout."""

import torch

import mimokit
from mimokit.experiment import verify
from tests.hugging_face_weights import checkpoint
from tests.layouts_weights import STD, weights_config
from tests.rows import rows
from tests.whole_runs import whole_runs

EXPERTS_APART = {"data_parallel": 2, "expert_parallel": 2}


def _logits(plan, config, ids):
    from mimokit.engine.models.specs import multimodal_provider

    provided = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False)
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        return provided.model.language_model(ids, None, mask)[..., :101]


@rows("language", "mixtral", "qwen2_moe", "qwen3_moe")
def test_experts_compute_what_their_checkpoint_computes(cluster, language):
    """Networks without experts: `mimokit check`, in tests/extras/generation."""
    import transformers as hf

    config = weights_config(language, "clip_tower", "homogeneous", EXPERTS_APART, EXPERTS_APART)
    ids = torch.randint(0, 101, (2, 20), generator=torch.Generator().manual_seed(5))
    words = hf.AutoModelForCausalLM.from_pretrained(checkpoint(language, STD), dtype=torch.float32)
    with torch.no_grad():
        expected = words.eval()(ids).logits
    plan = mimokit.plan(config)
    for logits in cluster.run(_logits, plan, config, ids, world_size=plan.world_size):
        assert float((logits - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@whole_runs("modules that start from weights")
def test_training_goes_on_from_weights_as_in_one_process(cluster, run):
    report = verify(cluster, run.make(), steps=run.steps)
    assert report.passed, report.verdict
