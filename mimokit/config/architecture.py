"""The size of one module's network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mimokit.config.base import ConfigModel, Name, Size, SizeOrZero
from mimokit.config.layer_architecture import (
    Coefficient,
    LayerArchitecture,
    ProjectorArchitecture,
)
from mimokit.config.meaning import MEANINGS, NetworkMeanings


def _kind_of_frozen(value: object) -> str:
    return "<parts>" if isinstance(value, list) else "<whole>"


Frozen = Annotated[
    Annotated[bool, Tag("<whole>")]
    | Annotated[list[Literal["encoder", "projector"]], Tag("<parts>")],
    Discriminator(_kind_of_frozen),
]
"""One sentence says what is wrong: that of a flag, or that of a list."""


class ModuleOptimizerConfig(ConfigModel):
    """How one module is stepped where that differs from the run.

    The optimizer, and the warm-up and decay of its learning rate, are those of the run.
    """

    lr: Annotated[float, Field(gt=0)] | None = None
    """Learning rate. None: that of the run."""

    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay. None: that of the run."""


class NetworkSizes(ConfigModel):
    """The sizes of a network, and what it reads."""

    num_layers: Size
    """Transformer layers, all pipeline stages together."""

    hidden_size: Size
    """Width of an activation."""

    num_attention_heads: Size
    """Heads of every attention layer."""

    seq_length: Size
    """Longest sequence, in tokens. For a vision encoder: in patches. For an audio encoder: in
    positions after its convolutions, each of which spans two frames."""

    vocab_size: SizeOrZero
    """Rows of the token embedding; 0 for a module that embeds no tokens."""

    modal_type: Literal["text", "rows"] | None = None
    """'text' for a text head: an encoder that embeds tokens and whose output takes their places.
    'rows' for an adapter: an encoder that takes the rows of others, whose tokens of the largest
    item are its seq_length. None: an image encoder, or an audio encoder if mel_bins is set; behind
    the language model a decoder of images or sound, where 'text' is a decoder of tokens."""

    image_size: Size | None = None
    """Pixels per side of an image, or None for a module that reads no images."""

    patch_size: Size | None = None
    """Pixels per side of a patch."""

    num_channels: Size = 1
    """Channels of an image."""

    merge_size: Size = 1
    """Patches per token: merge_size x merge_size patches, or merge_size positions of a
    recording, become one token before the projector."""

    class_token: bool = False
    """A learned position before the patches (CLIP, DINO). It takes part in attention and is
    dropped from the output, unless keep_class_token is set."""

    keep_class_token: bool = False
    """The class token stays in the output, one token per image before those of the patches (LLaVA's
    vision_feature_select_strategy full)."""

    num_registers: SizeOrZero = 0
    """Learned positions next to the class token (DINOv2 with registers), dropped from the output
    likewise."""

    any_image_size: bool = False
    """Images may be of any size up to image_size x image_size, each side a multiple of
    patch_size x merge_size, and come with their grids of patches."""

    mel_bins: Size | None = None
    """Frequency bands of a log-mel frame; a module that has them is an audio encoder, or a decoder
    of sound."""

    reconstructs: Name | None = None
    """For a decoder of images or sound: the encoder whose items it makes again. None: the only one
    that reads such."""

    reconstruction_loss_weight: Coefficient | None = None
    """For a decoder of images or sound: weight of its loss next to that of a token. The loss of a
    row is the mean squared error of its numbers. None: 1."""

    ffn_hidden_size: Size | None = None
    """Width inside the feed-forward layer, or None for 4 x hidden_size."""

    tied_embeddings: bool = False
    """The language model's output layer is its token embedding."""

    mrope_section: Annotated[list[SizeOrZero], Field(min_length=3, max_length=3)] | None = None
    """For the language model: frequencies of a head that rotate with time, height and width
    (Qwen2-VL's three-axis rotary embedding); they sum to half the width of a head. None: one
    axis for text and images."""

    mrope_interleaved: bool | None = None
    """The frequencies of the three axes alternate, as in Qwen3-VL. None: those of an axis lie side
    by side."""

    frozen: Frozen = False
    """What is not trained: true for the whole module; of an encoder, [encoder] keeps its projector
    trained (LLaVA's first stage) and [projector] the rest."""

    optimizer: ModuleOptimizerConfig | None = None
    """Learning rate and weight decay of the module, if they are not those of the run."""

    weights: Annotated[str, Field(min_length=1)] | None = None
    """Directory of the Hugging Face weights from which the module starts; in a file, counted from
    the file's folder. Fields that are left out are those of its config.json, the others must agree
    with it. While it does not exist, a module that states its sizes can be planned, and not run.
    The vocabulary is padded to the next multiple of tensor_parallel. Of a LLaVA's tower the layers
    up to its vision_feature_layer run, without the norm after them. None: random weights."""

    weights_prefix: Annotated[str, Field(min_length=1)] | None = None
    """Begins the names of the module's tensors in files with other modules. None: found by
    known names."""

    builder: Annotated[str, Field(min_length=1)] | None = None
    """package.module:function of the user's, a function of (architecture, process groups) that
    returns the module, or a Megatron ModuleSpec; imported when the model is built. See
    docs/own_modules.md. None: mimokit builds it."""

    @property
    def modality(self) -> Literal["text", "rows", "vision", "audio"]:
        """What the module reads, if it is an encoder."""
        if self.modal_type is not None:
            return self.modal_type
        return "vision" if self.mel_bins is None else "audio"

    @property
    def frozen_parts(self) -> frozenset[str]:
        """The parts of an encoder that are not trained."""
        if isinstance(self.frozen, bool):
            return frozenset(("encoder", "projector") if self.frozen else ())
        return frozenset(self.frozen)

    @property
    def is_frozen(self) -> bool:
        """Whether nothing in the module is trained."""
        return len(self.frozen_parts) == 2


