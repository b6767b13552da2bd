"""What a field of a network means where a config leaves it out."""

from collections.abc import Callable
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, cast, overload

Normalization = Literal["LayerNorm", "RMSNorm"]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
"""gelu is exact, gelu_tanh its approximation by tanh, quick_gelu x * sigmoid(1.702 x)."""

EPSILON = 1e-5
"""Megatron's `layernorm_epsilon`."""

INIT_STD = 0.02
"""Megatron's `init_method_std`."""

TOP_K = 2
"""Megatron's `moe_router_topk`."""

VOCABULARY_MULTIPLE = 128
"""Megatron's `make_vocab_size_divisible_by`; times the tensor parallel size."""

ROTARY_BASE = 10_000.0
"""Megatron's `rotary_base`."""

T = TypeVar("T")
LeftOut: TypeAlias = T | Callable[[Any], T]


class Meaning(Generic[T]):
    """A property of a network: the value of a field, or what it means that it is left out.

    A description of the network has the value under the name of the property.

    Args:
        field: of the config.
        left_out: its meaning where it is None: a value, or a function of the network.
        always: files state the field, also where they could leave it out.
        read: files of weights have it, and it decides what of them is read.
    """

    def __init__(
        self, field: str, left_out: LeftOut[T], *, always: bool = False, read: bool = True
    ) -> None:
        self.field, self.always, self.read = field, always, read
        self._left_out = left_out

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, network: None, owner: type) -> Self: ...
    @overload
    def __get__(self, network: object, owner: type) -> T: ...
    def __get__(self, network: object, owner: type) -> Self | T:
        if network is None:
            return self
        value = getattr(network, self.field)
        if value is None:
            return self.of(network)
        return cast(T, tuple(value) if isinstance(value, list) else value)

    def of(self, network: object) -> T:
        """Return what it means for a network that the field is left out."""
        return self._left_out(network) if callable(self._left_out) else self._left_out


def usual_activation(gated: bool) -> Activation:
    """Return the activation of a feed-forward layer that states none."""
    return "silu" if gated else "gelu"


class NetworkMeanings:
    """What the fields of a network mean; every description of one has these names."""

    layers = Meaning[int]("num_layers", 0)
    hidden = Meaning[int]("hidden_size", 0)
    heads = Meaning[int]("num_attention_heads", 0)
    vocab = Meaning[int]("vocab_size", 0, always=True)
    keeps_class_token = Meaning[bool]("keep_class_token", False)
    registers = Meaning[int]("num_registers", 0, read=False)
    ffn = Meaning[int]("ffn_hidden_size", lambda net: 4 * net.hidden, always=True)
    tied = Meaning[bool]("tied_embeddings", False, always=True)
    rotary_sections = Meaning[tuple[int, ...] | None]("mrope_section", None)
    interleaved_sections = Meaning[bool]("mrope_interleaved", False)
    kv_heads = Meaning[int]("num_query_groups", lambda net: net.heads)
    head_dim = Meaning[int](
        "kv_channels",
        lambda net: net.nope_dim + net.rope_dim if net.latent else net.hidden // net.heads,
    )
    gated = Meaning[bool]("gated_linear_unit", False)
    activation = Meaning[Activation]("activation_func", lambda net: usual_activation(net.gated))
    norm = Meaning[Normalization]("normalization", "LayerNorm")
    epsilon = Meaning[float]("layernorm_epsilon", EPSILON)
    ffn_bias = Meaning[bool]("add_bias_linear", True)
    qkv_bias = Meaning[bool]("add_qkv_bias", lambda net: net.ffn_bias)
    output_bias = Meaning[bool]("add_attention_output_bias", lambda net: net.ffn_bias)
    dropout = Meaning[float]("hidden_dropout", 0.0)
    score_dropout = Meaning[float]("attention_dropout", 0.0)
    rope_theta = Meaning[float]("rotary_base", ROTARY_BASE)
    vocab_multiple = Meaning[int]("make_vocab_size_divisible_by", VOCABULARY_MULTIPLE, read=False)
    matrix_std = Meaning[float]("init_std", INIT_STD, read=False)
    biased_patches = Meaning[bool]("patch_bias", True)
    norms = Meaning[int]("outer_norms", 1)
    norm_after = Meaning[bool]("post_layer_norm", True)
    key_bias = Meaning[bool]("add_key_bias", True)
    qk_norm = Meaning[bool]("qk_layernorm", False)
    window = Meaning[int]("window_size", 0, read=False)
    unwindowed = Meaning[int | tuple[int, ...]]("full_attention_layers", 0)
    latent = Meaning[bool]("multi_latent_attention", False)
    q_rank = Meaning[int]("q_lora_rank", 0)
    kv_rank = Meaning[int]("kv_lora_rank", 0)
    nope_dim = Meaning[int]("qk_head_dim", 0)
    rope_dim = Meaning[int]("qk_pos_emb_head_dim", 0)
    v_dim = Meaning[int]("v_head_dim", 0)
    experts = Meaning[int]("num_moe_experts", 0)
    top_k = Meaning[int]("moe_router_topk", TOP_K)
    expert_ffn = Meaning[int]("moe_ffn_hidden_size", lambda net: net.ffn)
    shared_ffn = Meaning[int]("moe_shared_expert_intermediate_size", 0)
    leading_dense = Meaning[int]("first_k_dense_replace", 0)
    router_bias = Meaning[bool]("moe_router_enable_expert_bias", False)
    shared_gate = Meaning[bool]("moe_shared_expert_gate", False)
    pre_softmax = Meaning[bool]("moe_router_pre_softmax", lambda net: net.top_k == 1)
    next_token_layers = Meaning[int]("mtp_num_layers", 0)
    one_row = Meaning[bool]("pooling_head", False, read=False)
    frames_per_patch = Meaning[int]("temporal_patch_size", 1)

    @property
    def key_heads(self) -> int:
        """Heads with a key and a value: all of latent attention."""
        return self.heads if self.latent else self.kv_heads

    @property
    def reaches(self) -> tuple[int, ...]:
        """The tokens that each layer attends to at once; 0 for all."""
        without = self.unwindowed
        if isinstance(without, int):  # the last layers of as many equal parts
            without = tuple(-(-self.layers * part // without) for part in range(1, without + 1))
        return tuple(self.window * (n not in without) for n in range(1, self.layers + 1))

    @property
    def full_layers(self) -> int:
        """The layers whose positions attend to all, or to all before them."""
        without = self.unwindowed
        full = without if isinstance(without, int) else len(without)
        return min(self.layers, full) if self.window else self.layers

    @property
    def attends_to_all(self) -> bool:
        """Whether positions attend to all, or to all before them, in every layer."""
        return not self.window

    def has_plain_attention(self, is_causal: bool) -> bool:
        """Whether Megatron's own attention computes it, whose windows are of positions before."""
        return not self.latent and (is_causal or self.attends_to_all)


MEANINGS = tuple(each for each in vars(NetworkMeanings).values() if isinstance(each, Meaning))
