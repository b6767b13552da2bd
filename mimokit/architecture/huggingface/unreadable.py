"""Families of Hugging Face models that cannot be read, and what of them is missing."""

import difflib
from collections.abc import Collection, Mapping

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import listed, shown

_EXPERTS = "mixtures of experts here, though runs start from them"
_NORMS_BEHIND = "norms behind attention and feed-forward part"
_WIDE_NORMS = "norms over the queries and keys of all heads together"
_WINDOWS, _PARTIAL = "sliding windows in some layers", "rotary positions on a part of a head"
_BESIDE = "attention beside the feed-forward part instead of in front of it"
_GEMMA = "embeddings that are scaled by the width, and norms that add one to their weights"
_TOWER = "its vision tower"

MISSING: Mapping[str, str] = {
    "bert": "attention to later tokens",
    "deepseek_v2": "latent attention",
    "deepseek_v3": "latent attention",
    "gemma": _GEMMA,
    "gemma2": f"{_WINDOWS}, capped logits, {_NORMS_BEHIND}, {_GEMMA}",
    "gemma3": f"{_TOWER}, {_WINDOWS}, {_NORMS_BEHIND}, {_GEMMA}",
    "gemma3_text": f"{_WINDOWS}, {_NORMS_BEHIND}, {_GEMMA}",
    "gpt_neox": f"{_PARTIAL}, {_BESIDE}",
    "granite": "multipliers of embeddings, residuals and logits",
    "mixtral": _EXPERTS,
    "olmo2": f"{_NORMS_BEHIND}, {_WIDE_NORMS}",
    "opt": "learned positions that begin at 2",
    "phi": f"{_PARTIAL}, {_BESIDE}",
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "qwen3_vl_moe": "all experts of a layer in one tensor",
    "whisper": "its encoder of sound",
}
"""`model_type` -> what of the family is not supported."""


def check_readable(what: str, kind: object, readable: Collection[str]) -> None:
    """Raise `ConfigError` if a `model_type` is not among those that can be read."""
    if not isinstance(kind, str) or kind in readable:
        return
    # One letter wrong is a slip; qwen4 is not a wrong qwen2.
    nearest = difflib.get_close_matches(kind, readable, n=1, cutoff=0.85)
    missing = f" (missing: {MISSING[kind]})" if kind in MISSING else ""
    right = f"those of {listed(sorted(readable))} can."
    if nearest and not missing:
        right = f"did you mean {nearest[0]}?"
    sentence = f"{what} of model_type {shown(kind)} cannot be read{missing}; {right}"
    raise ConfigError([Problem("weights", "model_type", kind, sentence)])
