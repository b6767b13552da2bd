"""What a network computes between its matrices, and how a Hugging Face config states it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimokit.architecture.huggingface.fields import Fields
from mimokit.config import RopeScaling
from mimokit.units import listed

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu")
"""Activations that can run; "gelu" is the exact one, "quick_gelu" is x * sigmoid(1.702 x)."""

SCALINGS = ("linear", "llama3", "yarn")
"""Kinds of rotary scaling that can run."""


@dataclass(frozen=True)
class NetworkFunctions:
    """What a network computes between its matrices.

    Attributes:
        activation: one of `ACTIVATIONS`; any other is as its file names it, and cannot run.
        positions: longest sequence in tokens; 0 where none is stated.
        sections: frequencies of a head that rotate with time, height and width; None: all rotate
            with the place in the sequence.
        unknown: fields of the file that change what is computed, and that cannot run.
    """

    activation: str
    epsilon: float
    rotary_base: float = 10_000.0
    rotary_scaling: RopeScaling | None = None
    sections: tuple[int, ...] | None = None
    positions: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def obstacles(self) -> Mapping[str, str]:
        """What cannot run: field -> what is wrong with it, and what can."""
        fields: dict[str, str] = {}
        if self.activation not in ACTIVATIONS:
            fields["activation"] = (
                f"its activation is {self.activation!r}; {listed(ACTIVATIONS)} can run"
            )
        scaling = self.rotary_scaling
        if scaling is not None and scaling.rope_type not in SCALINGS:
            fields["rotary_scaling"] = (
                f"its rotary scaling is {scaling.rope_type!r}; {listed(SCALINGS)} can run"
            )
        if self.unknown:
            fields["fields"] = f"it sets {listed(self.unknown)}, which cannot run"
        return fields


ACTIVATION_NAMES: Mapping[str, str] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh", "quick_gelu": "quick_gelu",
}  # fmt: skip
"""transformers' `ACT2FN`: its names of the `ACTIVATIONS`."""

_DEFAULTS: Mapping[str, tuple[str, float, int]] = {
    "llama": ("silu", 1e-6, 2048),
    "mistral": ("silu", 1e-6, 4096 * 32),
    "qwen2": ("silu", 1e-6, 32768),
    "mimo": ("silu", 1e-6, 32768),
    "qwen3": ("silu", 1e-6, 32768),
    "phi3": ("silu", 1e-5, 4096),
    "gpt2": ("gelu_new", 1e-5, 1024),
    "clip_vision_model": ("quick_gelu", 1e-5, 0),
    "siglip_vision_model": ("gelu_pytorch_tanh", 1e-6, 0),
    "qwen2_vl_vision": ("quick_gelu", 1e-6, 0),
    "qwen2_vl_text": ("silu", 1e-5, 32768),
    "qwen2_5_vl_vision": ("silu", 1e-6, 0),
    "qwen2_5_vl_text": ("silu", 1e-5, 32768),
    "qwen3_vl_vision": ("gelu_pytorch_tanh", 1e-6, 0),
    "qwen3_vl_text": ("silu", 1e-6, 128_000),
}
"""Model type -> activation, epsilon and longest sequence of transformers' config class."""

_ROTARY_BASES: Mapping[str, float] = {
    "mixtral": 1e6, "qwen2_vl_text": 1e6, "qwen2_5_vl_text": 1e6, "qwen3_vl_text": 5e5,
}  # fmt: skip
"""Model type -> rope_theta of transformers' config class, where it is not 10,000."""

_SECTIONS: Mapping[str, tuple[int, ...]] = {
    "qwen2_vl_text": (16, 24, 24), "qwen2_5_vl_text": (16, 24, 24), "qwen3_vl_text": (24, 20, 20),
    "qwen3_vl_moe_text": (24, 20, 20),
}  # fmt: skip
"""Model type -> mrope_section where its file has none, in transformers' model classes."""

_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def functions_of(config: Mapping[str, Any]) -> NetworkFunctions:
    """Return what a network computes between its matrices.

    Args:
        config: the content of a config.json. Of a whole CLIP or SigLIP the vision tower is meant,
            of a LLaVA or Qwen-VL the language model.

    Raises:
        ConfigError: a field is of the wrong type.
    """
    kind, fields = str(config.get("model_type")), Fields(config)
    if kind in _TOWERS:
        fields, kind = fields.section("vision_config"), _TOWERS[kind]
    elif kind == "llava":
        fields = fields.section("text_config")
        kind = fields.text("model_type", "llama")
    elif (text := f"{kind}_text") in _SECTIONS:
        fields, kind = fields.section("text_config") if "text_config" in fields else fields, text
    functions = functions_of_section(fields, kind)
    fields.check()
    return functions