OF_VISION = (
    "temporal_patch_size", "patch_bias", "pooling_head", "outer_norms", "post_layer_norm",
    "class_token", "keep_class_token", "num_registers", "any_image_size",
)  # fmt: skip
"""Fields that vision encoders alone have."""
OF_ITEMS = ("image_size", "patch_size", "num_channels", "mel_bins", "merge_size", *OF_VISION)
"""Fields of what reads images or sound, which an adapter of their rows has not."""


class ModuleArchitecture(LayerArchitecture, NetworkSizes, NetworkMeanings):
    """The network of one module."""

    @property
    def stated_fields(self) -> set[str]:
        """The fields that are set, without those that mean the same where they are left out."""
        usual = {
            each.field
            for each in MEANINGS
            if not each.always and getattr(self, each.name) == each.of(self)
        }
        return {name for name in self.model_fields_set - usual if getattr(self, name) is not None}

    def section(self) -> dict[str, Any]:
        """Return the fields for a file, which stays short."""
        stated = self.stated_fields
        return self.model_dump(mode="json", include=stated, exclude_unset=True, exclude_none=True)

    def states(self, field: str) -> bool:
        """Tell whether a field has another value than its default."""
        return bool(getattr(self, field) != type(self).__pydantic_fields__[field].default)

    @property
    def inner_layers(self) -> tuple[int, ...]:
        """Layers, counted from 1, whose outputs layers of the language model add to theirs."""
        return () if self.projector is None else tuple(self.projector.deepstack_layers or ())

    def projector_widths(self, receiver: ModuleArchitecture) -> tuple[int, ...]:
        """Return the widths behind the matrices that project its output for another module."""
        said = None if self.projector is None else self.projector.hidden_sizes
        return (*([receiver.ffn] if said is None else said), receiver.hidden)

    @property
    def dense_layers(self) -> int:
        """Layers with an ordinary feed-forward layer."""
        return min(self.num_layers, self.leading_dense) if self.experts else self.num_layers

    @property
    def counts_tokens(self) -> bool:
        """Whether routers of experts compare tokens with others, of which none may be padding."""
        if self.num_moe_experts is None or self.builder is not None:
            return False
        numbers = (
            self.moe_aux_loss_coeff,
            self.moe_z_loss_coeff,
            self.moe_expert_capacity_factor,
            self.moe_router_enable_expert_bias,
        )
        return any(numbers)

    @property
    def vocabulary_multiple(self) -> int | None:
        """What the vocabulary is padded to a multiple of, times tensor_parallel; None: nothing."""
        if self.make_vocab_size_divisible_by is not None or self.weights is None:
            return self.make_vocab_size_divisible_by
        return 1

    @property
    def positions(self) -> int:
        """Positions of one item in an encoder: the largest image, the longest recording or text."""
        patches = self.seq_length
        if self.image_size is not None and self.patch_size is not None:
            patches = (self.image_size // self.patch_size) ** 2
        return patches + self.class_token + self.num_registers

    @property
    def over_rows(self) -> ModuleArchitecture:
        """The layers of a decoder of images or sound, as an adapter's over the rows of an item."""
        left_out = {field: type(self).model_fields[field].default for field in OF_ITEMS}
        of_rows = {"modal_type": "rows", "seq_length": self.positions // self.merge_size}
        return self.model_copy(update={**left_out, **of_rows})

    def has_learned_positions(self, *, by_default: bool) -> bool:
        """Tell whether positions are a table of vectors."""
        if self.position_embedding_type is None:
            return by_default
        return self.position_embedding_type == "learned_absolute"


def network_of_fields(fields: Mapping[str, Any]) -> ModuleArchitecture:
    """Return a network of fields that a reader has checked; None is not stated.

    Nor is what means the same where it is left out.
    """
    stated = {"seq_length": 1, **fields}
    if "projector" in stated:
        stated["projector"] = ProjectorArchitecture.model_construct(**stated["projector"])
    short = ModuleArchitecture.model_construct(**stated).stated_fields
    return ModuleArchitecture.model_construct(**{name: stated[name] for name in short})
