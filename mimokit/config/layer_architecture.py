"""Fields of a network beyond its sizes: how its layers, positions and ends are built."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mimokit.config.base import ConfigModel, Size, SizeOrZero

Normalization = Literal["LayerNorm", "RMSNorm"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
"""gelu is exact, gelu_tanh its approximation by tanh, quick_gelu x * sigmoid(1.702 x)."""


class RopeScaling(ConfigModel):
    """How the positions of rotary embeddings are stretched; names are those of Hugging Face."""

    model_config = ConfigDict(frozen=True)

    rope_type: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """linear (positions are divided by factor) and llama3 (Llama 3.1) run, others are only
    planned."""

    factor: Annotated[float, Field(ge=1, le=1e6)] = 8.0
    """By which long wavelengths are stretched."""

    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """llama3: wavelengths above original_max_position_embeddings divided by it are stretched."""

    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    """llama3: wavelengths below original_max_position_embeddings divided by it stay."""

    original_max_position_embeddings: Size = 8192
    """llama3: positions before stretching."""


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


class LayerArchitecture(ConfigModel):
    """Fields of a network that mimokit trains, each with Megatron's usual value.

    Names are those of Megatron-Core's `TransformerConfig`, `GPTModel` and arguments, except for
    fields that they lack. None is the usual value, and is not written to files.
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

    position_embedding_type: Literal["rope", "learned_absolute"] | None = None
    """rope, or a table of learned vectors. None: rope in the language model, learned in
    encoders."""

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

    outer_norms: SizeOrZero | None = None
    """Norms of an encoder outside its layers: 0, 1 after them, or 2, one before and one after.
    None: 1."""

    post_layer_norm: bool | None = None
    """Of the outer_norms, the one after the layers is there. false: it is left out, as where LLaVA
    takes the output of an inner layer of CLIP. None: yes."""

    projector: ProjectorArchitecture | None = None
    """The projector from this encoder to the language model. None: two matrices with biases."""
