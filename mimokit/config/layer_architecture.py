"""Fields of a network beyond its sizes: how layers, positions, experts and ends are built."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mimokit.config.base import ConfigModel, Size, SizeOrZero
from mimokit.config.meaning import Activation, Normalization

Probability = Annotated[float, Field(ge=0, lt=1)]

# Not strict: a file has lists. It is a tuple so that it can be hashed.
_Factors = Annotated[tuple[Annotated[float, Field(gt=0, le=1e6)], ...], Field(strict=False)]


class RopeScaling(ConfigModel):
    """How the positions of rotary embeddings are stretched; names are those of Hugging Face."""

    model_config = ConfigDict(frozen=True)

    rope_type: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """linear (positions are divided by factor), dynamic (the base grows with the length of a run),
    llama3 (Llama 3.1), yarn (Peng et al. 2023, arXiv 2309.00071) and longrope (Ding et al. 2024,
    arXiv 2402.13753) run, others are only planned."""

    factor: Annotated[float, Field(ge=1, le=1e6)] = 8.0
    """By which long wavelengths are stretched."""

    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """llama3: wavelengths above original_max_position_embeddings divided by it are stretched."""

    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    """llama3: wavelengths below original_max_position_embeddings divided by it stay."""

    original_max_position_embeddings: Size = 8192
    """All but linear: positions before stretching."""

    short_factor: _Factors | None = None
    """longrope: by which the wavelengths of the pairs of a head are stretched in runs whose
    sequences are not longer."""

    long_factor: _Factors | None = None
    """longrope: likewise, in runs whose sequences are longer."""

    beta_fast: Annotated[float, Field(gt=0, le=1e6)] = 32.0
    """yarn: what turns more often than this over those positions stays."""

    beta_slow: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """yarn: what turns less often than this is stretched."""

    mscale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """yarn: how much queries and keys grow with factor. None: 1."""

    mscale_all_dim: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """yarn: likewise, of their parts without positions in latent attention; of others the growth is
    divided by that of this. None: not at all."""


Coefficient = Annotated[float, Field(ge=0, le=1e6)]


class ProjectorArchitecture(ConfigModel):
    """The matrices between an encoder and the language model."""

    hidden_sizes: list[Size] | None = None
    """Widths between the first matrix and the last; [] for a single matrix. None: one width,
    that of the language model's feed-forward layer."""

    add_bias_linear: bool | None = None
    """Every matrix has a bias. None: yes."""

    normalization: Normalization | None = None
    """A norm in front, with the layernorm_epsilon of the encoder, or None."""

    norm_size: Size | None = None
    """Width of that norm. None: the encoder's hidden_size."""

    deepstack_layers: list[Size] | None = None
    """Layers of the encoder, counted from 1, whose outputs pass through a separate projector each.
    The first layers of the language model add them to their outputs, in this order, as in
    Qwen3-VL. None: there are no such layers."""

    deepstack_normalization: Normalization | None = None
    """The norm in front of such a projector, or None."""

    deepstack_norm_size: Size | None = None
    """Width of that norm. None: the width of the projector's input."""


