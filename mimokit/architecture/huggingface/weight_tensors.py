"""Megatron's parameters as rows and columns of the tensors of Hugging Face weights.

A parameter of the whole model is a stack of row ranges of tensors, which are listed here for each
family; its shape, its place and how it is cut come from the table in
`mimokit.architecture.tensors`. `mimokit.planning.weights` works out from both what a rank reads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mimokit.architecture.encoders import VisionEncoder
from mimokit.architecture.modules import EMBEDDING, OUTPUT_LAYER, LanguageModel, Projector
from mimokit.architecture.tensor_cut import Shape, Span
from mimokit.architecture.tensor_rows import ModuleTensor
from mimokit.architecture.transformer import Transformer
from mimokit.config.meaning import Normalization


@dataclass(frozen=True, slots=True)
class Source:
    """A range of rows of a parameter, as it lies in a tensor of the file.

    Attributes:
        start: first row, counted in the tensor; its first column if it is stored transposed.
        columns: ranges of the tensor's columns in the order in which the parameter has them, of
            which ranks share the rows; empty: it has them as the tensor.
    """

    tensor: str
    start: int
    stop: int
    columns: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class WholeParameter:
    """A parameter of the whole model.

    Attributes:
        transposed: the tensors of the file have its columns as their rows.
    """

    row: ModuleTensor
    sources: tuple[Source, ...]
    transposed: bool = False


@dataclass
class WeightTensors:
    """What the weights of a model must contain, and what becomes of it.

    Attributes:
        passed_over: beginnings and endings of names, or whole names, of tensors that are not
            parameters of the planned model.
    """

    table: Mapping[str, tuple[ModuleTensor, ...]]
    tensors: dict[str, Shape] = field(default_factory=dict)
    parameters: list[WholeParameter] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def passes_over(self, name: str) -> bool:
        """Whether a tensor is known, and no parameter: a buffer, or of a part left out.

        A pattern that ends in a dot is the beginning of names, one that begins with a dot their
        ending.
        """
        return any(
            name.startswith(pattern)
            if pattern.endswith(".")
            else name.endswith(pattern)
            if pattern.startswith(".")
            else name == pattern
            for pattern in self.passed_over
        )

    def copy(self, name: str, tensor: str, stored: Shape | None = None) -> None:
        """Add a parameter that is one tensor of the file.

        Args:
            stored: shape in the file, where it differs: it has as many entries in the same order.
        """
        stored = stored or self.shape(name)
        self.tensors[tensor] = stored
        self._add(name, [Source(tensor, 0, stored[0])])

    def swap_halves(self, name: str, tensor: str) -> None:
        """Add a matrix that has the right half of a tensor's columns on the left."""
        self.tensors[tensor] = rows, columns = self.shape(name)
        middle = columns // 2
        self._add(name, [Source(tensor, 0, rows, ((middle, columns), (0, middle)))])

    def stack(self, name: str, tensors: Sequence[str], *, transposed: bool = False) -> None:
        """Add a parameter that stacks whole tensors of equal height."""
        height = self.shape(name)[0] // len(tensors)
        sources = [Source(tensor, 0, height) for tensor in tensors]
        self.fuse(name, dict.fromkeys(tensors, height), sources, transposed=transposed)

    def fuse(
        self, name: str, rows: Mapping[str, int], sources: Iterable[Source], *,
        transposed: bool = False,
    ) -> None:  # fmt: skip
        """Add a parameter that takes its rows from several ranges.

        Args:
            transposed: the file has columns as rows; those of vectors are not.
        """
        across = self.shape(name)[1:]
        for tensor, length in rows.items():
            self.tensors[tensor] = (*across, length) if transposed else (length, *across)
        self._add(name, sources, transposed and bool(across))

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter, without padding."""
        return self.table[name][0].cut.whole

    def _add(self, name: str, sources: Iterable[Source], transposed: bool = False) -> None:
        parts = tuple(sources)
        self.parameters += [WholeParameter(row, parts, transposed) for row in self.table[name]]


MIXTURE_TYPES = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families with Llama's names around experts."""

