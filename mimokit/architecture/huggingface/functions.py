"""What a network computes between its matrices, as a Hugging Face config states it."""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture.huggingface.fields import Fields
from mimokit.config import RopeScaling
from mimokit.config.meaning import Activation
from mimokit.units import listed

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "quick_gelu")

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

_OF_ENCODERS = ("vision_model", "_vision")
"""Endings of the model types of encoders."""

_OTHERS = ("silu", 1e-6, 0)

_TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def section_of(config: Mapping[str, Any]) -> tuple[Fields, str]:
    """Return the section of a network, and its `model_type`.

    Args:
        config: the content of a config.json. Of a whole CLIP or SigLIP the vision tower is meant,
            of a LLaVA or Qwen-VL the language model.
    """
    kind, fields = str(config.get("model_type")), Fields(config)
    if kind in _TOWERS:
        return fields.section("vision_config"), _TOWERS[kind]
    if kind == "llava":
        text = fields.section("text_config")
        return text, text.text("model_type", "llama")
    if (text_kind := f"{kind}_text") in _SECTIONS:
        return fields.section("text_config") if "text_config" in fields else fields, text_kind
    return fields, kind


def longest_sequence(config: Mapping[str, Any]) -> int:
    """Return the longest sequence of a network in tokens; 0 where none is stated."""
    fields, kind = section_of(config)
    _, _, usual = _DEFAULTS.get(kind, _OTHERS)
    if kind.endswith(_OF_ENCODERS):
        return 0
    name = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    positions = fields.size_or(name, usual, least=1)
    fields.check()
    return positions


def computed_fields(fields: Fields, kind: str) -> dict[str, Any]:
    """Return what of a network's fields is computed between its matrices.

    An activation that cannot run is left out. Problems are left in the fields.
    """
    activation, epsilon, _ = _DEFAULTS.get(kind, _OTHERS)
    if kind == "gpt2":
        return {
            "layernorm_epsilon": fields.number_or("layer_norm_epsilon", epsilon),
            "activation_func": _activation(fields, "activation_function", activation),
        }
    name = "layer_norm_eps" if kind.endswith(_OF_ENCODERS) else "rms_norm_eps"
    computed = {
        "layernorm_epsilon": fields.number_or(name, epsilon),
        "activation_func": _activation(fields, "hidden_act", activation),
    }
    return computed if kind.endswith(_OF_ENCODERS) else {**computed, **_positions(fields, kind)}


def _activation(fields: Fields, name: str, usual: str) -> Activation | None:
    written = fields.text(name, usual)
    meant = ACTIVATION_NAMES.get(written, written)
    activation = next((each for each in ACTIVATIONS if each == meant), None)
    if activation is None:
        fields.refuse(name, f"its activation is {meant!r}; {listed(ACTIVATIONS)} can run")
    return activation


def rotary_section(fields: Fields) -> Fields:
    """Return the section about rotary positions, which files of different age have elsewhere."""
    names = (name for name in ("rope_parameters", "rope_scaling") if name in fields)
    name = next(names, None)
    return Fields({}) if name is None else fields.section(name)


def _positions(fields: Fields, kind: str) -> dict[str, Any]:
    rotary = rotary_section(fields)
    base = fields.number_or("rope_theta", _ROTARY_BASES.get(kind, 10_000.0))
    return {
        "rotary_base": rotary.number_or("rope_theta", base),
        "rope_scaling": rotary_scaling(rotary),
        "mrope_section": _sections(rotary, kind),
        "mrope_interleaved": kind.startswith("qwen3_vl"),
    }


def rotary_scaling(rotary: Fields) -> RopeScaling | None:
    """Return how rotary positions are stretched, as a section about them states it."""
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


def _sections(rotary: Fields, kind: str) -> list[int] | None:
    if kind not in _SECTIONS:
        return None
    name = "mrope_section"
    sections = rotary.integers(name) if name in rotary else list(_SECTIONS[kind])
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