class LayerArchitecture(ConfigModel):
    """Fields of a network beyond its sizes, each with Megatron's usual value.

    Names are those of Megatron-Core's `TransformerConfig`, `MLATransformerConfig`, `GPTModel` and
    arguments, except for fields that they lack. None is the usual value, and is not written to
    files.
    """

    num_query_groups: Size | None = None
    """Key and value heads. None: num_attention_heads."""

    kv_channels: Size | None = None
    """Dimensions of one head. None: hidden_size / num_attention_heads."""

    gated_linear_unit: bool | None = None
    """A feed-forward layer of three matrices: SwiGLU with silu, GeGLU with gelu. None: of two."""

    activation_func: Activation | None = None
    """Inside the feed-forward layer. None: silu in a gated_linear_unit, else gelu."""

    normalization: Normalization | None = None
    """None: LayerNorm."""

    layernorm_epsilon: Annotated[float, Field(gt=0, le=1)] | None = None
    """Added to the variance in a norm. None: 1e-5."""

    add_bias_linear: bool | None = None
    """Matrices have a bias. None: yes."""

    add_qkv_bias: bool | None = None
    """Query, key and value have biases. None: as add_bias_linear."""

    add_attention_output_bias: bool | None = None
    """The output projection of attention has a bias. None: as add_bias_linear."""

    hidden_dropout: Probability | None = None
    """Share of the outputs of attention and of the feed-forward layer that are dropped in training,
    in every layer. Embeddings and projectors drop nothing. None: 0."""

    attention_dropout: Probability | None = None
    """Share of the attention probabilities that are dropped in training. None: 0."""

    position_embedding_type: Literal["rope", "learned_absolute", "interpolated"] | None = None
    """rope, or a table of learned vectors; of images also interpolated, as in Qwen3-VL: a square
    table that is interpolated to the rows and columns of an image, and rope besides. None: rope in
    the language model, learned in encoders."""

    max_position_embeddings: Size | None = None
    """Rows of the learned table. None: one per position."""

    rotary_base: Annotated[float, Field(ge=1, le=1e12)] | None = None
    """Base of the wavelengths of rotary positions (`rope_theta`). None: 10,000."""

    rope_scaling: RopeScaling | None = None
    """How rotary positions are stretched. None: not at all."""

    make_vocab_size_divisible_by: Size | None = None
    """The vocabulary is padded to a multiple of this times tensor_parallel; no loss counts the
    padding. None: tensor_parallel must divide it in runs; predictions pad with 128."""

    init_method: Literal["normal", "xavier"] | None = None
    """How matrices are drawn, each one whole before it is cut. None: normal."""

    init_std: Annotated[float, Field(gt=0, le=1e3)] | None = None
    """Standard deviation of the normal distribution; output matrices of layers have it divided by
    sqrt(2 x num_layers). None: 0.02."""

    patch_bias: bool | None = None
    """The patch embedding has a bias. None: yes."""

    outer_norms: Annotated[int, Field(ge=0, le=2)] | None = None
    """Norms of a vision encoder outside its layers: 0, 1 after them, or 2, before and after them.
    None: 1."""

    post_layer_norm: bool | None = None
    """Of the outer_norms, the one after the layers is there. false: it is left out, as where LLaVA
    takes the output of an inner layer of CLIP. None: yes."""

    projector: ProjectorArchitecture | None = None
    """The projector from this encoder to the language model. None: two matrices with biases."""

    add_key_bias: bool | None = None
    """The key has a bias if query and value have one (not in Whisper). None: yes."""

    qk_layernorm: bool | None = None
    """An RMSNorm over each head of query and key. None: no."""

    window_size: Size | None = None
    """Attention window of most layers, in tokens. A causal one ends with the token itself, one of
    sound has it in the middle; images are cut into squares of so many patches, inside which patches
    attend (Qwen2.5-VL). None, or seq_length and more: no window."""

    full_attention_layers: SizeOrZero | list[Size] | None = None
    """Layers without a window if window_size is set: their numbers, from 1, or how many, the last
    of as many equal parts each. None: 0."""

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
    """A token chooses experts by the sigmoids of its logits plus one bias per expert (DeepSeek-V3).
    After a step the bias of experts that fewer tokens chose than the mean rises, that of others
    falls. None: no."""

    moe_router_bias_update_rate: Coefficient | None = None
    """By how much it does. None: 0.001."""

    moe_shared_expert_gate: bool | None = None
    """The shared experts have a separate gate. None: no."""

    moe_router_pre_softmax: bool | None = None
    """The weights of a token's experts are a softmax over all experts, not over those that it
    visits. None: no, but with one expert per token."""

    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "none"] | None = None
    """Over what the auxiliary loss balances the experts: the tokens of a micro-batch on all
    replicas (aux_loss), or of each sample, in encoders of each image, recording or text
    (seq_aux_loss). Padding does not count. None: aux_loss."""

    moe_aux_loss_coeff: Coefficient | None = None
    """Weight of the auxiliary loss next to the mean loss per token. None: 0."""

    moe_z_loss_coeff: Coefficient | None = None
    """Weight of the squared log-sum of the router's logits, likewise. None: 0."""

    moe_expert_capacity_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """An expert takes at most this times the even share of a sample's tokens, and drops those with
    the lowest scores. None: it drops none."""

    mtp_num_layers: SizeOrZero | None = None
    """Layers of multi-token prediction, behind the model's own, whose positions are not learned.
    None: 0, or in a file as many as its weights have; 0 leaves those of weights out."""

    mtp_loss_scaling_factor: Coefficient | None = None
    """Weight of the mean loss of the tokens that these layers predict, next to that of the model
    itself. None: 0.1."""

    temporal_patch_size: Size | None = None
    """Frames per patch; an image is repeated to so many, as in Qwen2-VL. None: 1."""

    pooling_head: bool | None = None
    """SigLIP's pooling head, which makes one row of an image: one attention layer and one
    feed-forward layer. None: no."""