GROUPED_TYPES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "mimo")
"""Families with Llama's names; Phi-3 has its matrices fused."""

FURTHER_TOKENS = "mtp_layers."
"""Begins MiMo's names of the tensors of layers that predict further tokens, behind the prefix."""


def add_grouped(
    weights: WeightTensors,
    kind: str,
    model: LanguageModel,
    prefix: str,
    head: str,
    name: str = "",
) -> None:
    """Add the parameters of a model of `GROUPED_TYPES` or `MIXTURE_TYPES`.

    Args:
        head: name of the output layer in the file; it is passed over if embeddings are tied.
    """
    net, fused = model.net, kind == "phi3"
    weights.passed_over.append(".rotary_emb.inv_freq")
    _add_ends(weights, model, f"{prefix}embed_tokens.weight", head, name)
    for number in range(net.layers):
        ours, theirs = f"{name}decoder.layers.{number}.", f"{prefix}layers.{number}."
        _add_grouped_attention(weights, net, theirs, ours, fused)
        if number < net.dense_layers:
            _add_grouped_feed_forward(weights, net, theirs, ours, fused)
        else:
            _add_experts(weights, net, kind, theirs, ours)
    weights.copy(f"{name}decoder.final_layernorm.weight", f"{prefix}norm.weight")
    for number in range(model.next_token_layers):
        ours, theirs = f"{name}mtp.layers.{number}.", f"{prefix}{FURTHER_TOKENS}{number}."
        _add_further_tokens(weights, net, theirs, ours)


def _add_further_tokens(weights: WeightTensors, net: Transformer, file: str, ours: str) -> None:
    # MiMo joins the hidden state with the embedding, Megatron the embedding with the hidden state.
    for norm, theirs in (("enorm", "token"), ("hnorm", "hidden"), ("final_layernorm", "final")):
        weights.copy(f"{ours}{norm}.weight", f"{file}{theirs}_layernorm.weight")
    weights.swap_halves(f"{ours}eh_proj.weight", f"{file}input_proj.weight")
    layer = f"{ours}mtp_model_layer."
    _add_grouped_attention(weights, net, file, layer, fused=False)
    _add_grouped_feed_forward(weights, net, file, layer, fused=False)


def _kinds(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)


def _add_grouped_attention(
    weights: WeightTensors, net: Transformer, file: str, ours: str, fused: bool
) -> None:
    attention, theirs = f"{ours}self_attention.", f"{file}self_attn."
    weights.copy(f"{ours}input_layernorm.weight", f"{file}input_layernorm.weight")
    if fused:
        add_fused_qkv(weights, net, f"{attention}linear_qkv.weight", f"{theirs}qkv_proj.weight")
    else:
        for kind in _kinds(net.qkv_bias):
            tensors = [f"{theirs}{letter}_proj.{kind}" for letter in "qkv"]
            add_qkv(weights, net, f"{attention}linear_qkv.{kind}", tensors)
    if net.qk_norm:
        for letter in "qk":
            weights.copy(f"{attention}{letter}_layernorm.weight", f"{theirs}{letter}_norm.weight")
    for kind in _kinds(net.output_bias):
        weights.copy(f"{attention}linear_proj.{kind}", f"{theirs}o_proj.{kind}")


def _add_grouped_feed_forward(
    weights: WeightTensors, net: Transformer, file: str, ours: str, fused: bool
) -> None:
    weights.copy(f"{ours}pre_mlp_layernorm.weight", f"{file}post_attention_layernorm.weight")
    if fused:
        weights.copy(f"{ours}mlp.linear_fc1.weight", f"{file}mlp.gate_up_proj.weight")
    else:
        for kind in _kinds(net.ffn_bias):
            pair = [f"{file}mlp.{product}_proj.{kind}" for product in ("gate", "up")]
            weights.stack(f"{ours}mlp.linear_fc1.{kind}", pair)
    for kind in _kinds(net.ffn_bias):
        weights.copy(f"{ours}mlp.linear_fc2.{kind}", f"{file}mlp.down_proj.{kind}")


