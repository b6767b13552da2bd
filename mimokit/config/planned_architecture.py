"""What a network can be planned and predicted with beyond what mimokit trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mimokit.config.base import ConfigModel

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Normalization = Literal["LayerNorm", "RMSNorm"]


class ProjectorArchitecture(ConfigModel):
    """The matrices between an encoder and the language model."""

    hidden_sizes: list[Positive] | None = None
    """Widths between the first matrix and the last; [] for a single matrix. None: one, as wide
    as the language model's feed-forward layer."""

    add_bias_linear: bool | None = None
    """Every matrix has a bias. None: yes."""

    normalization: Normalization | None = None
    """A norm in front, or None."""

    norm_size: Positive | None = None
    """Width of that norm. None: the encoder's hidden_size."""

    deepstack_copies: Positive | None = None
    """Equal projectors of layers further down (Qwen3-VL)."""

    deepstack_normalization: Normalization | None = None
    """The norm in front of such a copy, or None."""

    deepstack_norm_size: Positive | None = None
    """Width of that norm. None: of what goes into the projector."""


class PlannedArchitecture(ConfigModel):
    """Fields of a network that memory and time depend on, and that runs here do not have yet.

    Named as Megatron-Core's `TransformerConfig`, `MLATransformerConfig` and arguments name them,
    save where they have no such field. None is what mimokit trains, and is not written to files.
    """

    num_query_groups: Positive | None = None
    """Key and value heads. None: num_attention_heads."""

    kv_channels: Positive | None = None
    """Dimensions of one head. None: hidden_size / num_attention_heads."""

    gated_linear_unit: bool | None = None
    """A feed-forward layer of three matrices (SwiGLU). None: of two (GELU)."""

    normalization: Normalization | None = None
    """None: LayerNorm."""

    add_bias_linear: bool | None = None
    """Matrices have biases. None: yes."""

    add_qkv_bias: bool | None = None
    """Query, key and value have biases. None: as add_bias_linear."""

    add_key_bias: bool | None = None
    """The key has one where query and value have; Whisper's has not. None: yes."""

    add_attention_output_bias: bool | None = None
    """The output of attention has one. None: as add_bias_linear."""

    qk_layernorm: bool | None = None
    """An RMSNorm over each head of query and key. None: no."""

    window_size: Positive | None = None
    """Tokens that most layers attend to at once. None: all."""

    full_attention_layers: NotNegative | None = None
    """Layers without a window where there is one. None: 0."""

    multi_latent_attention: bool | None = None
    """Latent attention (DeepSeek-V2); it has the five widths below."""

    q_lora_rank: Positive | None = None
    """Width of the compressed query. None: it is not compressed."""

    kv_lora_rank: Positive | None = None
    """Width of the compressed key and value."""

    qk_head_dim: Positive | None = None
    """Dimensions of a head's query and key without positions."""

    qk_pos_emb_head_dim: Positive | None = None
    """Dimensions of a head's query and key with rotary positions."""

    v_head_dim: Positive | None = None
    """Dimensions of a head's value."""

    num_moe_experts: Positive | None = None
    """Routed experts of a layer, in place of its feed-forward layer. None: none."""

    moe_router_topk: Positive | None = None
    """Experts that a token visits. None: 2."""

    moe_ffn_hidden_size: Positive | None = None
    """Width inside an expert. None: ffn_hidden_size."""

    moe_shared_expert_intermediate_size: Positive | None = None
    """Width inside the shared experts together. None: none."""

    first_k_dense_replace: NotNegative | None = None
    """First layers that keep a feed-forward layer (Hugging Face's name for a moe_layer_freq of
    zeros, then ones). None: 0."""

    moe_router_enable_expert_bias: bool | None = None
    """The router has one bias per expert. None: no."""

    moe_shared_expert_gate: bool | None = None
    """The shared experts have a gate of their own. None: no."""

    mtp_num_layers: NotNegative | None = None
    """Extra layers that predict tokens further on. None: 0."""

    position_embedding_type: Literal["rope", "learned_absolute"] | None = None
    """Rotary, or a table of learned vectors. None: rotary in the language model, learned in
    encoders."""

    max_position_embeddings: Positive | None = None
    """Vectors of a learned table. None: one per position."""

    make_vocab_size_divisible_by: Positive | None = None
    """The vocabulary is padded to a multiple of this times tensor_parallel. None:
    tensor_parallel divides it; predictions pad as with 128."""

    temporal_patch_size: Positive | None = None
    """Frames of a video that one patch spans. None: 1."""

    patch_bias: bool | None = None
    """The patch embedding has a bias. None: yes."""

    outer_norms: NotNegative | None = None
    """Norms before and after the layers of an encoder. None: 1."""

    pooling_head: bool | None = None
    """SigLIP's head, one attention layer and one feed-forward layer. None: no."""

    projector: ProjectorArchitecture | None = None
    """Between this encoder and the language model. None: two matrices with biases."""
