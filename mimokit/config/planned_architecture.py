"""Fields of a network that can be planned and predicted, but not trained yet."""

from __future__ import annotations

from mimokit.config.base import ConfigModel, Size, SizeOrZero


class PlannedArchitecture(ConfigModel):
    """Fields of a network that memory and time depend on, and that runs do not support yet.

    Names are those of Megatron-Core's `TransformerConfig`, `MLATransformerConfig` and arguments,
    except for fields that they lack. None is what mimokit trains, and is not written to files.
    """

    add_key_bias: bool | None = None
    """The key has a bias if query and value have one (not in Whisper). None: yes."""

    qk_layernorm: bool | None = None
    """An RMSNorm over each head of query and key. None: no."""

    window_size: Size | None = None
    """Attention window of most layers, in tokens. None: no window."""

    full_attention_layers: SizeOrZero | None = None
    """Layers without a window if window_size is set. None: 0."""

    multi_latent_attention: bool | None = None
    """Multi-latent attention (DeepSeek-V2), with the five widths below. None: no."""

    q_lora_rank: Size | None = None
    """Width of the compressed query. None: not compressed."""

    kv_lora_rank: Size | None = None
    """Width of the compressed key and value."""

    qk_head_dim: Size | None = None
    """Dimensions of a head's query and key without positions."""

    qk_pos_emb_head_dim: Size | None = None
    """Dimensions of a head's query and key with rotary positions."""

    v_head_dim: Size | None = None
    """Dimensions of a head's value."""

    num_moe_experts: Size | None = None
    """Routed experts of a layer, which replace its feed-forward layer. None: no experts."""

    moe_router_topk: Size | None = None
    """Experts per token. None: 2."""

    moe_ffn_hidden_size: Size | None = None
    """Width inside an expert. None: ffn_hidden_size."""

    moe_shared_expert_intermediate_size: Size | None = None
    """Width of all shared experts together. None: no shared experts."""

    first_k_dense_replace: SizeOrZero | None = None
    """First layers without experts (Hugging Face's name for a moe_layer_freq of zeros, then
    ones). None: 0."""

    moe_router_enable_expert_bias: bool | None = None
    """The router has one bias per expert. None: no."""

    moe_shared_expert_gate: bool | None = None
    """The shared experts have a separate gate. None: no."""

    mtp_num_layers: SizeOrZero | None = None
    """Layers of multi-token prediction. None: 0."""

    temporal_patch_size: Size | None = None
    """Video frames per patch. None: 1."""

    pooling_head: bool | None = None
    """SigLIP's pooling head: one attention layer and one feed-forward layer. None: no."""