def functions_of_section(fields: Fields, kind: str) -> NetworkFunctions:
    """Return what a network computes between its matrices; problems are left in the fields."""
    activation, epsilon, positions = _DEFAULTS.get(kind, ("silu", 1e-6, 0))
    if kind == "gpt2":
        return NetworkFunctions(
            _activation(fields, "activation_function", activation),
            fields.number_or("layer_norm_epsilon", epsilon),
            positions=fields.size_or("n_positions", positions, least=1),
            unknown=tuple(_gpt2_unknown(fields)),
        )
    if kind.endswith(("vision_model", "_vision")):
        return NetworkFunctions(
            _activation(fields, "hidden_act", activation),
            fields.number_or("layer_norm_eps", epsilon),
        )
    return _grouped(fields, kind, activation, epsilon, positions)


def _activation(fields: Fields, name: str, default: str) -> str:
    written = fields.text(name, default)
    return ACTIVATION_NAMES.get(written, written)


def _grouped(
    fields: Fields, kind: str, activation: str, epsilon: float, positions: int
) -> NetworkFunctions:
    # Files of different age state rotary positions elsewhere.
    rotary = next(
        (fields.section(name) for name in ("rope_parameters", "rope_scaling") if name in fields),
        Fields({}),
    )
    base = fields.number_or("rope_theta", _ROTARY_BASES.get(kind, 10_000.0))
    return NetworkFunctions(
        _activation(fields, "hidden_act", activation),
        fields.number_or("rms_norm_eps", epsilon),
        rotary_base=rotary.number_or("rope_theta", base),
        rotary_scaling=_scaling(rotary),
        sections=_sections(rotary, kind),
        positions=fields.size_or("max_position_embeddings", positions, least=1),
        unknown=tuple(_unknown(fields, rotary)),
    )


def _scaling(rotary: Fields) -> RopeScaling | None:
    kind = rotary.text("rope_type", rotary.text("type", "default"))
    if kind in ("default", "mrope"):  # mrope turns parts of a head with other axes
        return None
    if kind == "yarn":
        return _yarn(rotary)
    return RopeScaling(
        rope_type=kind,
        factor=rotary.number_or("factor", 1.0),
        low_freq_factor=rotary.number_or("low_freq_factor", 1.0),
        high_freq_factor=rotary.number_or("high_freq_factor", 4.0),
        original_max_position_embeddings=rotary.size_or(
            "original_max_position_embeddings", 8192, least=1
        ),
    )


def _sections(rotary: Fields, kind: str) -> tuple[int, ...] | None:
    if kind not in _SECTIONS:
        return None
    name = "mrope_section"
    sections = tuple(rotary.integers(name)) if name in rotary else _SECTIONS[kind]
    if len(sections) != 3:
        rotary.refuse(name, "write three whole numbers: those of time, height and width")
    return sections


def _yarn(rotary: Fields) -> RopeScaling:
    mscale, mscale_all_dim = (
        rotary.number_or(name, 1.0) if name in rotary else None
        for name in ("mscale", "mscale_all_dim")
    )
    return RopeScaling(
        rope_type="yarn",
        factor=rotary.number_or("factor", 1.0),
        original_max_position_embeddings=rotary.size_or(
            "original_max_position_embeddings", 8192, least=1
        ),
        beta_fast=rotary.number_or("beta_fast", 32.0),
        beta_slow=rotary.number_or("beta_slow", 1.0),
        mscale=mscale,
        mscale_all_dim=mscale_all_dim,
    )


def _partial(fields: Fields, rotary: Fields) -> bool:
    share = fields.number_or("partial_rotary_factor", 1.0)
    return rotary.number_or("partial_rotary_factor", share) != 1.0


def _unknown(fields: Fields, rotary: Fields) -> Iterator[str]:
    if _partial(fields, rotary):
        yield "partial_rotary_factor"
    if "attention_factor" in rotary:
        yield "attention_factor"
    if not rotary.flag("truncate", default=True):
        yield "truncate: false"


def _gpt2_unknown(fields: Fields) -> Iterator[str]:
    if not fields.flag("scale_attn_weights", default=True):
        yield "scale_attn_weights: false"
    if fields.flag("scale_attn_by_inverse_layer_idx"):
        yield "scale_attn_by_inverse_layer_idx: true"
