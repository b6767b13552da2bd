"""Fields of a network that can be planned and predicted, but not trained yet."""

from __future__ import annotations

from typing import Literal

from mimokit.config.base import ConfigModel, Size, SizeOrZero

Normalization = Literal["LayerNorm", "RMSNorm"]


class ProjectorArchitecture(ConfigModel):
    """The matrices between an encoder and the language model."""

    hidden_sizes: list[Size] | None = None
    """Widths between the first matrix and the last; [] for a single matrix. None: one width,
    that of the language model's feed-forward layer."""

    add_bias_linear: bool | None = None
    """Every matrix has a bias. None: yes."""

    normalization: Normalization | None = None
    """A norm in front, or None."""

    norm_size: Size | None = None
    """Width of that norm. None: the encoder's hidden_size."""

    deepstack_copies: Size | None = None
    """Equal projectors of earlier layers (Qwen3-VL)."""

    deepstack_normalization: Normalization | None = None
    """The norm in front of such a copy, or None."""

    deepstack_norm_size: Size | None = None
    """Width of that norm. None: the width of the projector's input."""


class PlannedArchitecture(ConfigModel):
    """Fields of a network that memory and time depend on, and that runs do not support yet.

    Names are those of Megatron-Core's `TransformerConfig`, `MLATransformerConfig` and arguments,
    except for fields that they lack. None is what mimokit trains, and is not written to files.
    """

    num_query_groups: Size | None = None
    """Key and value heads. None: num_attention_heads."""

    kv_channels: Size | None = None
    """Dimensions of one head. None: hidden_size / num_attention_heads."""

    gated_linear_unit: bool | None = None
    """A feed-forward layer of three matrices (SwiGLU). None: of two (GELU)."""

    normalization: Normalization | None = None
    """None: LayerNorm."""

    add_bias_linear: bool | None = None
    """Matrices have a bias. None: yes."""

    add_qkv_bias: bool | None = None
    """Query, key and value have biases. None: as add_bias_linear."""

    add_key_bias: bool | None = None
    """The key has a bias if query and value have one (not in Whisper). None: yes."""

    add_attention_output_bias: bool | None = None
    """The output projection of attention has a bias. None: as add_bias_linear."""

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

    position_embedding_type: Literal["rope", "learned_absolute"] | None = None
    """rope, or a table of learned vectors. None: rope in the language model, learned in
    encoders."""

    max_position_embeddings: Size | None = None
    """Rows of the learned table. None: one per position."""

    make_vocab_size_divisible_by: Size | None = None
    """The vocabulary is padded to a multiple of this times tensor_parallel. None:
    tensor_parallel must divide it in runs; predictions pad with 128."""

    temporal_patch_size: Size | None = None
    """Video frames per patch. None: 1."""

    patch_bias: bool | None = None
    """The patch embedding has a bias. None: yes."""

    outer_norms: SizeOrZero | None = None
    """Norms of an encoder outside its layers, before and after. None: 1."""

    pooling_head: bool | None = None
    """SigLIP's pooling head: one attention layer and one feed-forward layer. None: no."""

    projector: ProjectorArchitecture | None = None
    """The projector from this encoder to the language model. None: two matrices with biases."""