def _add_experts(weights: WeightTensors, net: Transformer, kind: str, file: str, ours: str) -> None:
    assert net.moe is not None
    block, gate, up, down = f"{file}mlp.", "gate_proj", "up_proj", "down_proj"
    if kind == "mixtral":
        block, gate, up, down = f"{file}block_sparse_moe.", "w1", "w3", "w2"
    places = {
        f"{ours}mlp.experts.local_experts.{number}.": f"{block}experts.{number}."
        for number in range(net.moe.experts)
    }
    shared = f"{ours}mlp.shared_experts."
    if net.moe.shared_ffn:
        places[shared] = f"{block}shared_expert."
    if net.moe.shared_gate:
        weights.copy(f"{shared}gate_weight", f"{block}shared_expert_gate.weight")
    weights.copy(f"{ours}pre_mlp_layernorm.weight", f"{file}post_attention_layernorm.weight")
    weights.copy(f"{ours}mlp.router.weight", f"{block}gate.weight")
    for expert, theirs in places.items():
        pair = [f"{theirs}{gate}.weight", f"{theirs}{up}.weight"]
        weights.stack(f"{expert}linear_fc1.weight", pair)
        weights.copy(f"{expert}linear_fc2.weight", f"{theirs}{down}.weight")


def add_fused_qkv(weights: WeightTensors, net: Transformer, name: str, tensor: str) -> None:
    """Add a fused query, key and value from a tensor with all queries, all keys and all values."""
    query, keys = net.heads * net.head_dim, net.kv_heads * net.head_dim
    parts = _grouped_rows(net, [tensor] * 3, (0, query, query + keys))
    weights.fuse(name, {tensor: query + 2 * keys}, parts)


def add_qkv(weights: WeightTensors, net: Transformer, name: str, tensors: list[str]) -> None:
    """Add a fused query, key and value: per group its queries, its key and its value."""
    keys = net.kv_heads * net.head_dim
    rows = dict(zip(tensors, (net.heads * net.head_dim, keys, keys), strict=True))
    weights.fuse(name, rows, _grouped_rows(net, tensors, (0, 0, 0)))


