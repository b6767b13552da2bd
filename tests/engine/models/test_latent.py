"""Multi-latent attention is that of Hugging Face's DeepSeek-V3, and the same in every layout."""

from types import SimpleNamespace

import pytest
import torch

HIDDEN, HEADS, TOKENS = 32, 4, 6
LATENT = {
    "multi_latent_attention": True, "kv_lora_rank": 12, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6,
}  # fmt: skip


YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "mscale": 0.7, "mscale_all_dim": 0.2,
    "original_max_position_embeddings": 16,
}  # fmt: skip


def _of_hugging_face(compressed, scaling):
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Attention,
        DeepseekV3Config,
        DeepseekV3RotaryEmbedding,
    )

    config = DeepseekV3Config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=HEADS, kv_lora_rank=12,
        q_lora_rank=compressed, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6,
        rope_parameters={"rope_theta": 10000.0, **(scaling or {"rope_type": "default"})},
    )  # fmt: skip
    config._attn_implementation = "eager"
    return DeepseekV3Attention(config, layer_idx=0).eval(), DeepseekV3RotaryEmbedding(config)


NAMES = {
    "linear_q_proj.weight": "q_proj.weight",
    "linear_q_down_proj.weight": "q_a_proj.weight",
    "q_layernorm.weight": "q_a_layernorm.weight",
    "linear_q_up_proj.weight": "q_b_proj.weight",
    "linear_kv_down_proj.weight": "kv_a_proj_with_mqa.weight",
    "kv_layernorm.weight": "kv_a_layernorm.weight",
    "linear_kv_up_proj.weight": "kv_b_proj.weight",
    "linear_proj.weight": "o_proj.weight",
}


def _found_and_wanted(compressed, scaling):
    """Return the outputs of our layer and of theirs, whose weights it gets."""
    import torch.distributed as dist

    from mimokit.config import ModuleArchitecture, RopeScaling
    from mimokit.engine.megatron import AttnMaskType, build_module, get_gpt_layer_local_spec
    from mimokit.engine.models.self_attention import attention_spec
    from mimokit.engine.models.transformer import transformer_config
    from mimokit.planning.execution import ModuleExecution

    network = ModuleArchitecture(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, seq_length=8, vocab_size=9,
        normalization="RMSNorm", layernorm_epsilon=1e-6, add_bias_linear=False, **LATENT,
        q_lora_rank=compressed, rope_scaling=scaling and RopeScaling(**scaling),
    )  # fmt: skip
    theirs, rotary = _of_hugging_face(compressed, scaling)
    local = get_gpt_layer_local_spec().submodules.self_attention
    spec = attention_spec(local, network, ModuleExecution(), AttnMaskType.causal)
    groups = SimpleNamespace(tp=dist.group.WORLD, cp=dist.group.WORLD)
    config = transformer_config(network, ModuleExecution())
    ours = build_module(spec, config=config, layer_number=1, pg_collection=groups).eval()
    weights = theirs.state_dict()
    for name, parameter in ours.named_parameters():
        parameter.data.copy_(weights[NAMES[name]])
    hidden = torch.randn(2, TOKENS, HIDDEN)
    mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        wanted, _ = theirs(hidden, rotary(hidden, torch.arange(TOKENS)[None]), mask)
        found, _ = ours(hidden.transpose(0, 1), None)
    return found.transpose(0, 1), wanted


@pytest.mark.parametrize(("compressed", "scaling"), [(None, None), (10, YARN)])
def test_latent_attention_is_that_of_hugging_face(cluster, compressed, scaling):
    ((found, wanted),) = cluster.run(_found_and_wanted, compressed, scaling, world_size=1)
    torch.testing.assert_close(found, wanted)