def _grouped_rows(
    net: Transformer, tensors: list[str], offsets: tuple[int, int, int]
) -> Iterator[Source]:
    """Yield the rows of every group; the offsets are those of query, key and value."""
    width = net.head_dim
    lengths = (net.heads // net.kv_heads * width, width, width)
    for group in range(net.kv_heads):
        for tensor, offset, length in zip(tensors, offsets, lengths, strict=True):
            start = offset + group * length
            yield Source(tensor, start, start + length)


def _add_ends(
    weights: WeightTensors, model: LanguageModel, embedding: str, head: str, name: str
) -> None:
    weights.copy(f"{name}{EMBEDDING}", embedding)
    if model.tied:
        weights.passed_over.append(head)
    weights.copy(f"{name}{OUTPUT_LAYER}", embedding if model.tied else head)


def add_gpt2(weights: WeightTensors, model: LanguageModel, prefix: str, head: str) -> None:
    """Add the parameters of GPT-2, whose matrices are stored transposed (`Conv1D`)."""
    net = model.net
    weights.passed_over += [".attn.bias", ".attn.masked_bias"]
    _add_ends(weights, model, f"{prefix}wte.weight", head, "")
    weights.copy("embedding.position_embeddings.weight", f"{prefix}wpe.weight")
    for number in range(net.layers):
        _add_gpt2_layer(weights, net, f"{prefix}h.{number}.", f"decoder.layers.{number}.")
    for kind in ("weight", "bias"):
        weights.copy(f"decoder.final_layernorm.{kind}", f"{prefix}ln_f.{kind}")


def _add_gpt2_layer(weights: WeightTensors, net: Transformer, file: str, ours: str) -> None:
    hidden = net.hidden
    matrices = {
        "self_attention.linear_proj": "attn.c_proj",
        "mlp.linear_fc1": "mlp.c_fc",
        "mlp.linear_fc2": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        for norm, theirs in (("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")):
            weights.copy(f"{ours}{norm}.{kind}", f"{file}{theirs}.{kind}")
        fused = f"{file}attn.c_attn.{kind}"
        thirds = _grouped_rows(net, [fused] * 3, (0, hidden, 2 * hidden))
        name = f"{ours}self_attention.linear_qkv.{kind}"
        weights.fuse(name, {fused: 3 * hidden}, thirds, transposed=True)
        for name, theirs in matrices.items():
            weights.stack(f"{ours}{name}.{kind}", [f"{file}{theirs}.{kind}"], transposed=True)


OF_WHOLE_MODELS = (
    "text_model.", "text_projection.weight", "visual_projection.weight", "logit_scale",
    "logit_bias",
)  # fmt: skip
"""Tensors of a whole CLIP or SigLIP that are not of its vision tower."""


def add_tower(weights: WeightTensors, tower: VisionEncoder, prefix: str, name: str = "") -> None:
    """Add the parameters of a vision tower, all its layers and norms included."""
    net = tower.net
    weights.passed_over.append(".embeddings.position_ids")
    _add_embeddings(weights, tower, f"{prefix}embeddings.", name)
    if tower.norms > 1:
        add_pairs(weights, {f"{name}pre_layernorm": f"{prefix}pre_layrnorm"})
    for number in range(net.layers):
        ours = f"{name}decoder.layers.{number}."
        _add_layer(weights, net, f"{prefix}encoder.layers.{number}.", ours)
    if tower.norm_after:
        add_pairs(weights, {f"{name}decoder.final_layernorm": f"{prefix}post_layernorm"})
    if tower.row_head is not None:
        for row in tower.row_head.rows(""):
            weights.copy(f"{name}{row.name}", f"{prefix}{row.name}")


def _add_embeddings(weights: WeightTensors, tower: VisionEncoder, file: str, name: str) -> None:
    width, images, weight = tower.net.hidden, tower.images, "patch_embedding.weight"
    stored = width, images.num_channels, images.patch_size, images.patch_size
    weights.copy(f"{name}{weight}", f"{file}{weight}", stored)
    if tower.biased_patches:
        weights.copy(f"{name}patch_embedding.bias", f"{file}patch_embedding.bias")
    if images.class_token:
        weights.copy(f"{name}class_token", f"{file}class_embedding", (width,))
    weights.copy(f"{name}position_embedding", f"{file}position_embedding.weight")


def add_pairs(weights: WeightTensors, names: Mapping[str, str], bias: bool = True) -> None:
    """Add weight and bias of norms and matrices: Megatron's name -> that in the file."""
    for name, tensor in names.items():
        for kind in ("weight", "bias") if bias else ("weight",):
            weights.copy(f"{name}.{kind}", f"{tensor}.{kind}")


def add_norm(weights: WeightTensors, kind: Normalization, name: str, tensor: str) -> None:
    """Add weight and, of a LayerNorm, bias of a norm: Megatron's name, then that in the file."""
    for part in _kinds(kind == "LayerNorm"):
        weights.copy(f"{name}.{part}", f"{tensor}.{part}")


def _add_layer(weights: WeightTensors, net: Transformer, file: str, ours: str) -> None:
    attention = f"{file}self_attn."
    for kind in ("weight", "bias"):
        tensors = [f"{attention}{letter}_proj.{kind}" for letter in "qkv"]
        add_qkv(weights, net, f"{ours}self_attention.linear_qkv.{kind}", tensors)
    same = {
        f"{ours}input_layernorm": f"{file}layer_norm1",
        f"{ours}self_attention.linear_proj": f"{attention}out_proj",
        f"{ours}pre_mlp_layernorm": f"{file}layer_norm2",
        f"{ours}mlp.linear_fc1": f"{file}mlp.fc1",
        f"{ours}mlp.linear_fc2": f"{file}mlp.fc2",
    }
    add_pairs(weights, same)


def add_projector(weights: WeightTensors, projector: Projector, prefix: str, name: str) -> None:
    """Add LLaVA's projector, which lies behind the tower."""
    matrices = {f"{name}encoder.linear_fc{n}": f"{prefix}linear_{n}" for n in (1, 2)}
    add_pairs(weights, matrices, projector.bias)
